import { startEndpoint } from "@fencepost/simulator";
import { testEventId } from "@fencepost/token";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, it, test } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { gateInserts } from "../__tests__/support/insertGate.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { startDeliverLoop } from "../deliver/deliverLoop.ts";
import { createLog, type Log } from "../observe/log.ts";
import { messageOf } from "../store/conformance/conformingStore.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { insertMessages } from "../store/postgres/messages.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import type { PostgresTransaction } from "../store/postgres/transactions.ts";
import type { Webhook, WebhookChanges, WebhookId } from "../store/webhook.ts";
import { createDispatcher, type Dispatcher, type DispatchInput } from "./dispatcher.ts";
import {
  DeletedWebhookError,
  InactiveWebhookError,
  InvalidRangeError,
  InvalidWebhookError,
  UnknownWebhookError,
} from "./errors.ts";
import type { WebhookInput } from "./webhookInput.ts";

const TOKEN = "testnet-20251217-0063092990-0000027-0006-0000000002";
const ORDER: DispatchInput = { event_type: "order.paid", event_id: "order:1", data: { total: 1 } };

let testDatabase: TestDatabase;
let database: Database;
let dispatcher: Dispatcher<PostgresTransaction>;
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
    const reports = await both;
    const [created] = reports.flatMap((report) => report.created);
    expect(reports.map((report) => [...report.created, ...report.existing])).toEqual([[created], [created]]);
    await sendAll();
    expect(endpoint.requests.length).toBe(1);
    expect(await dispatcher.dispatch(ORDER)).toMatchObject({
      created: [],
      existing: [{ id: created!.id, state: "success", attempts: 1 }],
      forgotten: [],
    });
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
      expect(await dispatcher.dispatch({ ...ORDER, event_id }, { tx: client })).toMatchObject({
        created: [{ state: "pending" }],
      });
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
    ["a type of the system", { event_type: "webhook.test" }, "InvalidMessageError", "the system's own"],
    [
      "a type that the system may have",
      { event_type: "webhook.x" },
      "InvalidMessageError",
      "the system's own",
    ],
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

  it("to nobody tells so in the log, and reports nothing", async () => {
    const lines: unknown[] = [];
    const log = { ...createLog("silent"), warn: (...line: unknown[]) => lines.push(line) } as unknown as Log;
    const told = createDispatcher({ store: postgresStore(database), now: () => new Date(), log });
    await dispatcher.addWebhook({ url: "https://a.example/", types: ["order.sent"] });
    expect(await told.dispatch(ORDER)).toEqual({ created: [], existing: [], forgotten: [] });
    expect(lines).toEqual([
      [{ event_id: "order:1", event_type: "order.paid" }, "no active webhook takes this message"],
    ]);
    await told.dispatch({ ...ORDER, event_id: "order:2", event_type: "order.sent" });
    expect(lines.length).toBe(1);
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

  it("to a webhook that is paused is refused, and nothing is stored", async () => {
    const { id } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    await dispatcher.pauseWebhook(id, "For now.");
    const before = await rowCounts();
    await expect(dispatcher.sendTest(id)).rejects.toThrow(InactiveWebhookError);
    expect(await rowCounts()).toEqual(before);
  });

  it("under an id that is given is sent once", async () => {
    const { id } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    const eventId = testEventId(new Uint8Array(16));
    const one = await dispatcher.sendTest(id, eventId);
    expect(await dispatcher.sendTest(id, eventId)).toEqual(one);
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
    const [made] = (await dispatcher.dispatch(ORDER)).created;
    await sendAll();
    const again = await Promise.all([dispatcher.redeliver(made!.id), dispatcher.redeliver(made!.id)]);
    for (const delivery of again) expect(delivery).toMatchObject({ id: made!.id, attempts: 1 });
    await sendAll();
    const [first, second, ...others] = endpoint.requests;
    expect(others).toEqual([]);
    expect(second!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
    expect(second!.body.equals(first!.body)).toBe(true);
  });

  it("of a delivery whose webhook was deleted is refused", async () => {
    const { id: webhookId } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    const [made] = (await dispatcher.dispatch(ORDER)).created;
    await dispatcher.deleteWebhook(webhookId);
    await postgresStore(database).endDeleted(10);
    const redelivering = dispatcher.redeliver(made!.id);
    await expect(redelivering).rejects.toThrow(DeletedWebhookError);
    await expect(redelivering).rejects.toMatchObject({ deliveryId: made!.id });
  });
});

describe("a delivery", () => {
  test.each(["", "dlv_1", "dlv_x", "order:1"])("under %j, which is none, is refused", async (id) => {
    for (const ask of [
      () => dispatcher.getDelivery(id),
      () => dispatcher.listAttempts(id),
      () => dispatcher.redeliver(id),
      () => dispatcher.resolve(id, "skip"),
    ]) {
      await expect(ask()).rejects.toMatchObject({ name: "UnknownDeliveryError", deliveryId: id });
    }
  });

  it("is read with its attempts, listed, and resolved", async () => {
    const endpoint = await startEndpoint({ answer: { status: 400 } });
    closing.push(endpoint.close);
    const { id: webhookId } = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
    const [made] = (await dispatcher.dispatch(ORDER)).created;
    await sendAll();
    const delivery = await dispatcher.getDelivery(made!.id);
    expect(delivery).toMatchObject({ state: "failed", lastStatus: 400 });
    expect(await dispatcher.listAttempts(made!.id)).toMatchObject([{ number: 1, status: 400 }]);
    expect(await dispatcher.listDeliveries(webhookId)).toEqual([delivery]);
    expect(await dispatcher.listDeliveries(webhookId, { state: "success" })).toEqual([]);
    expect(await dispatcher.listDeliveries(webhookId, {}, { after: made!.id })).toEqual([]);
    expect(await dispatcher.resolve(made!.id, "delivered")).toMatchObject({ state: "success" });
    expect(await dispatcher.resolve(made!.id, "resend")).toMatchObject({ state: "success" });
  });
});

describe("a replay", () => {
  const RANGE = { from: new Date("2020-01-01T00:00:00Z"), to: new Date("2021-01-01T00:00:00Z") };

  /** Messages that a rebuild kept silent, a second apart. */
  async function addSilent(count: number): Promise<void> {
    const messages = Array.from({ length: count }, (_, i) =>
      messageOf(`old:${i}`, { occurredAt: new Date(RANGE.from.getTime() + i * 1_000).toISOString() }),
    );
    await insertMessages(database, messages, "suppressed", "orders");
  }

  it("goes through all of a range, and sums what it did", async () => {
    await addSilent(2_100);
    const { id } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    const none = { forgotten: [], bodiless: [], next: null };
    expect(await dispatcher.replay(id, RANGE)).toEqual({ created: 2_100, existing: 0, ...none });
    expect(await dispatcher.replay(id, RANGE)).toEqual({ created: 0, existing: 2_100, ...none });
  });

  it("ends where it was told to, and goes on from there", async () => {
    await addSilent(25);
    const { id } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    const first = await dispatcher.replay(id, { ...RANGE, maxMessages: 10 });
    expect(first).toMatchObject({ created: 10, next: expect.any(String) });
    const rest = await dispatcher.replay(id, { ...RANGE, after: first.next! });
    expect(rest).toMatchObject({ created: 15, existing: 0, next: null });
    const wrong = dispatcher.replay(id, { ...RANGE, after: "elsewhere" });
    await expect(wrong).rejects.toMatchObject({ name: "InvalidCursorError" });
  });

  it("of a range that is none, or to a webhook that is paused, is refused", async () => {
    const { id } = await dispatcher.addWebhook({ url: "https://a.example/", types: ["*"] });
    const { from, to } = RANGE;
    for (const range of [
      { from: to, to: from },
      { from, to: from },
      { from: new Date(Number.NaN), to },
      { from, to: new Date(Number.NaN) },
    ]) {
      await expect(dispatcher.replay(id, range)).rejects.toThrow(InvalidRangeError);
    }
    await dispatcher.pauseWebhook(id, "For now.");
    await expect(dispatcher.replay(id, RANGE)).rejects.toThrow(InactiveWebhookError);
    await expect(dispatcher.replay(id, RANGE)).rejects.toThrow("For now.");
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
    for (const { secrets } of [one, two]) {
      expect(secrets).toEqual([{ secret: expect.stringMatching(/^whsec_.{44}$/), expiresAt: null }]);
    }
    const given = {
      secrets: [secretOf(24), secretOf(64)],
      description: "a",
      onUnknown: "hold",
      types: ["a", "*", "a"],
    } as const;
    const three = await dispatcher.addWebhook({ ...WEBHOOK, ...given });
    const secrets = given.secrets.map((secret) => ({ secret, expiresAt: null }));
    expect(three).toMatchObject({ ...given, types: ["a", "*"], secrets });
    const byId = (a: Webhook, b: Webhook) => (a.id < b.id ? -1 : 1);
    expect(await dispatcher.listWebhooks()).toEqual([one, two, three].sort(byId));
  });

  it("that is refused is not stored, nor is a change that is", async () => {
    await expect(dispatcher.addWebhook({ ...WEBHOOK, types: [] })).rejects.toThrow(InvalidWebhookError);
    expect(await rowCounts()).toEqual(NOTHING);
    const before = await dispatcher.addWebhook(WEBHOOK);
    for (const wrong of [{ url: "ftp://a.example/" }, { ordering: "strict" }, { jitter: 2 }]) {
      await expect(dispatcher.updateWebhook(before.id, wrong as WebhookChanges)).rejects.toThrow(
        InvalidWebhookError,
      );
    }
    await expect(dispatcher.rotateSecret(before.id, { secret: "x" })).rejects.toThrow(InvalidWebhookError);
    expect(await dispatcher.getWebhook(before.id)).toEqual(before);
  });

  it("under an id that is given is added once", async () => {
    const id = "wh_mine" as WebhookId;
    const one = await dispatcher.addWebhook(WEBHOOK, id);
    expect(await dispatcher.addWebhook({ ...WEBHOOK, url: "https://other.example/" }, id)).toEqual(one);
    expect(one.id).toBe(id);
  });

  it("is changed, gets a new secret, is paused, activated and deleted", async () => {
    const { id, secrets } = await dispatcher.addWebhook(WEBHOOK);
    expect(
      await dispatcher.updateWebhook(id, { url: "https://OTHER.example", headers: { "X-A": "1" } }),
    ).toMatchObject({
      url: "https://other.example/",
      headers: { "x-a": "1" },
    });
    const rotated = await dispatcher.rotateSecret(id);
    expect(rotated.secrets.length).toBe(2);
    expect(rotated.secrets[1]!.secret).toBe(secrets[0]!.secret);
    const given = await dispatcher.rotateSecret(id, { secret: secretOf(32), overlapMs: 0 });
    expect(given.secrets).toEqual([{ secret: secretOf(32), expiresAt: null }]);
    expect(await dispatcher.pauseWebhook(id)).toMatchObject({ active: false, disabledReason: "Paused." });
    expect(await dispatcher.pauseWebhook(id, "Other.")).toMatchObject({ disabledReason: "Paused." });
    expect(await dispatcher.activateWebhook(id)).toMatchObject({ webhook: { active: true }, missed: 0 });
    expect(await dispatcher.activateWebhook(id, "deliver")).toMatchObject({
      webhook: { active: true },
      missed: 0,
    });
    await dispatcher.deleteWebhook(id);
    expect(await dispatcher.listWebhooks()).toEqual([]);
  });

  it("is listed by page", async () => {
    const ids: string[] = [];
    for (let i = 0; i < 3; i++) ids.push((await dispatcher.addWebhook(WEBHOOK)).id);
    ids.sort();
    const listed = async (page: object) => (await dispatcher.listWebhooks(page)).map(({ id }) => id);
    expect(await listed({ limit: 2 })).toEqual(ids.slice(0, 2));
    expect(await listed({ after: ids[1] })).toEqual(ids.slice(2));
  });

  const unknown: readonly (readonly [string, () => Promise<unknown>])[] = [
    ["getWebhook", () => dispatcher.getWebhook("wh_none")],
    ["updateWebhook", () => dispatcher.updateWebhook("wh_none", { description: "a" })],
    ["rotateSecret", () => dispatcher.rotateSecret("wh_none")],
    ["activateWebhook", () => dispatcher.activateWebhook("wh_none")],
    ["pauseWebhook", () => dispatcher.pauseWebhook("wh_none")],
    ["deleteWebhook", () => dispatcher.deleteWebhook("wh_none")],
    ["listDeliveries", () => dispatcher.listDeliveries("wh_none")],
    ["replay", () => dispatcher.replay("wh_none", { from: new Date(0), to: new Date(1) })],
  ];
  test.each(unknown)("that is not there is refused by %s", async (_method, ask) => {
    await expect(ask()).rejects.toThrow(UnknownWebhookError);
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
