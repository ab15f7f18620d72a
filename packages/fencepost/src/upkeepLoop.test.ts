// biome-ignore-all lint/style/noNonNullAssertion: this is test code
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { emptyDeliveryTables } from "./__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "./__tests__/support/testDatabase.ts";
import { waitUntil } from "./__tests__/support/waitUntil.ts";
import { createLog } from "./observe/log.ts";
import { messageOf } from "./store/conformance/conformingStore.ts";
import {
  DELIVERED,
  EVERYTHING,
  ended,
  GONE,
  LEASE_MS,
  webhookOf,
} from "./store/conformance/deliverySteps.ts";
import type { AttemptResult, DeliveryStore } from "./store/deliveryStore.ts";
import { type Database, openDatabase } from "./store/postgres/database.ts";
import { migrate } from "./store/postgres/migrate.ts";
import { postgresStore } from "./store/postgres/postgresStore.ts";
import type { WebhookId } from "./store/webhook.ts";
import { startUpkeepLoop, type UpkeepOptions } from "./upkeepLoop.ts";

const DAY_MS = 86_400_000;

let testDatabase: TestDatabase;
let database: Database;
let store: DeliveryStore<never>;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
  store = postgresStore(database);
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

function startLoop(options: Partial<UpkeepOptions> = {}): void {
  const log = createLog("silent");
  const loop = startUpkeepLoop({
    store,
    log,
    now: () => new Date(),
    retentionMs: 30 * DAY_MS,
    pollMs: 20,
    ...options,
  });
  closing.push(loop.stop);
}

/** Sends what is due, with this result. */
async function attemptAll(result: AttemptResult): Promise<void> {
  for (const { fence, id } of await store.claim(EVERYTHING)) {
    const [recorded] = await store.recordAttempts(fence, [id], LEASE_MS);
    await store.finish(fence, [ended(recorded!, result)]);
  }
}

async function addDisabledWebhook(): Promise<WebhookId> {
  const { id } = await store.addWebhook(webhookOf("wh_gone"));
  await store.dispatch(messageOf("order:1"), { only: id });
  await attemptAll(GONE);
  expect((await store.listUntold()).length).toBe(1);
  return id;
}

it("tells who names the type that a webhook was disabled, once, also where a process died before it was noted", async () => {
  const { id: owner } = await store.addWebhook(webhookOf("wh_owner", { types: ["webhook.disabled"] }));
  const { id: other } = await store.addWebhook(webhookOf("wh_other"));
  const gone = await addDisabledWebhook();
  let notes = 0;
  const dying: UpkeepOptions["store"] = {
    ...store,
    async markTold(webhook) {
      notes++;
      if (notes < 3) throw new Error("killed");
      await store.markTold(webhook);
    },
  };
  startLoop({ store: dying });
  await waitUntil(async () => (await store.listUntold()).length === 0, { what: "it is told" });
  const { disabledReason, disabledAt } = (await store.findWebhook(gone))!;
  const [delivery, ...more] = await store.listDeliveries(owner, {}, { limit: 10 });
  expect(more).toEqual([]);
  expect(delivery!.eventId).toMatch(/^op_[0-9a-f]{32}$/);
  expect(await store.listDeliveries(other, {}, { limit: 10 })).toEqual([]);
  const [claimed] = await store.claim(EVERYTHING);
  const [attempt] = await store.recordAttempts(claimed!.fence, [claimed!.id], LEASE_MS);
  expect(JSON.parse(attempt!.body.toString())).toEqual({
    type: "webhook.disabled",
    event_id: delivery!.eventId,
    timestamp: disabledAt!.toISOString(),
    data: { webhook_id: gone, reason: disabledReason, disabled_at: disabledAt!.toISOString() },
  });
});

it("ends what deleted webhooks left", async () => {
  const { id } = await store.addWebhook(webhookOf("wh_a"));
  const { created } = await store.dispatch(messageOf("order:1"), {});
  await store.deleteWebhook(id);
  startLoop();
  await waitUntil(async () => (await store.findDelivery(created[0]!.id))?.state === "failed", {
    what: "it is failed",
  });
});

it("removes what ended longer ago than it is kept, by the clock that it is given", async () => {
  await store.addWebhook(webhookOf("wh_a"));
  const { created } = await store.dispatch(messageOf("order:1"), {});
  await attemptAll(DELIVERED);
  let days = 29;
  let looked = 0;
  const now = (): Date => {
    looked++;
    return new Date(Date.now() + days * DAY_MS);
  };
  startLoop({ now });
  await waitUntil(() => looked > 2, { what: "it has looked twice" });
  expect(await store.findDelivery(created[0]!.id)).toBeDefined();
  days = 31;
  await waitUntil(async () => (await store.findDelivery(created[0]!.id)) === undefined, {
    what: "it is gone",
  });
});
