import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from "vitest";
import { emptyDeliveryTables } from "./__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "./__tests__/support/testDatabase.ts";
import { waitUntil } from "./__tests__/support/waitUntil.ts";
import { LeaseTooShortError } from "./deliver/deliverLoop.ts";
import { createDispatcher, type Dispatcher, type DispatcherOptions, isResolved } from "./dispatcher.ts";
import { createLog } from "./observe/log.ts";
import type { Delivery, DeliveryState } from "./store/deliveryStore.ts";
import { type Database, openDatabase } from "./store/postgres/database.ts";
import { migrate } from "./store/postgres/migrate.ts";
import { postgresStore } from "./store/postgres/postgresStore.ts";
import type { PostgresTransaction } from "./store/postgres/transactions.ts";

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

const closing: (() => Promise<unknown>)[] = [];
let endpoint: Endpoint;
beforeEach(async () => {
  endpoint = await startEndpoint();
});
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await endpoint.close();
  await emptyDeliveryTables(database);
});

const HOUR_MS = 3_600_000;

/** It looks for nothing by itself: what is sent in a test was woken for. */
function create(
  options: Partial<DispatcherOptions<PostgresTransaction>> = {},
): Dispatcher<PostgresTransaction> {
  const dispatcher = createDispatcher({
    store: postgresStore(database),
    log: createLog("silent"),
    allowInsecure: true,
    ...options,
    deliver: { pollMs: HOUR_MS, ...options.deliver },
  });
  closing.push(dispatcher.stop);
  return dispatcher;
}

async function untilState(
  dispatcher: Dispatcher<never>,
  id: string,
  state: DeliveryState,
): Promise<Delivery> {
  await waitUntil(async () => (await dispatcher.getDelivery(id)).state === state, {
    what: `${id} is ${state}`,
  });
  return dispatcher.getDelivery(id);
}

const EVENT = { event_type: "order.paid", event_id: "order_1", data: { amount: "1" } };

async function dispatched(dispatcher: Dispatcher<never>, event: object = {}): Promise<Delivery> {
  const { created } = await dispatcher.dispatch({ ...EVENT, ...event });
  expect(created).toHaveLength(1);
  return created[0] as Delivery;
}

it("sends what is dispatched, at once, from start to stop", async () => {
  const dispatcher = create();
  await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  const early = await dispatched(dispatcher, { event_id: "before_start" });
  dispatcher.start();
  await untilState(dispatcher, early.id, "success");
  const { id } = await dispatched(dispatcher);
  await untilState(dispatcher, id, "success");
  await dispatcher.stop();
  const late = await dispatched(dispatcher, { event_id: "after_stop" });
  dispatcher.start();
  expect(await dispatcher.attempt(late.id)).toMatchObject({ state: "pending", attempts: 0 });
  expect(endpoint.requests.map(({ headers }) => headers["webhook-id"])).toEqual(["before_start", "order_1"]);
});

it("attempts one delivery when asked to, also without start, and tells how it stands then", async () => {
  const dispatcher = create();
  await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  const { id } = await dispatched(dispatcher);
  endpoint.next({ status: 503 });
  expect(await dispatcher.attempt(id)).toMatchObject({ state: "pending", attempts: 1, lastStatus: 503 });
  expect(await dispatcher.attempt(id)).toMatchObject({ state: "success", attempts: 2 });
  expect(await dispatcher.attempt(id)).toMatchObject({ state: "success", attempts: 2 });
  await expect(dispatcher.attempt("dlv_999")).rejects.toThrow("There is no delivery dlv_999");
});

it("any number may send at once, and each delivery is sent by one of them", async () => {
  const dispatchers = [create(), create(), create()];
  const [first] = dispatchers as [Dispatcher<never>];
  await first.addWebhook({ url: endpoint.url, types: ["*"] });
  for (const dispatcher of dispatchers) dispatcher.start();
  await Promise.all(
    Array.from({ length: 60 }, (_, i) =>
      (dispatchers[i % 3] as Dispatcher<never>).dispatch({ ...EVENT, event_id: `order_${i}` }),
    ),
  );
  await endpoint.waitFor(60);
  await waitUntil(
    async () => (await database.query("SELECT FROM fencepost.delivery_queue")).rows.length === 0,
    {
      what: "nothing is left to send",
    },
  );
  const sent = endpoint.requests.map(({ headers }) => headers["webhook-id"]);
  expect(sent).toHaveLength(60);
  expect(new Set(sent).size).toBe(60);
});

it("what is redelivered, resolved, tested or activated is sent at once by whoever was asked", async () => {
  const dispatcher = create();
  const { id: webhookId } = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  dispatcher.start();
  const { id } = await dispatched(dispatcher);
  await untilState(dispatcher, id, "success");
  await dispatcher.redeliver(id);
  await endpoint.waitFor(2);
  await untilState(dispatcher, id, "success");

  endpoint.next({ status: 404 });
  const failed = await dispatched(dispatcher, { event_id: "order_2" });
  await untilState(dispatcher, failed.id, "failed");
  expect(isResolved(await dispatcher.resolve(failed.id, "resend"), "resend")).toBe(true);
  await untilState(dispatcher, failed.id, "success");
  expect(isResolved(await dispatcher.resolve(failed.id, "skip"), "skip")).toBe(false);

  await untilState(dispatcher, (await dispatcher.sendTest(webhookId)).id, "success");
  const waiting = await pausedWith(dispatcher, webhookId);
  await dispatcher.activateWebhook(webhookId);
  await untilState(dispatcher, waiting.id, "success");
});

/** A delivery that waits because its webhook was paused. */
async function pausedWith(dispatcher: Dispatcher<never>, webhookId: string): Promise<Delivery> {
  endpoint.next({ status: 503 });
  const delivery = await dispatched(dispatcher, { event_id: "order_3" });
  const wasTried = async () => {
    const { attempts, state } = await dispatcher.getDelivery(delivery.id);
    return attempts === 1 && state === "pending";
  };
  await waitUntil(wasTried, { what: "it was tried, and waits to be tried again" });
  await dispatcher.pauseWebhook(webhookId);
  await database.query("UPDATE fencepost.delivery_queue SET next_at = now()");
  return delivery;
}

it("who names the type is told, once, that a webhook was disabled and why", async () => {
  const dispatcher = create();
  const { id } = await dispatcher.addWebhook({ url: endpoint.url, types: ["order.paid"] });
  const owner = await startEndpoint();
  closing.push(owner.close);
  await dispatcher.addWebhook({ url: owner.url, types: ["webhook.disabled"] });
  await dispatcher.addWebhook({ url: owner.url, types: ["*"] });
  endpoint.next({ status: 410 });
  const { created } = await dispatcher.dispatch(EVENT);
  const delivery = created.find(({ webhookId }) => webhookId === id);
  await dispatcher.attempt(delivery?.id ?? "");
  const { disabledReason, disabledAt } = await dispatcher.getWebhook(id);
  expect(disabledReason).toContain("410");
  // Two processes find it at the same time.
  const other = create();
  dispatcher.start();
  other.start();
  const isTold = async () =>
    (await database.query("SELECT FROM fencepost.webhooks WHERE NOT told")).rows.length === 0;
  await waitUntil(isTold, { what: "it is told" });
  await waitUntil(() => owner.requests.length === 2, { what: "the event and the news have come" });
  const news = owner.requests
    .map(({ body }) => JSON.parse(body.toString()))
    .find(({ type }) => type !== "order.paid");
  expect(news).toMatchObject({
    type: "webhook.disabled",
    event_id: expect.stringMatching(/^op_[0-9a-f]{32}$/),
    timestamp: disabledAt?.toISOString(),
    data: { webhook_id: id, reason: disabledReason, disabled_at: disabledAt?.toISOString() },
  });
  const { rows } = await database.query("SELECT FROM fencepost.deliveries WHERE event_id = $1", [
    news.event_id,
  ]);
  expect(rows).toHaveLength(1);
});

it("what a deleted webhook left is failed, and what has been kept for long enough goes", async () => {
  const dispatcher = create({ retentionMs: HOUR_MS });
  const { id: webhookId } = await dispatcher.addWebhook({ url: endpoint.url, types: ["a.b"] });
  const waiting = await dispatched(dispatcher, { event_type: "a.b" });
  await dispatcher.pauseWebhook(webhookId); // so that it is not sent before its webhook is deleted
  await dispatcher.addWebhook({ url: endpoint.url, types: ["c.d"] });
  const old = await dispatched(dispatcher, { event_type: "c.d", event_id: "old_1" });
  await dispatcher.attempt(old.id);
  await database.query(
    "UPDATE fencepost.deliveries SET finished_at = now() - interval '2 hours' WHERE event_id = 'old_1'",
  );
  dispatcher.start();
  await dispatcher.deleteWebhook(webhookId);
  await untilState(dispatcher, waiting.id, "failed");
  await waitUntil(
    async () =>
      (await database.query("SELECT FROM fencepost.deliveries WHERE event_id = 'old_1'")).rows.length === 0,
    { what: "the old delivery is gone" },
  );
});

it("a lease that does not cover the time-out is an error before anything starts", () => {
  expect(() => create({ deliver: { timeoutMs: 20_000, leaseMs: 20_000 } })).toThrow(LeaseTooShortError);
});
