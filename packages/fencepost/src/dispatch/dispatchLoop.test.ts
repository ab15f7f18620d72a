import { startProxy } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import type { Loop } from "../runner/runner.ts";
import { emittedMessage } from "../store/conformance/conformingStore.ts";
import { webhookOf } from "../store/conformance/deliverySteps.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { insertMessages } from "../store/postgres/messages.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { type DispatchLoopOptions, startDispatchLoop } from "./dispatchLoop.ts";

const HOUR_MS = 3_600_000;

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
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await emptyDeliveryTables(database);
});

function startLoop(options: Partial<DispatchLoopOptions> = {}): Loop {
  const log = createLog("silent");
  const loop = startDispatchLoop({ store: postgresStore(database), log, pollMs: 20, ...options });
  closing.push(loop.stop);
  return loop;
}

async function addWebhook(name: string): Promise<void> {
  await postgresStore(database).addWebhook(webhookOf(`wh_${name}`));
}

/** Stores the messages of these events as a projection does, in one transaction. */
async function emit(from: number, count: number): Promise<void> {
  const messages = Array.from({ length: count }, (_, i) => emittedMessage(from + i));
  await database.transaction((client) => insertMessages(client, messages, "emitted", "orders"));
}

async function deliveries(): Promise<number> {
  return (await database.query("SELECT FROM fencepost.deliveries")).rows.length;
}

const waitForDeliveries = (count: number): Promise<void> =>
  waitUntil(async () => (await deliveries()) === count, { what: `there are ${count} deliveries` });

it("makes a delivery for each message and webhook once, with others at the same work", async () => {
  for (const name of ["a", "b", "c"]) await addWebhook(name);
  let reported = 0;
  const onDispatched: DispatchLoopOptions["onDispatched"] = (report) => {
    reported += report.deliveries;
  };
  for (let i = 0; i < 3; i++) startLoop({ onDispatched });
  for (let i = 0; i < 10; i++) await emit(i * 25, 25);
  await waitForDeliveries(750);
  await waitUntil(async () => (await database.query("SELECT FROM fencepost.outbox")).rows.length === 0, {
    what: "the outbox is empty",
  });
  await waitUntil(() => reported >= 750, { what: "all are reported" });
  expect(reported).toBe(750);
  expect(await deliveries()).toBe(750);
});

it("offers a webhook that is added while it runs what came before and what comes after", async () => {
  await addWebhook("a");
  startLoop();
  await emit(0, 20);
  await waitForDeliveries(20);
  await addWebhook("b");
  await waitForDeliveries(40);
  await emit(20, 5);
  await waitForDeliveries(50);
});

it("does at once what it is woken for", async () => {
  await addWebhook("a");
  await emit(0, 1);
  const loop = startLoop({ pollMs: HOUR_MS });
  await waitForDeliveries(1);
  await emit(1, 1);
  loop.wake();
  await waitForDeliveries(2);
});

it("goes on after the database was away in the middle of its commit", async () => {
  const url = new URL(testDatabase.url);
  const proxy = await startProxy({ targetPort: Number(url.port) });
  closing.push(proxy.close);
  url.host = `127.0.0.1:${proxy.port}`;
  const through = openDatabase(url.href);
  closing.push(through.close);
  for (const name of ["a", "b"]) await addWebhook(name);
  const isFanOut = (chunk: Buffer, direction: string) =>
    direction === "up" && chunk.includes("fencepost.outbox");
  for (const deliver of [true, false]) {
    await emit(deliver ? 0 : 10, 10);
    proxy.cutWhen(isFanOut, { deliver });
    const loop = startLoop({ store: postgresStore(through) });
    await waitForDeliveries(deliver ? 20 : 40);
    await loop.stop();
  }
});
