import { deriveEventId, InvalidTokenError, sequenceToken } from "@fencepost/token";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { createDispatcher } from "../dispatch/dispatcher.ts";
import { InvalidMessageError } from "../message/payload.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { insertStream } from "../store/postgres/streams.ts";
import { openProducer, type ProducedEvent } from "./append.ts";
import { ProducedConflictError, ProducerStreamError } from "./errors.ts";

const BILLING = { stream: "billing", epoch: "20260101" };
const tokenOf = (n: bigint) => sequenceToken({ ...BILLING, n });
const paid = (n: bigint, more: Partial<ProducedEvent> = {}): ProducedEvent => ({
  n,
  type: "invoice.paid",
  data: { amount: n, currency: "EUR" },
  ...more,
});

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
beforeEach(async () => {
  await database.query("TRUNCATE fencepost.streams, fencepost.events CASCADE");
  await emptyDeliveryTables(database);
});

async function stored() {
  const { rows } = await database.query(
    "SELECT token, seq::int AS seq, type, topics, value, late FROM fencepost.events ORDER BY seq",
  );
  return rows;
}
async function messages() {
  const { rows } = await database.query<{ event_id: string; token: string; body: Buffer }>(
    `SELECT m.event_id, m.token, b.body FROM fencepost.messages m JOIN fencepost.message_bodies b USING (event_id)
     JOIN fencepost.outbox USING (event_id) ORDER BY m.position`,
  );
  return rows;
}

describe("a producer's event", () => {
  test("is stored under its token with the next seq, and its message waits in the outbox", async () => {
    const producer = openProducer(database, BILLING);
    const occurredAt = new Date("2026-02-03T04:05:06Z");
    expect(await producer.append([paid(1n, { occurredAt }), paid(2n)])).toEqual([
      { token: tokenOf(1n), eventId: deriveEventId(tokenOf(1n), "invoice.paid"), isNew: true },
      { token: tokenOf(2n), eventId: deriveEventId(tokenOf(2n), "invoice.paid"), isNew: true },
    ]);
    const row = { type: "produced", topics: ["invoice.paid"], late: false };
    expect(await stored()).toEqual([
      { ...row, token: tokenOf(1n), seq: 1, value: '{"amount":"1","currency":"EUR"}' },
      { ...row, token: tokenOf(2n), seq: 2, value: '{"amount":"2","currency":"EUR"}' },
    ]);
    const [first] = await messages();
    expect(JSON.parse(String(first?.body))).toEqual({
      type: "invoice.paid",
      event_id: deriveEventId(tokenOf(1n), "invoice.paid"),
      fencing_token: tokenOf(1n),
      timestamp: "2026-02-03T04:05:06Z",
      data: { amount: "1", currency: "EUR" },
    });
  });

  test("makes one delivery for each webhook that takes it, like any other", async () => {
    const store = postgresStore(database);
    const dispatcher = createDispatcher({ store, now: () => new Date(), allowInsecure: true });
    const webhook = await dispatcher.addWebhook({ url: "http://127.0.0.1:9/", types: ["invoice.paid"] });
    const producer = openProducer(database, BILLING);
    await producer.append([paid(1n), paid(2n, { type: "invoice.sent" }), paid(3n)]);
    await producer.append([paid(1n)]);
    await store.fanOut({ messages: 100, webhooks: 100 });
    const deliveries = await store.listDeliveries(webhook.id, {}, { limit: 10 });
    expect(deliveries.map(({ eventId }) => eventId).sort()).toEqual(
      [1n, 3n].map((n) => deriveEventId(tokenOf(n), "invoice.paid")).sort(),
    );
  });

  test("that comes again is left as it is, with its first time, in a call or in the next", async () => {
    const producer = openProducer(database, BILLING);
    await producer.append([paid(1n), paid(1n)]);
    const before = [await stored(), await messages()];
    const again = await producer.append([paid(1n, { data: { currency: "EUR", amount: 1n } }), paid(2n)]);
    expect(again.map(({ isNew }) => isNew)).toEqual([false, true]);
    expect((await stored()).slice(0, 1)).toEqual(before[0]);
    expect((await messages()).slice(0, 1)).toEqual(before[1]);
  });

  test.each([
    ["data", { data: { amount: 2n } }],
    ["type", { type: "invoice.sent" }],
    ["time", { occurredAt: new Date(0) }],
  ])("with another %s under the same number is refused, and with it the whole call", async (_, more) => {
    const producer = openProducer(database, BILLING);
    await producer.append([paid(1n)]);
    const conflict = producer.append([paid(2n), paid(1n, more)]);
    await expect(conflict).rejects.toThrow(ProducedConflictError);
    await expect(conflict).rejects.toMatchObject({ token: tokenOf(1n) });
    expect(await stored()).toHaveLength(1);
    expect(await messages()).toHaveLength(1);
  });

  test("below a stored one is late", async () => {
    const producer = openProducer(database, BILLING);
    await producer.append([paid(10n)]);
    await producer.append([paid(9n), paid(11n)]);
    expect((await stored()).map(({ token, late }) => [token, late])).toEqual([
      [tokenOf(10n), false],
      [tokenOf(9n), true],
      [tokenOf(11n), false],
    ]);
  });

  test("of many callers at once is stored once, in a seq without holes", async () => {
    const numbers = Array.from({ length: 30 }, (_, i) => BigInt(i));
    const calls = Array.from({ length: 6 }, (_, i) =>
      openProducer(database, BILLING).append(numbers.slice(i * 4, i * 4 + 10).map((n) => paid(n))),
    );
    const isNew = (await Promise.all(calls)).flat().filter((each) => each.isNew);
    expect(isNew).toHaveLength(30);
    const rows = await stored();
    expect(rows.map(({ seq }) => seq)).toEqual(rows.map((_, i) => i + 1));
    expect(rows.map(({ token }) => token).sort()).toEqual(numbers.map(tokenOf));
    expect(await messages()).toHaveLength(30);
  });
});

describe("a producer is refused", () => {
  test("the stream of a chain, a known network's name, another epoch, and what no token can be", async () => {
    const row = { stream: "own_net", epoch: "20260101", passphrase: "Own", nextLedger: 1, filtersHash: "" };
    await database.transaction((client) => insertStream(client, row));
    await expect(openProducer(database, row).append([paid(1n)])).rejects.toThrow(ProducerStreamError);
    expect(() => openProducer(database, { ...BILLING, stream: "testnet" })).toThrow(ProducerStreamError);
    expect(() => openProducer(database, { ...BILLING, stream: "Billing" })).toThrow(InvalidTokenError);
    await openProducer(database, BILLING).append([paid(1n)]);
    const other = openProducer(database, { ...BILLING, epoch: "20260102" });
    await expect(other.append([paid(1n)])).rejects.toThrow(/has the epoch 20260101/);
    await expect(openProducer(database, BILLING).append([paid(-1n)])).rejects.toThrow(InvalidTokenError);
    expect(await stored()).toHaveLength(1);
  });

  test("data without a JSON form, and types of the system", async () => {
    const { append } = openProducer(database, BILLING);
    await expect(append([paid(1n, { data: Number.NaN })])).rejects.toThrow(InvalidMessageError);
    await expect(append([paid(1n, { type: "webhook.test" })])).rejects.toThrow(InvalidMessageError);
    await expect(append(Array.from({ length: 1_001 }, (_, n) => paid(BigInt(n))))).rejects.toThrow(
      RangeError,
    );
    expect(await stored()).toEqual([]);
  });
});
