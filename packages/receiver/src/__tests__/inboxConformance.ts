import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Inbox, InboxBusyError, type InboxEntry, type InboxState } from "../index.ts";
import { entry, type InboxUnderTest, startHandling } from "./inboxUnderTest.ts";
import { queryConformance } from "./queryConformance.ts";
import { latestConformance, pruningConformance } from "./retentionConformance.ts";
import { thrown } from "./thrown.ts";

/** What every inbox must do, whatever it keeps its entries in. */
export function inboxConformance<Tx extends Base, Base>(subject: InboxUnderTest<Tx, Base>): void {
  queryConformance(subject);
  pruningConformance(subject);
  latestConformance(subject);

  describe("as every inbox", () => {
    test("says whether it is transactional", async () => {
      expect((await subject.create()).transactional).toBe(subject.transactional);
    });

    test("finds an event absent once, and present ever after", async () => {
      const inbox = await subject.create();
      expect(await receive(inbox, entry("evt_1"))).toBe("absent");
      expect(await receive(inbox, entry("evt_1"))).toBe("present");
      expect(await receive(inbox, entry("evt_1"))).toBe("present");
      expect(await receive(inbox, entry("evt_2"))).toBe("absent");
    });

    test("keeps the events of each consumer apart", async () => {
      const inbox = await subject.create();
      expect(await receive(inbox, entry("evt_1", "billing"))).toBe("absent");
      expect(await receive(inbox, entry("evt_1", "mail"))).toBe("absent");
      expect(await receive(inbox, entry("evt_1", "billing"))).toBe("present");
    });

    test("gives back what the work returns, and throws what it throws", async () => {
      const inbox = await subject.create();
      const result = {};
      expect(await inbox.transaction((tx) => inbox.record(tx, entry("evt_1"), async () => result))).toBe(
        result,
      );
      const error = new Error("from the handler");
      expect(await thrown(() => receive(inbox, entry("evt_2"), error))).toBe(error);
    });

    test("records nothing when the work fails, so that the next attempt applies", async () => {
      const inbox = await subject.create();
      await thrown(() => receive(inbox, entry("evt_1"), new Error("no")));
      expect(await receive(inbox, entry("evt_1"))).toBe("absent");
    });

    test("records nothing when the transaction fails after the work", async () => {
      const inbox = await subject.create();
      await thrown(() =>
        inbox.transaction(async (tx) => {
          await inbox.record(tx, entry("evt_1"), async () => {});
          throw new Error("later");
        }),
      );
      expect(await receive(inbox, entry("evt_1"))).toBe("absent");
    });

    test("records nothing of a failed event when the transaction goes on without it", async () => {
      const inbox = await subject.create();
      await inbox.transaction(async (tx) => {
        await inbox.record(tx, entry("evt_1"), async () => {});
        await thrown(() => inbox.record(tx, entry("evt_2"), () => Promise.reject(new Error("no"))));
        await inbox.record(tx, entry("evt_3"), async () => {});
      });
      const found = [];
      for (const id of ["evt_1", "evt_2", "evt_3"]) found.push(await receive(inbox, entry(id)));
      expect(found).toEqual(["present", "absent", "present"]);
    });

    test("finds an event present when it comes twice in one transaction", async () => {
      const inbox = await subject.create();
      const found = await inbox.transaction(async (tx) => [
        await inbox.record(tx, entry("evt_1"), async ({ state }) => state),
        await inbox.record(tx, entry("evt_1"), async ({ state }) => state),
      ]);
      expect(found).toEqual(["absent", "present"]);
    });

    test("has duplicates of a running event wait until it is committed", async () => {
      const inbox = await subject.create();
      const first = await startHandling(inbox, "evt_1");
      const happened: string[] = [];
      const duplicates = Array.from({ length: 7 }, async () => {
        happened.push(await receive(inbox, entry("evt_1")));
      });
      await subject.untilWaiting(7);
      happened.push("first is done");
      first.succeed();
      await Promise.all([first.done, ...duplicates]);
      expect(happened).toEqual(["first is done", ...Array(7).fill("present")]);
    });

    test("lets exactly one waiting duplicate apply when the running one fails", async () => {
      const inbox = await subject.create();
      const first = await startHandling(inbox, "evt_1");
      const duplicates = Array.from({ length: 7 }, () => receive(inbox, entry("evt_1")));
      await subject.untilWaiting(7);
      first.fail(new Error("no"));
      await thrown(() => first.done);
      expect((await Promise.all(duplicates)).sort()).toEqual(["absent", ...Array(6).fill("present")]);
    });

    test("applies one of many that come at the same moment", async () => {
      const inbox = await subject.create();
      const found = await Promise.all(Array.from({ length: 8 }, () => receive(inbox, entry("evt_1"))));
      expect(found.sort()).toEqual(["absent", ...Array(7).fill("present")]);
    });

    if (!subject.oneAtATime)
      test("does not make an event wait for another one", async () => {
        const inbox = await subject.create();
        const first = await startHandling(inbox, "evt_1");
        expect(await receive(inbox, entry("evt_2"))).toBe("absent");
        first.succeed();
        await first.done;
      });

    test("gives up waiting after its time, by name, and leaves the running one alone", async () => {
      const inbox = await subject.create({ waitMs: 20 });
      const first = await startHandling(inbox, "evt_1");
      const error = await thrown(() => receive(inbox, entry("evt_1")));
      expect(error).toBeInstanceOf(InboxBusyError);
      expect(error).toMatchObject({ eventId: subject.oneAtATime ? undefined : "evt_1" });
      first.succeed();
      await first.done;
      expect(await receive(inbox, entry("evt_1"))).toBe("present");
    });

    test("remembers exactly the events whose transactions ended well, in any sequence", async () => {
      const step = fc.record({
        consumer: fc.constantFrom("a", "b"),
        id: fc.constantFrom("evt_1", "evt_2", "evt_3"),
        fails: fc.boolean(),
      });
      await fc.assert(
        fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
          const inbox = await subject.create();
          const handled = new Set<string>();
          for (const { consumer, id, fails } of steps) {
            let found: InboxState | undefined;
            const error = new Error("no");
            const run = inbox.transaction((tx) =>
              inbox.record(tx, entry(id, consumer), async ({ state }) => {
                found = state;
                if (fails) throw error;
              }),
            );
            if (fails) expect(await thrown(() => run)).toBe(error);
            else await run;
            expect(found).toBe(handled.has(`${consumer} ${id}`) ? "present" : "absent");
            if (!fails) handled.add(`${consumer} ${id}`);
          }
        }),
        { numRuns: 30 },
      );
    });
  });
}

/** What the inbox finds for an entry, in a transaction that is committed, or undone by `failure`. */
async function receive<Tx extends Base, Base>(
  inbox: Inbox<Tx, Base>,
  given: InboxEntry,
  failure?: Error,
): Promise<InboxState> {
  return inbox.transaction((tx) =>
    inbox.record(tx, given, async ({ state }) => {
      if (failure !== undefined) throw failure;
      return state;
    }),
  );
}
