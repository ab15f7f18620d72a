import { startEndpoint } from "@fencepost/simulator";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, it, test } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { gateInserts } from "../__tests__/support/insertGate.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { startDeliverLoop } from "../deliver/deliverLoop.ts";
import { createLog } from "../observe/log.ts";
import { type Database, openDatabase, type Queryable } from "../store/postgres/database.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { createDispatcher, type Dispatcher, type DispatchInput } from "./dispatcher.ts";
import type { WebhookInput } from "./webhookInput.ts";

const TOKEN = "testnet-20251217-0063092990-0000027-0006-0000000002";
const ORDER: DispatchInput = { event_type: "order.paid", event_id: "order:1", data: { total: 1 } };

let testDatabase: TestDatabase;
let database: Database;
let dispatcher: Dispatcher<Queryable>;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
  const now = () => new Date("2026-06-19T00:21:26Z");
  dispatcher = createDispatcher({ store: postgresStore(database), now, allowInsecure: true });
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

/** Sends what is due to an endpoint that records it. */
async function startSending(): Promise<Awaited<ReturnType<typeof startEndpoint>>> {
  const endpoint = await startEndpoint();
  closing.push(endpoint.close);
  await dispatcher.addWebhook({ url: endpoint.url, types: ["order.paid"] });
  return endpoint;
}

/** Waits until nothing is left to send. */
async function sendAll(): Promise<void> {
  const store = postgresStore(database);
  const loop = startDeliverLoop({ store, log: createLog("silent"), pollMs: 20, allowInsecure: true });
  closing.push(loop.stop);
  const left = async (): Promise<number> =>
    (await database.query("SELECT FROM fencepost.delivery_queue")).rows.length;
  await waitUntil(async () => (await left()) === 0, { what: "the queue is empty" });
}

async function rowCounts(): Promise<Readonly<Record<string, number>>> {
  const counts: Record<string, number> = {};
  for (const table of [
    "webhooks",
    "catch_ups",
    "messages",
    "message_bodies",
    "deliveries",
    "delivery_queue",
  ]) {
    counts[table] = (await database.query(`SELECT FROM fencepost.${table}`)).rows.length;
  }
  return counts;
}
const NOTHING = {
  webhooks: 0,
  catch_ups: 0,
  messages: 0,
  message_bodies: 0,
  deliveries: 0,
  delivery_queue: 0,
};

describe("dispatch", () => {
  it("by two callers at once, both in the middle, sends one request, and both get the same record", async () => {
    const endpoint = await startSending();
    const gate = await gateInserts(testDatabase.url, "fencepost.deliveries");
    closing.push(gate.close);
    const both = Promise.all([dispatcher.dispatch(ORDER), dispatcher.dispatch(ORDER)]);
    await gate.waitForHeld(2);
    await gate.open();
    const [one, two] = await both;
    expect(one.length).toBe(1);
    expect(two).toEqual(one);
    await sendAll();
    expect(endpoint.requests.length).toBe(1);
    expect(await dispatcher.dispatch(ORDER)).toMatchObject([
      { id: one[0]!.id, state: "success", attempts: 1 },
    ]);
    await sendAll();
    expect(endpoint.requests.length).toBe(1);
  });

  it("carries the caller's id, token, time and data unmodified to the endpoint", async () => {
    const endpoint = await startSending();
    await dispatcher.dispatch({ ...ORDER, data: { amount: 2n ** 70n, é: [null] }, fencing_token: TOKEN });
    await sendAll();
    const [request] = endpoint.requests;
    expect(request!.headers).toMatchObject({ "webhook-id": "order:1", "fencing-token": TOKEN });
    expect(request!.body.toString()).toBe(
      `{"type":"order.paid","event_id":"order:1","fencing_token":"${TOKEN}",` +
        '"timestamp":"2026-06-19T00:21:26.000Z","data":{"amount":"1180591620717411303424","é":[null]}}',
    );
  });

  it("in a transaction of the caller's commits with it", async () => {
    const endpoint = await startSending();
    const client = new Client({ connectionString: testDatabase.url });
    await client.connect();
    closing.push(() => client.end());
    for (const [end, event_id] of [
      ["ROLLBACK", "order:lost"],
      ["COMMIT", "order:kept"],
    ] as const) {
      await client.query("BEGIN");
      expect(await dispatcher.dispatch({ ...ORDER, event_id }, { tx: client })).toMatchObject([
        { state: "pending" },
      ]);
      await client.query(end);
    }
    await sendAll();
    expect(endpoint.requests.map(({ headers }) => headers["webhook-id"])).toEqual(["order:kept"]);
  });

  const circular: Record<string, unknown> = {};
  circular["self"] = circular;
  test.each<readonly [string, object, string, string]>([
    ["an empty event id", { event_id: "" }, "InvalidTokenError", "event id"],
    ["an event id that is too long", { event_id: "a".repeat(257) }, "InvalidTokenError", "event id"],
    ["an event id with a dot", { event_id: "order.1" }, "InvalidTokenError", "event id"],
    ["an event id with a space", { event_id: "order 1" }, "InvalidTokenError", "event id"],
    ["an event id with a line break", { event_id: "order\n" }, "InvalidTokenError", "event id"],
    ["an event id that is no text", { event_id: 1 }, "InvalidTokenError", "event id"],
    ["no event id", { event_id: undefined }, "InvalidTokenError", "event id"],
    [
      "an id in the form of a derived one",
      { event_id: `evt_${"a".repeat(26)}` },
      "InvalidTokenError",
      "reserved",
    ],
    ["an id in the form of a test", { event_id: `test_${"2".repeat(26)}` }, "InvalidTokenError", "reserved"],
    ["a token that is none", { fencing_token: "63092990" }, "InvalidTokenError", "63092990"],
    ["a token in capitals", { fencing_token: TOKEN.toUpperCase() }, "InvalidTokenError", "TESTNET"],
    ["no type", { event_type: undefined }, "InvalidMessageError", "type"],
    ["an empty type", { event_type: "" }, "InvalidMessageError", "type"],
    ["a type with an empty part", { event_type: "order..paid" }, "InvalidMessageError", "order..paid"],
    ["a type that is a wish for every type", { event_type: "*" }, "InvalidMessageError", "*"],
    ["a body over the limit", { data: "x".repeat(256 * 1024) }, "InvalidMessageError", "limit"],
    ["no data", { data: undefined }, "InvalidMessageError", "undefined"],
    ["a function as data", { data: () => {} }, "InvalidMessageError", "function"],
    ["a number that JSON cannot hold", { data: { n: Number.NaN } }, "InvalidMessageError", "data.n is NaN"],
    ["a number beyond 2^53", { data: [2 ** 53] }, "InvalidMessageError", "bigint"],
    ["data that holds itself", { data: circular }, "InvalidMessageError", "nested deeper"],
  ])("refuses %s by name, and stores nothing", async (_what, wrong, name, text) => {
    const dispatching = dispatcher.dispatch({ ...ORDER, ...wrong } as DispatchInput);
    await expect(dispatching).rejects.toMatchObject({ name, message: expect.stringContaining(text) });
    expect(await rowCounts()).toEqual(NOTHING);
  });

  it("refuses another content under a known event id, and stores nothing of it", async () => {
    await dispatcher.dispatch(ORDER);
    const before = await rowCounts();
    const other = dispatcher.dispatch({ ...ORDER, data: { total: 2 } });
    await expect(other).rejects.toMatchObject({ name: "EventContentMismatchError", eventId: "order:1" });
    expect(await rowCounts()).toEqual(before);
  });
});

describe("a test message", () => {
  it("is sent each time, also twice in one millisecond, to a webhook of any type, under ids of its own", async () => {
    const endpoint = await startSending();
    const [webhook] = await dispatcher.listWebhooks();
    const sent = await Promise.all([dispatcher.sendTest(webhook!.id), dispatcher.sendTest(webhook!.id)]);
    expect(new Set(sent.map(({ id }) => id)).size).toBe(2);
    for (const { eventId } of sent) {
      expect(eventId).toMatch(/^test_[a-z2-7]{26}$/);
      const dispatching = dispatcher.dispatch({ ...ORDER, event_id: eventId });
      await expect(dispatching).rejects.toMatchObject({ name: "InvalidTokenError" });
    }
    await sendAll();
    expect(endpoint.requests.length).toBe(2);
    expect(JSON.parse(endpoint.requests[0]!.body.toString())).toMatchObject({
      type: "webhook.test",
      data: { webhook_id: webhook!.id },
    });
  });

  test.each(["", "wh_none", "wh_' OR true", "dlv_1"])(
    "to %j, which is no webhook, is refused",
    async (id) => {
      await expect(dispatcher.sendTest(id)).rejects.toMatchObject({ name: "UnknownWebhookError" });
      expect(await rowCounts()).toEqual(NOTHING);
    },
  );
});

describe("redeliver", () => {
  it("sends what succeeded again, with the same id and bytes", async () => {
    const endpoint = await startSending();
    const [made] = await dispatcher.dispatch(ORDER);
    await sendAll();
    const again = await Promise.all([dispatcher.redeliver(made!.id), dispatcher.redeliver(made!.id)]);
    for (const delivery of again) expect(delivery).toMatchObject({ id: made!.id, attempts: 1 });
    await sendAll();
    const [first, second, ...others] = endpoint.requests;
    expect(others).toEqual([]);
    expect(second!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
    expect(second!.body.equals(first!.body)).toBe(true);
  });

  test.each(["", "dlv_1", "dlv_x", "order:1"])("of %j, which is no delivery, is refused", async (id) => {
    const redelivering = dispatcher.redeliver(id);
    await expect(redelivering).rejects.toMatchObject({ name: "UnknownDeliveryError", deliveryId: id });
  });
});

describe("a webhook", () => {
  const WEBHOOK: WebhookInput = { url: "https://customer.example/hook", types: ["order.paid"] };
  const secretOf = (bytes: number): string => `whsec_${Buffer.alloc(bytes, 1).toString("base64")}`;

  it("is stored as it is asked for, under a new id, with a secret of its own unless one is given", async () => {
    const [one, two] = [await dispatcher.addWebhook(WEBHOOK), await dispatcher.addWebhook(WEBHOOK)];
    expect(one).toMatchObject({ ...WEBHOOK, active: true, onUnknown: "resend", description: "" });
    expect(one.id).toMatch(/^wh_[0-9a-f]{24}$/);
    expect(two.id).not.toBe(one.id);
    expect(two.secrets).not.toEqual(one.secrets);
    for (const { secrets } of [one, two]) expect(secrets).toEqual([expect.stringMatching(/^whsec_.{44}$/)]);
    const given = {
      secrets: [secretOf(24), secretOf(64)],
      description: "a",
      onUnknown: "hold",
      types: ["a", "*", "a"],
    } as const;
    const three = await dispatcher.addWebhook({ ...WEBHOOK, ...given });
    expect(three).toMatchObject({ ...given, types: ["a", "*"] });
    expect(await dispatcher.listWebhooks()).toEqual([one, two, three]);
  });

  test.each<readonly [string, object, string]>([
    ["no url", { url: undefined }, "undefined is not a url"],
    ["a url that is none", { url: "customer.example/hook" }, '"customer.example/hook" is not a url'],
    ["a url that is no text", { url: 7n }, "bigint is not a url"],
    ["a url that is too long", { url: `https://customer.example/${"a".repeat(2_048)}` }, "2048 characters"],
    ["a url of another scheme", { url: "ftp://customer.example/" }, "https"],
    ["a url with user info", { url: "https://a:b@customer.example/" }, "userInfo"],
    ["a url with a fragment", { url: "https://customer.example/#a" }, "fragment"],
    ["no types", { types: undefined }, "types must name"],
    ["empty types", { types: [] }, "types must name"],
    ["types that are one text", { types: "order.paid" }, "types must name"],
    ["too many types", { types: Array.from({ length: 101 }, (_, i) => `t${i}`) }, "types must name"],
    ["a type with a space", { types: ["order paid"] }, '"order paid" is not a message type'],
    ["a type with a wildcard in it", { types: ["order.*"] }, '"order.*" is not a message type'],
    ["a type that is no text", { types: [null] }, "is not a message type"],
    ["a type that is too long", { types: ["a".repeat(129)] }, "is not a message type"],
    ["no secret", { secrets: [] }, "secrets must be"],
    ["too many secrets", { secrets: Array.from({ length: 6 }, () => secretOf(32)) }, "secrets must be"],
    ["secrets that are one text", { secrets: secretOf(32) }, "secrets must be"],
    ["a secret without its prefix", { secrets: [secretOf(32).slice(6)] }, "secrets must be"],
    ["a secret of 23 bytes", { secrets: [secretOf(23)] }, "secrets must be"],
    ["a secret of 65 bytes", { secrets: [secretOf(65)] }, "secrets must be"],
    ["a secret that no receiver decodes", { secrets: [secretOf(32).replace("=", "")] }, "secrets must be"],
    ["a secret that is no text", { secrets: [{}] }, "secrets must be"],
    ["a policy that is none", { onUnknown: "ask" }, 'onUnknown is "ask"'],
    ["a description that is too long", { description: "a".repeat(501) }, "description"],
    ["a description that is no text", { description: 1 }, "description"],
    ["a description that cannot be stored", { description: "a\0b" }, "description"],
  ])("is refused with %s by name, and not stored", async (_what, wrong, text) => {
    const adding = dispatcher.addWebhook({ ...WEBHOOK, ...wrong } as WebhookInput);
    await expect(adding).rejects.toMatchObject({
      name: "InvalidWebhookError",
      message: expect.stringContaining(text),
    });
    await expect(adding).rejects.not.toThrow(/whsec_AQ|.{1000}/);
    expect(await rowCounts()).toEqual(NOTHING);
  });

  it("is refused over plain http and on loopback outside development", async () => {
    const strict = createDispatcher({ store: postgresStore(database), now: () => new Date() });
    for (const url of ["http://customer.example/", "https://127.0.0.1/", "https://localhost/"]) {
      await expect(strict.addWebhook({ ...WEBHOOK, url })).rejects.toMatchObject({
        name: "InvalidWebhookError",
      });
    }
    expect(await rowCounts()).toEqual(NOTHING);
  });
});
