import { deriveEventId, type FencingToken, ledgerToken } from "@fencepost/token";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { buildMessage, EventContentMismatchError, type Message } from "../../message/payload.ts";
import { type Database, openDatabase } from "./database.ts";
import { insertMessages, type MessageOrigin, refuseMismatch } from "./messages.ts";
import { migrate } from "./migrate.ts";

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});
beforeEach(() => database.query("TRUNCATE fencepost.messages, fencepost.message_bodies, fencepost.outbox"));

const chain = { stream: "testnet", epoch: "20251217" };
const tokenOf = (n: number): FencingToken => ledgerToken({ ...chain, ledger: n, tx: 1, op: 0, event: 0 });

function message(n: number, data: unknown = { n }): Message {
  const token = tokenOf(n);
  const eventId = deriveEventId(token, "counted");
  return buildMessage({ eventId, type: "counted", token, occurredAt: "2026-06-19T00:21:26Z", data });
}

/** Everything that is stored, as one text. */
async function stored(): Promise<string> {
  const { rows } = await database.query<{ all: string }>(
    `SELECT concat(
       (SELECT string_agg(m::text, '|' ORDER BY event_id) FROM fencepost.messages m), ' / ',
       (SELECT string_agg(b::text, '|' ORDER BY event_id) FROM fencepost.message_bodies b), ' / ',
       (SELECT string_agg(o::text, '|' ORDER BY position) FROM fencepost.outbox o)) AS all`,
  );
  return rows[0]?.all ?? "";
}

async function outbox(): Promise<string[]> {
  const { rows } = await database.query<{ event_id: string }>(
    "SELECT event_id FROM fencepost.outbox ORDER BY position",
  );
  return rows.map((row) => row.event_id);
}

test("an emitted message is stored with its exact bytes, and offered in the order given", async () => {
  const messages = [3, 1, 2].map((n) => message(n));
  const { fresh, mismatched } = await insertMessages(database, messages, "emitted", "counts");
  const ids = messages.map(({ eventId }) => eventId);
  expect([...fresh].sort()).toEqual([...ids].sort());
  expect(mismatched).toEqual([]);
  expect(await outbox()).toEqual(ids);
  const { rows } = await database.query(
    `SELECT event_id AS "eventId", token, type, projection, state, content_hash AS "contentHash", occurred_at AS at, body
     FROM fencepost.messages JOIN fencepost.message_bodies USING (event_id) WHERE token = $1`,
    [tokenOf(1)],
  );
  const { eventId, token, type, contentHash, body } = message(1);
  expect(rows).toEqual([
    {
      eventId,
      token,
      type,
      projection: "counts",
      state: "emitted",
      contentHash,
      at: new Date("2026-06-19T00:21:26Z"),
      body,
    },
  ]);
});

test.each<MessageOrigin>(["suppressed", "dispatched", "test"])(
  "a message that is %s is not offered",
  async (origin) => {
    await insertMessages(database, [message(1)], origin, null);
    expect(await outbox()).toEqual([]);
    expect((await database.query("SELECT state FROM fencepost.messages")).rows).toEqual([{ state: origin }]);
  },
);

test("no messages are no statement", async () => {
  const closed = { query: () => Promise.reject(new Error("a statement")) };
  expect(await insertMessages(closed, [], "emitted", null)).toEqual({ fresh: new Set(), mismatched: [] });
});

test("what is on record stays as it is: the same content is known, other content is a mismatch", async () => {
  await insertMessages(database, [message(1), message(2)], "suppressed", "counts");
  const before = await stored();
  const other = message(2, { n: "other" });
  expect(await insertMessages(database, [message(1), other], "emitted", "counts")).toEqual({
    fresh: new Set(),
    mismatched: [other],
  });
  expect(await stored()).toBe(before);
  expect(() => refuseMismatch([other])).toThrow(EventContentMismatchError);
  expect(() => refuseMismatch([other])).toThrow(other.eventId);
  expect(() => refuseMismatch([])).not.toThrow();
});

test("a message of no chain has no token", async () => {
  const own = buildMessage({ ...message(1), token: null, data: {} });
  await insertMessages(database, [own], "dispatched", null);
  expect((await database.query("SELECT token, projection FROM fencepost.messages")).rows).toEqual([
    { token: null, projection: null },
  ]);
});

test("of two transactions that store one message, the second waits and finds it on record", async () => {
  let second: Promise<Awaited<ReturnType<typeof insertMessages>>> | undefined;
  await database.transaction(async (client) => {
    expect((await insertMessages(client, [message(1)], "emitted", "counts")).fresh.size).toBe(1);
    second = insertMessages(database, [message(1)], "emitted", "counts");
    await waitUntil(
      async () =>
        (
          await database.query(
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
          )
        ).rows.length === 1,
      { what: "the second one waits" },
    );
  });
  expect(await second).toEqual({ fresh: new Set(), mismatched: [] });
  expect(await outbox()).toEqual([message(1).eventId]);
});

test("two transactions that store the same messages in other orders do not block each other for ever", async () => {
  const messages = Array.from({ length: 200 }, (_, n) => message(n));
  const other = openDatabase(testDatabase.url);
  await Promise.all([
    insertMessages(database, messages, "emitted", "counts"),
    insertMessages(other, [...messages].reverse(), "emitted", "counts"),
  ]);
  await other.close();
  expect((await outbox()).sort()).toEqual(messages.map(({ eventId }) => eventId).sort());
});

test("whatever is stored again, in whatever batches, changes nothing", async () => {
  const batch = fc.array(fc.record({ n: fc.nat(6), data: fc.constantFrom({ a: 1 }, { a: 2 }) }), {
    maxLength: 6,
  });
  const origins = fc.constantFrom<MessageOrigin>("emitted", "suppressed", "dispatched");
  await fc.assert(
    fc
      .asyncProperty(fc.array(fc.tuple(batch, origins), { maxLength: 6 }), async (batches) => {
        const first = new Map<string, { content: string; origin: MessageOrigin }>();
        for (const [items, origin] of batches) {
          const messages = [...new Map(items.map(({ n, data }) => [n, message(n, data)])).values()];
          const run = () => insertMessages(database, messages, origin, "counts");
          const { fresh, mismatched } = await run();
          const once = await stored();
          expect((await run()).mismatched).toEqual(mismatched);
          expect(await stored()).toBe(once);
          for (const { eventId, contentHash } of messages) {
            const content = contentHash.toString("hex");
            expect(fresh.has(eventId)).toBe(!first.has(eventId));
            if (!first.has(eventId)) first.set(eventId, { content, origin });
            const isOther = first.get(eventId)?.content !== content;
            expect(mismatched.some((other) => other.eventId === eventId)).toBe(isOther);
          }
        }
        const offered = [...first].filter(([, { origin }]) => origin === "emitted").map(([id]) => id);
        expect((await outbox()).sort()).toEqual(offered.sort());
      })
      .beforeEach(async () => {
        await database.query("TRUNCATE fencepost.messages, fencepost.message_bodies, fencepost.outbox");
      }),
    { numRuns: 15 },
  );
});
