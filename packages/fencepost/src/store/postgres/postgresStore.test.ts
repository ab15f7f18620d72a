// What is special about PostgreSQL. What every store must do is in ../conformance/.
import { startProxy } from "@fencepost/simulator";
import { drizzle } from "drizzle-orm/node-postgres";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { prismaClient } from "../../../../receiver/src/__tests__/prismaClient.ts";
import { pagesOfClaim } from "../../__tests__/support/claimPages.ts";
import { emptyDeliveryTables } from "../../__tests__/support/deliveryTables.ts";
import { gateInserts, type InsertGate, waitForHeld } from "../../__tests__/support/insertGate.ts";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import type { Message } from "../../message/payload.ts";
import { emittedMessage, messageOf } from "../conformance/conformingStore.ts";
import { DELIVERED, EVERYTHING, ended, LEASE_MS, resultOf, webhookOf } from "../conformance/deliverySteps.ts";
import type {
  ClaimedDelivery,
  ClaimOptions,
  Delivery,
  DeliveryStore,
  DispatchReport,
} from "../deliveryStore.ts";
import type { NewWebhook, WebhookId } from "../webhook.ts";
import { type Database, openDatabase } from "./database.ts";
import { catchUp, replay } from "./dispatching.ts";
import { insertMessages } from "./messages.ts";
import { migrate } from "./migrate.ts";
import { postgresStore } from "./postgresStore.ts";
import type { PostgresTransaction } from "./transactions.ts";
import { prune } from "./upkeep.ts";

let testDatabase: TestDatabase;
let url: string;
let database: Database;
let store: DeliveryStore<PostgresTransaction>;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  ({ url } = testDatabase);
  database = openDatabase(url);
  store = postgresStore(database);
  await migrate(database);
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await emptyDeliveryTables(database);
});

async function addWebhook(name: string, overrides: Partial<NewWebhook> = {}): Promise<WebhookId> {
  const { id } = await store.addWebhook(webhookOf(`wh_${name}`, overrides));
  return id;
}

/** The deliveries that a dispatch makes. */
async function dispatch(message: Message, options: { readonly tx?: PostgresTransaction } = {}) {
  return (await store.dispatch(message, options)).created;
}

/** The pairs of a message, new or not. */
function pairsOf({ created, existing }: DispatchReport): readonly Delivery[] {
  return [...created, ...existing];
}

function claim(): Promise<readonly ClaimedDelivery[]> {
  return store.claim(EVERYTHING);
}

async function emit(messages: readonly Message[]): Promise<void> {
  await database.transaction((client) => insertMessages(client, messages, "emitted", "orders"));
}

async function gate(when?: string): Promise<InsertGate> {
  const gate = await gateInserts(url, "fencepost.deliveries", when);
  closing.push(gate.close);
  return gate;
}

async function openClient(): Promise<Client> {
  const client = new Client({ connectionString: url });
  await client.connect();
  closing.push(() => client.end());
  return client;
}

/** Which messages each webhook has, in the order of both. */
async function pairs(): Promise<readonly string[]> {
  const { rows } = await database.query<{ pair: string }>(
    "SELECT webhook_id || ' ' || event_id AS pair FROM fencepost.deliveries ORDER BY webhook_id, event_id",
  );
  return rows.map(({ pair }) => pair);
}

function allPairs(webhooks: readonly string[], messages: readonly Message[]): readonly string[] {
  return webhooks.flatMap((id) => messages.map(({ eventId }) => `${id} ${eventId}`)).sort();
}

describe("two dispatches of one event id that are both in the middle", () => {
  it("make one delivery and return the same record", async () => {
    await addWebhook("a");
    const held = await gate();
    const both = Promise.all([1, 2].map(() => store.dispatch(messageOf("order:1"), {})));
    await held.waitForHeld(2);
    await held.open();
    const [one, two] = (await both).map(pairsOf);
    expect(one!.length).toBe(1);
    expect(two).toEqual(one);
    expect((await claim()).length).toBe(1);
  });

  it("make one delivery also where the message was there before and its webhook was not", async () => {
    await store.dispatch(messageOf("order:1"), {});
    await addWebhook("a");
    const held = await gate();
    const three = Promise.all([1, 2, 3].map(() => store.dispatch(messageOf("order:1"), {})));
    await held.waitForHeld(3);
    await held.open();
    const reports = await three;
    expect(reports.flatMap(({ created }) => created).length).toBe(1);
    const [one, two, last] = reports.map(pairsOf);
    expect(one!.length).toBe(1);
    expect([two, last]).toEqual([one, one]);
    expect((await claim()).length).toBe(1);
  });

  it("make one delivery also where the first of them dies", async () => {
    await addWebhook("a");
    const held = await gate();
    const dying = store.dispatch(messageOf("order:1"), {});
    const dead = expect(dying).rejects.toThrow();
    await held.waitForHeld(1);
    await held.killHeld();
    await dead;
    const living = dispatch(messageOf("order:1"));
    await held.waitForHeld(1);
    await held.open();
    expect((await living).length).toBe(1);
    expect((await claim()).length).toBe(1);
  });
});

describe("a dispatch in the caller's own transaction", () => {
  it("commits with it, and is seen by nobody before", async () => {
    await addWebhook("a");
    const client = await openClient();
    await client.query("CREATE TABLE orders (id text)");
    await client.query("BEGIN");
    await client.query("INSERT INTO orders VALUES ('1')");
    const inside = await dispatch(messageOf("order:1"), { tx: client });
    expect(inside).toMatchObject([{ eventId: "order:1", state: "pending" }]);
    expect(await store.findDelivery(inside[0]!.id)).toBe(undefined);
    expect(await claim()).toEqual([]);
    await client.query("COMMIT");
    expect(await store.findDelivery(inside[0]!.id)).toEqual(inside[0]);
    expect(await claim()).toMatchObject([{ id: inside[0]!.id }]);
  });

  it("vanishes with it, and can be made again", async () => {
    await addWebhook("a");
    const client = await openClient();
    await client.query("BEGIN");
    await store.dispatch(messageOf("order:1", { data: { total: 1 } }), { tx: client });
    await client.query("ROLLBACK");
    for (const table of ["messages", "message_bodies", "deliveries", "delivery_queue"]) {
      expect((await database.query(`SELECT FROM fencepost.${table}`)).rows.length).toBe(0);
    }
    expect((await dispatch(messageOf("order:1", { data: { total: 2 } }))).length).toBe(1);
  });

  it("leaves it usable when the content is another one", async () => {
    await addWebhook("a");
    await store.dispatch(messageOf("order:1", { data: { total: 1 } }), {});
    const client = await openClient();
    await client.query("BEGIN");
    const other = store.dispatch(messageOf("order:1", { data: { total: 2 } }), { tx: client });
    await expect(other).rejects.toMatchObject({ name: "EventContentMismatchError" });
    await store.dispatch(messageOf("order:2"), { tx: client });
    await client.query("COMMIT");
    expect((await claim()).length).toBe(2);
  });

  it("that never ends makes another of the same id wait, and not lose", async () => {
    await addWebhook("a");
    const client = await openClient();
    await client.query("BEGIN");
    await store.dispatch(messageOf("order:1"), { tx: client });
    const waiting = dispatch(messageOf("order:1"));
    await waitForHeld(database, 1);
    await client.query("ROLLBACK");
    expect((await waiting).length).toBe(1);
  });
});

describe("a dispatch in a transaction of", () => {
  type Transaction = <T>(work: (tx: PostgresTransaction) => Promise<T>) => Promise<T>;

  async function prismaTransaction(): Promise<Transaction> {
    const prisma = prismaClient(url);
    closing.push(() => prisma.$disconnect());
    return (work) => prisma.$transaction((tx) => work(tx));
  }

  async function drizzleTransaction(): Promise<Transaction> {
    const db = drizzle(await openClient());
    return (work) => db.transaction((tx) => work(tx));
  }

  const libraries: readonly (readonly [string, () => Promise<Transaction>])[] = [
    ["Drizzle", drizzleTransaction],
    ["Prisma", prismaTransaction],
  ];
  const odd = { text: `"\\{},'$1 \u{1f4e6}\n`, nested: [null, { big: 2n ** 70n }] };

  for (const [name, open] of libraries) {
    it(`${name} commits with it, and gives the same records as any other`, async () => {
      await addWebhook("a", { filter: { nested: [{ big: "1180591620717411303424" }] } });
      await addWebhook("b", { ordering: "strict" });
      const transaction = await open();
      const message = messageOf("order:1", { data: odd });
      const inside = await transaction(async (tx) => {
        const first = await store.dispatch(message, { tx });
        expect(first.created.length).toBe(2);
        expect(await store.findDelivery(first.created[0]!.id)).toBe(undefined);
        expect(await store.dispatch(message, { tx })).toEqual({
          created: [],
          existing: first.created,
          forgotten: [],
        });
        return first;
      });
      for (const delivery of inside.created) expect(await store.findDelivery(delivery.id)).toEqual(delivery);
      expect(await store.dispatch(message, {})).toEqual({
        created: [],
        existing: inside.created,
        forgotten: [],
      });
      const [held] = (await claim()).filter(({ webhookId }) => webhookId === "wh_a");
      const [recorded] = await store.recordAttempts(held!.fence, [held!.id], LEASE_MS);
      expect(recorded!.body.equals(message.body)).toBe(true);
    });

    it(`${name} vanishes with it, and refuses other content`, async () => {
      await addWebhook("a");
      const transaction = await open();
      const failing = transaction(async (tx) => {
        await store.dispatch(messageOf("order:1"), { tx });
        throw new Error("changed my mind");
      });
      await expect(failing).rejects.toThrow("changed my mind");
      expect((await database.query("SELECT FROM fencepost.messages")).rows.length).toBe(0);
      await dispatch(messageOf("order:1"));
      const other = transaction((tx) => store.dispatch(messageOf("order:1", { data: "other" }), { tx }));
      await expect(other).rejects.toMatchObject({ name: "EventContentMismatchError" });
    });
  }
});

describe("a pruning step", () => {
  const BEFORE = (): Date => new Date(Date.now() + LEASE_MS);
  const pruneAll = async (): Promise<void> => {
    while (!(await store.prune({ before: BEFORE(), limit: 100 })).done);
  };

  /** A pruning step that has done its work and is not committed: what it removes is locked until then. */
  async function holdPruning(): Promise<() => Promise<void>> {
    const client = await openClient();
    await client.query("BEGIN");
    await prune(client, { before: BEFORE(), limit: 100 });
    return async () => {
      await client.query("COMMIT");
    };
  }

  /** What is due has its body: an attempt of it can be put on record. */
  async function expectBodies(count: number): Promise<void> {
    const claims = await claim();
    expect(claims.length).toBe(count);
    if (count === 0) return;
    const ids = claims.map(({ id }) => id);
    expect((await store.recordAttempts(claims[0]!.fence, ids, LEASE_MS)).length).toBe(count);
  }

  it("does not take a message that a dispatch holds", async () => {
    await dispatch(messageOf("order:1"));
    await addWebhook("a");
    const client = await openClient();
    await client.query("BEGIN");
    expect((await dispatch(messageOf("order:1"), { tx: client })).length).toBe(1);
    await pruneAll();
    await client.query("COMMIT");
    await pruneAll();
    await expectBodies(1);
  });

  it("that takes a message makes a dispatch of it wait, which then stores it anew", async () => {
    await dispatch(messageOf("order:1"));
    await addWebhook("a");
    const commit = await holdPruning();
    const dispatching = dispatch(messageOf("order:1", { data: "other" }));
    await waitForHeld(database, 1);
    await commit();
    expect((await dispatching).length).toBe(1);
    await expectBodies(1);
  });

  const RANGE = { from: new Date("2090-01-01"), to: new Date("2110-01-01"), limit: 100 };
  const offers: readonly (readonly [string, (client: Client, id: WebhookId) => Promise<unknown>])[] = [
    ["replay", (client, id) => replay(client, id, RANGE)],
    ["catch-up", (client) => catchUp(client, 100)],
  ];
  for (const [name, offer] of offers) {
    it(`does not take the body of a message that a ${name} holds`, async () => {
      await emit([emittedMessage(1), emittedMessage(2)]);
      await store.fanOut({ messages: 10, webhooks: 10 });
      const id = await addWebhook("a");
      const client = await openClient();
      await client.query("BEGIN");
      await offer(client, id);
      await pruneAll();
      await client.query("COMMIT");
      await pruneAll();
      await expectBodies(2);
    });

    it(`that takes bodies makes a ${name} wait, which then passes them over`, async () => {
      await emit([emittedMessage(1), emittedMessage(2)]);
      await store.fanOut({ messages: 10, webhooks: 10 });
      const id = await addWebhook("a");
      const commit = await holdPruning();
      const client = await openClient();
      const offering = offer(client, id);
      await waitForHeld(database, 1);
      await commit();
      await offering;
      await expectBodies(0);
      expect(await pairs()).toEqual([]);
    });
  }

  it("that takes pairs while a dispatch or a replay is in the middle does not have them made anew", async () => {
    const id = await addWebhook("z");
    const messages = [emittedMessage(1), emittedMessage(2)].sort((a, b) => (a.eventId < b.eventId ? -1 : 1));
    await emit([messages[1]!]);
    await store.fanOut({ messages: 10, webhooks: 10 });
    await dispatch(messageOf("order:1"));
    const claims = await claim();
    for (const { fence, id } of claims) {
      const [recorded] = await store.recordAttempts(fence, [id], LEASE_MS);
      await store.finish(fence, [ended(recorded!, DELIVERED)]);
    }
    await database.query("DELETE FROM fencepost.catch_ups");
    await emit([messages[0]!]);
    await addWebhook("a");
    // Each is held up at a pair that comes before the one that is pruned meanwhile.
    const held = await gate(`NEW.webhook_id = 'wh_a' OR NEW.event_id = '${messages[0]!.eventId}'`);
    const dispatching = dispatch(messageOf("order:1"));
    const replaying = store.replay(id, RANGE);
    await held.waitForHeld(2);
    await pruneAll();
    expect(await pairs()).toEqual([]);
    await held.open();
    expect((await dispatching).map(({ webhookId }) => webhookId)).toEqual(["wh_a"]);
    expect(await replaying).toMatchObject({ created: 1 });
    expect(await pairs()).toEqual(["wh_a order:1", `wh_z ${messages[0]!.eventId}`]);
  });

  it("by two at once is one, and the other has nothing to do", async () => {
    await dispatch(messageOf("order:1"));
    const commit = await holdPruning();
    expect(await store.prune({ before: BEFORE(), limit: 10 })).toEqual({
      deliveries: 0,
      messages: 0,
      done: true,
    });
    await commit();
    expect(await store.prune({ before: BEFORE(), limit: 10 })).toEqual({
      deliveries: 0,
      messages: 0,
      done: true,
    });
    expect((await database.query("SELECT FROM fencepost.messages")).rows).toEqual([]);
  });

  it("begins where the first body is, however many messages have none any more", async () => {
    await emit(Array.from({ length: 300 }, (_, i) => emittedMessage(i)));
    await store.fanOut({ messages: 1_000, webhooks: 10 });
    await pruneAll();
    expect((await database.query("SELECT FROM fencepost.messages")).rows.length).toBe(300);
    await emit([emittedMessage(1_000)]);
    await store.fanOut({ messages: 10, webhooks: 10 });
    const step = await store.prune({ before: BEFORE(), limit: 2 });
    expect(step).toEqual({ deliveries: 0, messages: 1, done: true });
  });

  it("does not pass over a message whose transaction ends after that of one behind it", async () => {
    const client = await openClient();
    await client.query("BEGIN");
    await dispatch(messageOf("order:late"), { tx: client });
    await dispatch(messageOf("order:1"));
    const step = await store.prune({ before: new Date(Date.now() - 3_600_000), limit: 10 });
    expect(step).toEqual({ deliveries: 0, messages: 0, done: true });
    await client.query("COMMIT");
    await pruneAll();
    expect((await database.query("SELECT event_id FROM fencepost.messages")).rows).toEqual([]);
  });
});

it("finishes a delivery without touching an index: nothing that an outcome writes is in one", async () => {
  const { rows } = await database.query<{ definition: string }>(
    "SELECT indexdef AS definition FROM pg_indexes WHERE schemaname = 'fencepost' AND tablename = 'deliveries'",
  );
  expect(rows.length).toBeGreaterThan(2);
  const written = /\b(?:state|attempts|tries|asks|last_\w+|next_at|first_at|finished_at)\b/;
  for (const { definition } of rows) expect(definition).not.toMatch(written);
});

describe("a connection that is cut at COMMIT", () => {
  for (const arrives of [true, false]) {
    it(`${arrives ? "after" : "before"} the server has it leaves all or nothing, and a repeat makes it all`, async () => {
      await addWebhook("a");
      const proxy = await startProxy({ targetPort: Number(new URL(url).port) });
      closing.push(proxy.close);
      const proxied = new URL(url);
      proxied.host = `127.0.0.1:${proxy.port}`;
      const through = openDatabase(proxied.href);
      closing.push(through.close);
      const isCommit = (chunk: Buffer, direction: string): boolean =>
        direction === "up" && chunk.includes("COMMIT\0");
      proxy.cutWhen(isCommit, { deliver: arrives });
      await expect(postgresStore(through).dispatch(messageOf("order:1"), {})).rejects.toThrow();
      const count = arrives ? 1 : 0;
      await waitUntil(async () => (await pairs()).length === count, { what: "the server has decided" });
      expect((await database.query("SELECT FROM fencepost.delivery_queue")).rows.length).toBe(count);
      expect(pairsOf(await postgresStore(through).dispatch(messageOf("order:1"), {})).length).toBe(1);
      expect((await claim()).length).toBe(1);
    });
  }
});

it("does not report a page of a replay as looked at whose webhook was paused in the middle", async () => {
  await emit([emittedMessage(1)]);
  await store.fanOut({ messages: 10, webhooks: 10 });
  const id = await addWebhook("a");
  const client = await openClient();
  const query = client.query.bind(client) as (...args: unknown[]) => Promise<unknown>;
  client.query = (async (...args: unknown[]) => {
    const result = await query(...args);
    await store.deactivateWebhook(id, "Paused.");
    return result;
  }) as typeof client.query;
  const range = { from: new Date("2090-01-01"), to: new Date("2110-01-01"), limit: 100 };
  const report = await replay(client, id, range);
  expect(report).not.toMatchObject({ created: 0 });
});

describe("a fan-out", () => {
  it("whose process dies in the middle of a chunk is done by the next, each pair once", async () => {
    const webhooks = await Promise.all(["a", "b", "c", "d", "e"].map((name) => addWebhook(name)));
    const messages = [1, 2].map((n) => emittedMessage(n));
    await emit(messages);
    await store.fanOut({ messages: 2, webhooks: 2 });
    const held = await gate();
    const dead = expect(store.fanOut({ messages: 2, webhooks: 2 })).rejects.toThrow();
    await held.waitForHeld(1);
    await held.killHeld();
    await dead;
    expect((await pairs()).length).toBe(4);
    await held.open();
    while ((await store.fanOut({ messages: 2, webhooks: 2 })).messages > 0);
    expect(await pairs()).toEqual(allPairs(webhooks, messages));
    expect((await claim()).length).toBe(10);
  });

  it("that is in the middle when a webhook is added leaves it to the catch-up, whichever ends first", async () => {
    await addWebhook("m");
    await store.catchUp(10);
    const messages = [1, 2, 3].map((n) => emittedMessage(n));
    await emit(messages);
    const held = await gate("NEW.webhook_id = 'wh_m'");
    const fanOut = store.fanOut({ messages: 10, webhooks: 10 });
    await held.waitForHeld(1);
    // Before and after it in the order of the fan-out; the first catches up while the fan-out still runs.
    await addWebhook("a");
    expect(await store.catchUp(10)).toEqual({ messages: 3, deliveries: 3 });
    await addWebhook("z");
    await held.open();
    expect(await fanOut).toEqual({ messages: 3, deliveries: 3 });
    while ((await store.catchUp(10)).messages > 0);
    expect(await pairs()).toEqual(allPairs(["wh_a", "wh_m", "wh_z"], messages));
  });

  it("and a catch-up that make the same pairs at once in other orders do not deadlock", async () => {
    await addWebhook("a");
    // Neither the order of the outbox nor that of their times is the order of their ids.
    const messages = Array.from({ length: 6 }, (_, i) =>
      emittedMessage(i, { occurredAt: `2100-01-0${9 - i}T00:00:00Z` }),
    );
    await emit(messages);
    // Both have made a pair when they are held up, if the first that they make is not the same.
    const [, second] = messages.map(({ eventId }) => eventId).sort();
    const held = await gate(`NEW.event_id = '${second}'`);
    const both = Promise.all([store.fanOut({ messages: 10, webhooks: 10 }), store.catchUp(10)]);
    await held.waitForHeld(2);
    await held.open();
    const [offered, caughtUp] = await both;
    expect(offered.deliveries + caughtUp.deliveries).toBe(6);
    expect(await pairs()).toEqual(allPairs(["wh_a"], messages));
  });
});

describe("of two that race for one claim, with the loser waiting for the lock of the winner,", () => {
  /** Holds the row of the only delivery in the queue, as a transaction of another worker does. */
  async function lockRow(): Promise<Client> {
    const client = await openClient();
    await client.query("BEGIN");
    await client.query("SELECT FROM fencepost.delivery_queue FOR UPDATE");
    return client;
  }
  it("one records an attempt", async () => {
    await addWebhook("a");
    const [made] = await dispatch(messageOf("order:1"));
    const [held] = await claim();
    const locker = await lockRow();
    const both = Promise.all([1, 2].map(() => store.recordAttempts(held!.fence, [made!.id], LEASE_MS)));
    await waitForHeld(database, 2);
    await locker.query("COMMIT");
    expect((await both).map(({ length }) => length).sort()).toEqual([0, 1]);
    expect((await store.findDelivery(made!.id))!.attempts).toBe(1);
  });

  it("a worker whose claim is taken in that moment records neither attempt nor outcome", async () => {
    await addWebhook("a");
    await store.dispatch(messageOf("order:1"), {});
    await store.dispatch(messageOf("order:2"), {});
    const claims = await claim();
    const { fence } = claims[0]!;
    const [attempted, waiting] = claims.map(({ id }) => id);
    const [recorded] = await store.recordAttempts(fence, [attempted!], LEASE_MS);
    const taker = await lockRow();
    await taker.query("UPDATE fencepost.delivery_queue SET fence = nextval('fencepost.delivery_fence')");
    const recording = store.recordAttempts(fence, [waiting!], LEASE_MS);
    const finishing = store.finish(fence, [ended(recorded!, DELIVERED)]);
    const releasing = store.release(fence, [waiting!]);
    await waitForHeld(database, 3);
    await taker.query("COMMIT");
    await releasing;
    expect(await recording).toEqual([]);
    expect(await finishing).toEqual({ recorded: [], stale: [attempted] });
    expect((await store.findDelivery(attempted!))!.state).toBe("sending");
    expect((await store.findDelivery(waiting!))!.attempts).toBe(0);
    const { rows } = await database.query("SELECT FROM fencepost.delivery_queue WHERE fence IS NULL");
    expect(rows.length).toBe(0);
  });

  it("an outcome that overtakes the record of its attempt is that of this attempt", async () => {
    await addWebhook("a");
    const [made] = await dispatch(messageOf("order:1"));
    const [held] = await claim();
    const locker = await lockRow();
    const recording = store.recordAttempts(held!.fence, [made!.id], LEASE_MS);
    await waitForHeld(database, 1);
    const result = resultOf("not_sent");
    const next = { state: "pending", delayMs: LEASE_MS } as const;
    const finishing = store.finish(held!.fence, [{ id: made!.id, result, next }]);
    await waitForHeld(database, 2);
    await locker.query("COMMIT");
    expect((await recording).length).toBe(1);
    expect(await finishing).toEqual({ recorded: [{ id: made!.id, state: "pending" }], stale: [] });
    expect(await store.findDelivery(made!.id)).toMatchObject({ state: "pending", attempts: 1 });
  });

  it("a person who redelivers loses nothing to a worker that gives back a row offered by mistake", async () => {
    await addWebhook("a");
    const [made] = await dispatch(messageOf("order:1"));
    const [first] = await claim();
    const [recorded] = await store.recordAttempts(first!.fence, [made!.id], LEASE_MS);
    await store.finish(first!.fence, [ended(recorded!, DELIVERED)]);
    await database.query(
      "INSERT INTO fencepost.delivery_queue SELECT id, webhook_id, now() FROM fencepost.deliveries",
    );
    const [mistaken] = await claim();
    expect(await store.recordAttempts(mistaken!.fence, [made!.id], LEASE_MS)).toEqual([]);
    const person = await openClient();
    await person.query("BEGIN");
    await person.query("UPDATE fencepost.deliveries SET state = 'pending', tries = 0");
    const releasing = store.release(mistaken!.fence, [made!.id]);
    await waitForHeld(database, 1);
    await person.query("COMMIT");
    await releasing;
    expect(await claim()).toMatchObject([{ id: made!.id }]);
  });
});

it("gives back a row of a delivery that has ended by taking it away", async () => {
  await addWebhook("a");
  const [made] = await dispatch(messageOf("order:1"));
  const [first] = await claim();
  const [recorded] = await store.recordAttempts(first!.fence, [made!.id], LEASE_MS);
  await store.finish(first!.fence, [ended(recorded!, DELIVERED)]);
  await database.query(
    "INSERT INTO fencepost.delivery_queue SELECT id, webhook_id, now() FROM fencepost.deliveries",
  );
  const [mistaken] = await claim();
  await store.release(mistaken!.fence, [made!.id]);
  expect((await database.query("SELECT FROM fencepost.delivery_queue")).rows.length).toBe(0);
  expect((await store.findDelivery(made!.id))!.state).toBe("success");
});

it("has no new webhook wait behind others that have nothing to catch up on", async () => {
  await emit([emittedMessage(1)]);
  for (const name of ["a", "b", "c"]) {
    await addWebhook(name);
    await database.query("UPDATE fencepost.catch_ups SET after_time = 'infinity'");
  }
  await addWebhook("d");
  expect(await store.catchUp(10)).toEqual({ messages: 1, deliveries: 1 });
});

it("claims one delivery of a strict webhook at a time, also where an earlier one is redelivered in the middle of a claim", async () => {
  await addWebhook("a", { ordering: "strict" });
  await store.catchUp(1);
  const [first] = await dispatch(messageOf("order:1"));
  const [claimed] = await claim();
  const [recorded] = await store.recordAttempts(claimed!.fence, [first!.id], LEASE_MS);
  await store.finish(claimed!.fence, [ended(recorded!, DELIVERED)]);
  const [second] = await dispatch(messageOf("order:2"));
  const held = await gateInserts(url, "fencepost.delivery_queue", "NEW.fence IS NOT NULL", "UPDATE");
  closing.push(held.close);

  const claiming = claim();
  await held.waitForHeld(1);
  await store.redeliver(first!.id);
  const beside = claim();
  await Promise.race([beside, held.waitForHeld(2)]);
  await held.open();
  const both = [...(await claiming), ...(await beside)];
  expect(both.map((each) => each.id)).toEqual([second!.id]);
  await store.release(both[0]!.fence, [second!.id]);
  expect((await claim()).map((each) => each.id)).toEqual([first!.id]);
});

describe("the pages that a claim reads", () => {
  const WEBHOOKS = 200;

  /** Each delivery is one of another webhook. */
  const TEN: ClaimOptions = { limit: 10, perOrigin: 1, skipOrigins: [], leaseMs: LEASE_MS };

  /** Rows that are not due, in a lane of the webhooks or in that of one which is not active, where they are. */
  async function insertWaiting(count: number, { due = false } = {}): Promise<void> {
    await database.query(
      `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
       SELECT nextval('waiting_ids'), CASE WHEN $3 THEN 'wh_off' ELSE 'wh_' || i % $2 END,
              now() + CASE WHEN $3 THEN interval '-1 day' ELSE i * interval '1 second' + interval '1 hour' END
       FROM generate_series(1, $1::int) i`,
      [count, WEBHOOKS, due],
    );
  }

  it("do not grow with what is not due, nor with what waits for a webhook that is not active", async () => {
    await database.query("CREATE SEQUENCE IF NOT EXISTS waiting_ids START 1000000");
    await database.query(
      `INSERT INTO fencepost.webhooks (id, url, types, secrets)
       SELECT 'wh_' || i, 'https://' || i || '.example/', '{*}', '[]' FROM generate_series(0, ${WEBHOOKS - 1}) i`,
    );
    await database.query(
      "INSERT INTO fencepost.webhooks (id, url, types, secrets, active) VALUES ('wh_off', 'https://off.example/', '{*}', '[]', false)",
    );
    await store.dispatch(messageOf("order:1"), {});
    await insertWaiting(2_000);
    const few = await pagesOfClaim(database, TEN);
    await insertWaiting(200_000);
    await insertWaiting(20_000, { due: true });
    const many = await pagesOfClaim(database, TEN);
    await database.query("ANALYZE");
    const analyzed = await pagesOfClaim(database, TEN);
    const { rows } = await database.query("SELECT FROM fencepost.delivery_queue WHERE fence IS NOT NULL");
    expect(rows.length).toBe(3 * 10);
    // An index is a level or two deeper for a hundred times the rows; reading them all would be thousands of pages.
    expect(many).toBeLessThan(2 * few);
    expect(analyzed).toBeLessThan(2 * few);
  });
});
