import { setImmediate as nextTurn } from "node:timers/promises";
import type { EventId } from "@fencepost/token";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { AttemptFencedError, createReceiver, type Inbox, type ReceiptStatus } from "../index.ts";
import { type InboxUnderTest, startHandling } from "./inboxUnderTest.ts";
import { ATTEMPT_TIME, NOW, SECRET, signedRequest } from "./signedRequest.ts";
import { thrown } from "./thrown.ts";

/** What every inbox answers when it is asked for receipts, and what holds from then on. */
export function queryConformance<Tx extends Base, Base>(subject: InboxUnderTest<Tx, Base>): void {
  describe("asked for receipts", () => {
    test("says what it has received, and fences off the rest, in the order of the query", async () => {
      const { attempt, askAll } = over(await subject.create());
      await attempt("evt_1", 0);
      await attempt("evt_3", 0);
      expect(await askAll(["evt_4", "evt_3", "evt_2", "evt_1"], 0)).toEqual([
        ["evt_4", "fenced"],
        ["evt_3", "received"],
        ["evt_2", "fenced"],
        ["evt_1", "received"],
      ]);
    });

    test("refuses the attempts up to the fence from then on, and takes a later one", async () => {
      const { attempt, ask } = over(await subject.create());
      expect(await ask("evt_1", 0)).toBe("fenced");
      expect(await attempt("evt_1", -1)).toBe("fenced");
      expect(await attempt("evt_1", 0)).toBe("fenced");
      expect(await ask("evt_1", 0)).toBe("fenced"); // what is refused is not received
      expect(await attempt("evt_1", 1)).toBe("applied");
      expect(await ask("evt_1", 1)).toBe("received");
      expect(await attempt("evt_1", 1)).toBe("already");
      expect(await attempt("evt_1", 0)).toBe("fenced"); // the late one, after its replacement was accepted
    });

    test("says by name which attempt it refuses", async () => {
      const { ask, handle } = over(await subject.create());
      await ask("evt_1", 0);
      const error = await thrown(() => handle("evt_1", 0, () => {}));
      expect(error).toBeInstanceOf(AttemptFencedError);
      expect(error).toMatchObject({ eventId: "evt_1", status: 409 });
    });

    test("says that a handler is running, and what became of it when it ended", async () => {
      for (const end of ["succeed", "fail"] as const) {
        const inbox = await subject.create({ waitMs: 50 });
        const { ask, attempt } = over(inbox);
        const running = await startHandling(inbox, "evt_1");
        expect(await ask("evt_1", 0)).toBe("in_progress");
        running[end](new Error("no"));
        await running.done.catch(() => {});
        expect(await ask("evt_1", 0)).toBe(end === "succeed" ? "received" : "fenced");
        expect(await attempt("evt_1", 0)).toBe(end === "succeed" ? "already" : "fenced");
      }
    });

    test("takes an event for running until the transaction ends, not only its handler", async () => {
      const inbox = await subject.create({ waitMs: 50 });
      const { ask, handleIn } = over(inbox);
      const asked: ReceiptStatus[] = [];
      await inbox.transaction(async (tx) => {
        await handleIn(tx, "evt_1", 0, () => {});
        asked.push(await ask("evt_1", 0));
      });
      asked.push(await ask("evt_1", 0));
      expect(asked).toEqual(["in_progress", "received"]);
    });

    test("fences off an event whose transaction was undone after the handler", async () => {
      const inbox = await subject.create();
      const { ask, attempt, handleIn } = over(inbox);
      const undone = inbox.transaction(async (tx) => {
        await handleIn(tx, "evt_1", 0, () => {});
        throw new Error("later");
      });
      await thrown(() => undone);
      expect([await ask("evt_1", 0), await attempt("evt_1", 0)]).toEqual(["fenced", "fenced"]);
    });

    test("keeps a fence when a later attempt fails", async () => {
      const { ask, attempt, handle } = over(await subject.create());
      await ask("evt_1", 0);
      await thrown(() => handle("evt_1", 1, () => Promise.reject(new Error("no"))));
      expect(await attempt("evt_1", 0)).toBe("fenced");
      expect(await attempt("evt_1", 1)).toBe("applied");
    });

    test("keeps the later one of two fences, whichever came first", async () => {
      for (const fences of [
        [0, 5],
        [5, 0],
      ]) {
        const { ask, attempt } = over(await subject.create());
        for (const before of fences) expect(await ask("evt_1", before)).toBe("fenced");
        expect(await attempt("evt_1", 5)).toBe("fenced");
        expect(await attempt("evt_1", 6)).toBe("applied");
      }
    });

    test("keeps the events and the fences of each consumer apart", async () => {
      const inbox = await subject.create();
      const billing = over(inbox, "billing");
      const mail = over(inbox, "mail");
      await billing.attempt("evt_1", 0);
      expect([await billing.ask("evt_1", 0), await mail.ask("evt_1", 0)]).toEqual(["received", "fenced"]);
      expect(await billing.ask("evt_2", 0)).toBe("fenced");
      expect([await billing.attempt("evt_2", 0), await mail.attempt("evt_2", 0)]).toEqual([
        "fenced",
        "applied",
      ]);
    });

    test("answers for 500 events at once", async () => {
      const { attempt, askAll } = over(await subject.create());
      const ids = Array.from({ length: 500 }, (_, i) => `evt_${i}`);
      const received = ["evt_0", "evt_99", "evt_100", "evt_499"];
      for (const id of received) await attempt(id, 0);
      const expected = ids.map((id) => [id, received.includes(id) ? "received" : "fenced"]);
      expect(await askAll(ids, 0)).toEqual(expected);
      expect([await attempt("evt_1", 0), await attempt("evt_498", 0)]).toEqual(["fenced", "fenced"]);
    });

    if (!subject.expires)
      test("forgets a fence when no attempt before it can be verified", async () => {
        const inbox = await subject.create();
        const { ask, attempt } = over(inbox);
        for (const id of ["evt_1", "evt_2"]) await ask(id, 0);
        const anHourAndTolerance = new Date(NOW.getTime() + 3_900_000);
        await over(inbox, "default", anHourAndTolerance).ask("evt_3", 0);
        expect(await attempt("evt_1", 0)).toBe("fenced");
        await over(inbox, "default", new Date(anHourAndTolerance.getTime() + 1_000)).ask("evt_4", 0);
        expect(await attempt("evt_2", 0)).toBe("applied"); // its signature would be refused by a right clock
        expect(await attempt("evt_3", 0)).toBe("fenced");
      });

    test("never says that an attempt is fenced off which is applied, however they race", async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(racer, { minLength: 2, maxLength: 10 }), async (racers) => {
          const { handle, ask } = over(await subject.create());
          const applied: number[] = [];
          const fences: number[] = [];
          const statuses: ReceiptStatus[] = [];
          const run = async ({ asks, time, turns, fails }: Racer): Promise<void> => {
            for (let i = 0; i < turns; i++) await nextTurn();
            if (asks) {
              const status = await ask("evt_1", time);
              statuses.push(status);
              if (status === "fenced") fences.push(time);
              return;
            }
            const attempt = handle("evt_1", time, async () => {
              for (let i = 0; i < turns; i++) await nextTurn();
              if (fails) throw new Error("no");
            });
            if ((await attempt.catch(() => ({ outcome: "failed" }))).outcome === "applied")
              applied.push(time);
          };
          await Promise.all(racers.map(run));
          expect(applied.length).toBeLessThanOrEqual(1);
          for (const time of applied) expect(time).toBeGreaterThan(Math.max(-1, ...fences));
          if (statuses.includes("received")) expect(applied).toHaveLength(1);
          // Where all is quiet, the inbox knows.
          expect(await ask("evt_1", 0)).toBe(applied.length === 1 ? "received" : "fenced");
        }),
        { numRuns: 25 },
      );
    });
  });
}

interface Racer {
  /** A query, or an attempt. */
  readonly asks: boolean;
  /** Of the attempt, or the fence. */
  readonly time: number;
  readonly turns: number;
  readonly fails: boolean;
}

const racer: fc.Arbitrary<Racer> = fc.record({
  asks: fc.boolean(),
  time: fc.integer({ min: 0, max: 5 }),
  turns: fc.integer({ min: 0, max: 4 }),
  fails: fc.boolean(),
});

/** Attempts and queries, with times in seconds after the first attempt. */
function over<Tx extends Base, Base>(inbox: Inbox<Tx, Base>, consumer = "default", now = NOW) {
  const receiver = createReceiver({ secrets: SECRET, inbox, consumer, now: () => now });
  const message = (id: string, time: number) =>
    receiver.verify(signedRequest({ id, timestamp: ATTEMPT_TIME + time }));
  const handle = (id: string, time: number, handler: () => unknown) =>
    receiver.handle(message(id, time), handler);

  async function askAll(ids: readonly string[], before: number): Promise<[string, ReceiptStatus][]> {
    const { events } = await receiver.answerQuery({
      type: "webhook.receipt_query",
      queryId: "query_1",
      events: ids.map((id) => ({ eventId: id as EventId, before: ATTEMPT_TIME + before })),
    });
    return events.map(({ event_id, status }) => [event_id, status]);
  }

  return {
    handle,
    askAll,
    handleIn: (tx: Base, id: string, time: number, handler: () => unknown) =>
      receiver.once(tx, message(id, time), handler),
    ask: async (id: string, before: number) => (await askAll([id], before))[0]![1],
    attempt: async (id: string, time: number) => {
      try {
        return (await handle(id, time, () => {})).outcome;
      } catch (error) {
        if (error instanceof AttemptFencedError) return "fenced";
        throw error;
      }
    },
  };
}
