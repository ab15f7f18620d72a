import {
  asToken,
  type EventId,
  type FencingToken,
  IncomparableTokensError,
  sequenceToken,
} from "@fencepost/token";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createReceiver, type Inbox, InvalidOptionError, UnsupportedByInboxError } from "../index.ts";
import type { InboxUnderTest } from "./inboxUnderTest.ts";
import { NOW, SECRET, signedRequest } from "./signedRequest.ts";
import { thrown } from "./thrown.ts";

const DAY_MS = 86_400_000;

/** A receiver whose clock is some days behind, or ahead. */
function over<Tx extends Base, Base>(inbox: Inbox<Tx, Base>, consumer = "default", days = 0) {
  const now = new Date(NOW.getTime() + days * DAY_MS);
  return { ...createReceiver({ secrets: SECRET, inbox, consumer, now: () => now }), now };
}

/** What every inbox forgets when it is told to. */
export function pruningConformance<Tx extends Base, Base>(subject: InboxUnderTest<Tx, Base>): void {
  /** Has an event handled that was attempted some days ago. */
  async function receive(inbox: Inbox<Tx, Base>, id: string, days: number, consumer = "default") {
    const { handle, now } = over(inbox, consumer, days);
    const { outcome } = await handle(signedRequest({ id, timestamp: now.getTime() / 1_000 }), () => {});
    return outcome;
  }

  async function ask(inbox: Inbox<Tx, Base>, ids: readonly string[], consumer = "default") {
    const events = ids.map((id) => ({ eventId: id as EventId, before: 0 }));
    const query = { type: "webhook.receipt_query" as const, queryId: "query_1", events };
    const answer = await over(inbox, consumer).answerQuery(query);
    return { statuses: answer.events.map(({ status }) => status), since: answer.retained_since };
  }

  const daysAgo = (days: number) => new Date(NOW.getTime() - days * DAY_MS);

  if (!subject.expires)
    describe("pruned", () => {
      test("forgets what was attempted before, and says from when on it knows all", async () => {
        const inbox = await subject.create();
        for (const [id, days] of [
          ["evt_1", -9],
          ["evt_2", -8],
          ["evt_3", -7.5],
        ] as const) {
          await receive(inbox, id, days);
        }
        const pruned = await over(inbox).pruneInbox({ olderThan: daysAgo(8) });
        expect(pruned).toEqual({ removed: 1, complete: true });
        const { statuses, since } = await ask(inbox, ["evt_1", "evt_2", "evt_3"]);
        expect(statuses).toEqual(["fenced", "received", "received"]);
        expect(Date.parse(since ?? "")).toBeGreaterThanOrEqual(daysAgo(8).getTime());
        expect(await receive(inbox, "evt_1", 0)).toBe("applied");
      });

      test("leaves the events of other consumers alone", async () => {
        const inbox = await subject.create();
        await receive(inbox, "evt_1", -9, "billing");
        await receive(inbox, "evt_1", -9, "mail");
        expect(await over(inbox, "mail").pruneInbox({ olderThan: daysAgo(8) })).toMatchObject({ removed: 1 });
        expect((await ask(inbox, ["evt_1"], "billing")).statuses).toEqual(["received"]);
      });

      test("never knows more again than it said, whatever is pruned later", async () => {
        const inbox = await subject.create();
        await over(inbox).pruneInbox({ olderThan: daysAgo(8) });
        const { since } = await ask(inbox, ["evt_1"]);
        await over(inbox).pruneInbox({ olderThan: daysAgo(9) });
        expect((await ask(inbox, ["evt_1"])).since).toBe(since);
      });

      test("forgets no more at once than it is told, and says when it may know less before it forgets", async () => {
        const inbox = await subject.create();
        for (let i = 0; i < 5; i++) await receive(inbox, `evt_${i}`, -9);
        const counts = [];
        for (let i = 0; i < 4; i++) counts.push(await inbox.prune?.("default", daysAgo(8), 2));
        expect(counts).toEqual([2, 2, 1, 0]);
      });

      test("refuses to forget what may still be sent, and forgets nothing then", async () => {
        const inbox = await subject.create();
        await receive(inbox, "evt_1", -7);
        const { pruneInbox } = over(inbox);
        for (const options of [
          { olderThan: daysAgo(6.99) },
          { olderThan: daysAgo(-1) },
          { olderThan: new Date(Number.NaN) },
          { olderThan: daysAgo(8), retryHorizonMs: 9 * DAY_MS },
          { olderThan: daysAgo(8), retryHorizonMs: 0 },
          { olderThan: new Date(NOW.getTime() - 599_000), retryHorizonMs: 1 }, // twice the tolerance counts too
        ]) {
          expect(await thrown(() => pruneInbox(options))).toBeInstanceOf(InvalidOptionError);
        }
        expect((await ask(inbox, ["evt_1"])).statuses).toEqual(["received"]);
        const sooner = { olderThan: new Date(NOW.getTime() - 600_000), retryHorizonMs: 600_000 };
        expect(await pruneInbox(sooner)).toEqual({ removed: 1, complete: true });
      });
    });

  if (subject.expires)
    test("is not pruned, where its events expire by themselves", async () => {
      const { pruneInbox } = over(await subject.create());
      const error = await thrown(() => pruneInbox({ olderThan: daysAgo(8) }));
      expect(error).toBeInstanceOf(UnsupportedByInboxError);
    });
}

/** What every inbox remembers as the last token of a key. */
export function latestConformance<Tx extends Base, Base>(subject: InboxUnderTest<Tx, Base>): void {
  const token = (n: number, stream = "billing") => sequenceToken({ stream, epoch: "20260101", n: BigInt(n) });
  const latest = (inbox: Inbox<Tx, Base>, key: string, given: FencingToken, consumer = "default") =>
    inbox.transaction((tx) => over(inbox, consumer).latest(tx, key, given));

  if (subject.transactional)
    describe("asked for the latest of a key", () => {
      test("takes a token that is newer than all before it, and no other, in any sequence", async () => {
        await fc.assert(
          fc.asyncProperty(fc.array(fc.nat({ max: 9 }), { maxLength: 12 }), async (numbers) => {
            const inbox = await subject.create();
            let last = -1;
            for (const n of numbers) {
              expect(await latest(inbox, "pool_1", token(n))).toBe(n > last ? "newer" : "stale");
              last = Math.max(last, n);
            }
          }),
          { numRuns: 10 },
        );
      });

      test("keeps the keys, and the consumers, apart", async () => {
        const inbox = await subject.create();
        expect(await latest(inbox, "pool_1", token(5))).toBe("newer");
        expect(await latest(inbox, "pool_2", token(4))).toBe("newer");
        expect(await latest(inbox, "pool_1", token(4), "mail")).toBe("newer");
        expect(await latest(inbox, "pool_1", token(5))).toBe("stale");
      });

      test("takes a later life of a chain for newer, and knows no order between streams", async () => {
        const inbox = await subject.create();
        const [before, after] = ["20250101", "20260101"].map((epoch) =>
          asToken(`testnet-${epoch}-0000000005-0000001-0000-0000000000`),
        );
        expect(await latest(inbox, "pool_1", before!)).toBe("newer");
        expect(await latest(inbox, "pool_1", after!)).toBe("newer");
        for (const other of [token(9, "testnet"), token(9)]) {
          const error = await thrown(() => latest(inbox, "pool_1", other));
          expect(error).toBeInstanceOf(IncomparableTokensError);
        }
        expect(await latest(inbox, "pool_1", after!)).toBe("stale");
      });

      test("forgets a token with the transaction that is undone", async () => {
        const inbox = await subject.create();
        await latest(inbox, "pool_1", token(1));
        const undone = inbox.transaction(async (tx) => {
          expect(await over(inbox).latest(tx, "pool_1", token(7))).toBe("newer");
          expect(await over(inbox).latest(tx, "pool_1", token(6))).toBe("stale");
          throw new Error("later");
        });
        await thrown(() => undone);
        expect(await latest(inbox, "pool_1", token(6))).toBe("newer");
      });

      test("has the newest win when all come at once", async () => {
        const inbox = await subject.create();
        const numbers = [3, 8, 1, 6, 2, 7, 5, 4];
        const orders = await Promise.all(numbers.map((n) => latest(inbox, "pool_1", token(n))));
        expect(orders[1]).toBe("newer");
        expect(await latest(inbox, "pool_1", token(8))).toBe("stale");
        expect(await latest(inbox, "pool_1", token(9))).toBe("newer");
      });

      test.each([
        ["no characters", ""],
        ["more than 512 characters", "x".repeat(513)],
        ["another type", 5 as unknown as string],
      ])("has no key of %s", async (_, key) => {
        const inbox = await subject.create();
        expect(await thrown(() => latest(inbox, key, token(1)))).toBeInstanceOf(InvalidOptionError);
      });
    });

  if (!subject.transactional)
    test("does not remember the latest of a key without its effects", async () => {
      const inbox = await subject.create();
      expect(await thrown(() => latest(inbox, "pool_1", token(1)))).toBeInstanceOf(UnsupportedByInboxError);
    });
}
