// A project without a chain: producers count their own events, and everything behind that is as it is for a chain.
import { startEndpoint } from "@fencepost/simulator";
import { deriveEventId, sequenceToken } from "@fencepost/token";
import { pgTable, text } from "drizzle-orm/pg-core";
import { afterEach, expect, it } from "vitest";
import { z } from "zod";
import { serveApi } from "../../api/serveApi.ts";
import {
  createLog,
  createMetrics,
  defineConfig,
  defineProducer,
  defineProjection,
  openDatabase,
  openProducer,
  prepare,
  startEngine,
} from "../../index.ts";
import { createApiKey } from "../../store/postgres/apiKeys.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const BILLING = { stream: "billing", epoch: "20260101" };
const tokenOf = (n: bigint) => sequenceToken({ ...BILLING, n });

const invoices = pgTable("invoices", { token: text().primaryKey(), amount: text().notNull() });
const shape = z.object({ amount: z.string() });
const config = defineConfig({
  projections: [
    defineProjection({
      name: "invoices",
      version: 1,
      contracts: { billing: defineProducer({ stream: "billing", events: { "invoice.paid": shape } }) },
      tables: { invoices },
      messages: { "invoice.booked": shape },
      on: {
        "billing:invoice.paid": async ({ event, db, emit }) => {
          await db.insert(invoices).values({ token: event.token, amount: event.data.amount });
          emit("invoice.booked", event.data);
        },
      },
    }),
  ],
});

async function startInstallation() {
  const endpoint = await startEndpoint();
  const testDatabase = await createTestDatabase();
  const database = openDatabase(testDatabase.url);
  closing.push(endpoint.close, testDatabase.drop, database.close);
  const log = createLog("silent");
  const metrics = createMetrics();

  async function run() {
    const signal = AbortSignal.timeout(30_000);
    await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal });
    const engine = await startEngine({ database, config, log, metrics, deliver: { allowInsecure: true } });
    const { source } = config;
    const server = await serveApi({
      ...engine,
      source,
      database,
      metrics,
      log,
      host: "127.0.0.1",
      port: 0,
    });
    let isRunning = true;
    const stop = async () => {
      if (!isRunning) return;
      isRunning = false;
      await server.close();
      await engine.stop();
    };
    closing.push(stop);
    return { engine, url: server.url, stop };
  }

  const running = await run();
  const { key } = await createApiKey(database, "test");
  async function call(url: string, route: string, body?: object): Promise<{ status: number; body: unknown }> {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(`${url}${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      ...(body && { body: JSON.stringify(body) }),
    });
    return { status: response.status, body: await response.json() };
  }
  return { endpoint, database, run, running, call };
}

it("events of producers are stored, projected, sent and told, without a source, and again after a stop", async () => {
  const { endpoint, database, run, running, call } = await startInstallation();
  const { url, engine } = running;
  expect(await call(url, "GET /ready")).toEqual({ status: 200, body: { status: "ok" } });
  expect(await call(url, "GET /health")).toMatchObject({ status: 200 });
  expect(await call(url, "GET /v1/streams")).toEqual({ status: 200, body: { items: [] } });
  await engine.dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });

  const sent = { ...BILLING, n: "1", event_type: "invoice.paid", data: { amount: "12" } };
  expect(await call(url, "POST /v1/events", sent)).toMatchObject({ body: { fencing_token: tokenOf(1n) } });
  const producer = openProducer(database, BILLING);
  await producer.append([{ n: 2n, type: "invoice.paid", data: { amount: 7n } }]);
  await endpoint.waitFor(4, { timeoutMs: 30_000 });

  // While nothing runs, the library still stores; what it stored is then handled.
  await running.stop();
  await producer.append([{ n: 3n, type: "invoice.paid", data: { amount: 1n } }]);
  const again = await run();
  await endpoint.waitFor(6, { timeoutMs: 30_000 });

  const numbers = [1n, 2n, 3n].map(tokenOf);
  const expected = numbers.flatMap((token) =>
    ["invoice.paid", "invoice.booked"].map((type) => deriveEventId(token, type)),
  );
  expect(endpoint.requests.map(({ headers }) => headers["webhook-id"]).sort()).toEqual(expected.sort());
  const { rows } = await database.query("SELECT * FROM invoices.invoices ORDER BY token");
  expect(rows).toEqual(["12", "7", "1"].map((amount, i) => ({ token: numbers[i], amount })));

  const ended = "SELECT FROM fencepost.deliveries WHERE state = 'success'";
  await waitUntil(async () => (await database.query(ended)).rows.length === 6, { what: "all is recorded" });
  expect(await call(again.url, "GET /v1/streams")).toMatchObject({
    body: {
      items: [
        { ...BILLING, next_ledger: null, latest_ledger: null, lag: null, seq: "3", halted: null, gaps: [] },
      ],
    },
  });
  expect(await call(again.url, "GET /v1/projections")).toMatchObject({
    body: { items: [{ name: "invoices", stream: "billing", cursor: "3", seq: "3", stopped: null }] },
  });
  expect(await call(again.url, "GET /ready")).toMatchObject({ status: 200 });
  expect(await call(again.url, "GET /v1/audit?from=1&to=2")).toMatchObject({
    status: 404,
    body: { detail: "This process reads no source." },
  });
});

it("is not ready once a handler has stopped at an event of a producer, and says at which", async () => {
  const { database, running, call } = await startInstallation();
  await database.query("ALTER TABLE invoices_v1.invoices ADD CONSTRAINT few CHECK (amount <> '13')");
  await openProducer(database, BILLING).append([{ n: 1n, type: "invoice.paid", data: { amount: 13n } }]);
  await waitUntil(async () => (await call(running.url, "GET /ready")).status === 503, {
    what: "readiness tells that the projection stopped",
    timeoutMs: 30_000,
  });
  expect(await call(running.url, "GET /ready")).toMatchObject({
    body: { reasons: [`The projection invoices v1 has stopped at ${tokenOf(1n)}.`] },
  });
});
