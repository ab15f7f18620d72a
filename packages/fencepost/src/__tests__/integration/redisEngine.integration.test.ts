// The engine with its deliveries in Redis, behind the HTTP interface: one line for both stores.
import { startChain, startEndpoint, startRpc } from "@fencepost/simulator";
import { afterEach, expect, it } from "vitest";
import { serveApi } from "../../api/serveApi.ts";
import {
  createLog,
  createMetrics,
  defineConfig,
  openDatabase,
  prepare,
  startEngine,
  stellarRpc,
} from "../../index.ts";
import { createApiKey } from "../../store/postgres/apiKeys.ts";
import { readStatus } from "../../store/postgres/status.ts";
import { lockAssets, poolsProjection } from "../support/pools.ts";
import { hasRedis, startRedis } from "../support/redisServer.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const EVENTS = 40;
const SECRETS_KEY = Buffer.alloc(32, 5).toString("base64");

async function startInstallation() {
  const chain = startChain();
  lockAssets(chain, EVENTS);
  const rpc = await startRpc({ chain });
  const endpoint = await startEndpoint();
  const redis = await startRedis();
  const testDatabase = await createTestDatabase();
  const database = openDatabase(testDatabase.url);
  closing.push(rpc.close, endpoint.close, redis.stop, testDatabase.drop, database.close);
  const config = defineConfig({
    source: stellarRpc({ network: "testnet", urls: rpc.url, pollMs: 50 }),
    projections: [poolsProjection()],
    deliveries: { redis: redis.url },
  });
  const signal = AbortSignal.timeout(30_000);
  await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal });
  const log = createLog("silent");
  const metrics = createMetrics();
  const engine = await startEngine({
    database,
    config,
    log,
    metrics,
    secretsKey: SECRETS_KEY,
    deliver: { allowInsecure: true },
  });
  closing.push(engine.stop);
  const server = await serveApi({
    ...engine,
    source: config.source,
    database,
    metrics,
    log,
    host: "127.0.0.1",
    port: 0,
  });
  closing.push(server.close);
  const { key } = await createApiKey(database, "test");

  async function call<Body>(route: string, body?: object): Promise<{ status: number; body: Body }> {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(`${server.url}${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      ...(body && { body: JSON.stringify(body) }),
    });
    return { status: response.status, body: (await response.json()) as Body };
  }
  return { endpoint, redis, database, engine, call, url: server.url };
}

interface TraceBody {
  readonly token: string | null;
  readonly event: object | null;
  readonly messages: readonly {
    readonly type: string | null;
    readonly deliveries: readonly {
      readonly id: string;
      readonly state: string;
      readonly attempt_list: object[];
    }[];
  }[];
}

it.skipIf(!hasRedis)(
  "messages of an engine and of callers are delivered from Redis, and traced over HTTP",
  async () => {
    const { endpoint, redis, database, engine, call, url } = await startInstallation();
    const { body: webhook } = await call<{ id: string; secrets: string[] }>("POST /v1/webhooks", {
      url: endpoint.url,
      types: ["*"],
    });
    await waitUntil(
      async () => (await database.query("SELECT FROM fencepost.messages")).rows.length === EVENTS,
      {
        what: "every event has its message",
      },
    );
    // The simulated chain lives in the past, and a webhook is offered what happens after it was made.
    const range = { from: "2000-01-01T00:00:00Z", to: "2100-01-01T00:00:00Z" };
    const replayed = await call(`POST /v1/webhooks/${webhook.id}/replay`, range);
    expect(replayed.body).toMatchObject({ created: EVENTS, existing: 0, next_cursor: null });
    await endpoint.waitFor(EVENTS, { timeoutMs: 30_000 });
    const sent = endpoint.requests.map(({ headers }) => headers["webhook-id"]);
    expect(new Set(sent).size).toBe(EVENTS);

    const event = { event_type: "order.paid", event_id: "order_1", data: { n: 1 } };
    expect((await call("POST /v1/events", event)).body).toMatchObject({ matched: 1, existing: [] });
    await waitUntil(
      async () =>
        (await call<TraceBody>("GET /v1/trace/order_1")).body.messages[0]?.deliveries[0]?.state === "success",
      { what: "the caller's event is delivered" },
    );
    const traced = await call<TraceBody>("GET /v1/trace/order_1");
    expect(traced.body.messages).toMatchObject([
      { type: null, deliveries: [{ attempt_list: [{ outcome: "delivered" }] }] },
    ]);
    const token = JSON.parse(endpoint.requests[0]?.body.toString() ?? "").fencing_token as string;
    const byToken = await call<TraceBody>(`GET /v1/trace/${token}`);
    expect(byToken.body).toMatchObject({
      token,
      event: { token },
      messages: [{ type: "pool.assets_locked" }],
    });
    const [delivery] = byToken.body.messages[0]?.deliveries ?? [];
    expect((await call(`GET /v1/trace/${delivery?.id}`)).body).toEqual(byToken.body);

    const { rows } = await database.query(
      "SELECT FROM fencepost.deliveries UNION ALL SELECT FROM fencepost.webhooks",
    );
    expect(rows).toEqual([]);
    const { store } = engine.deliveries;
    await waitUntil(async () => (await store.countDeliveries()).success === EVENTS + 1, {
      what: "every outcome is on record",
    });
    const paused = await call<{ id: string }>("POST /v1/webhooks", { url: endpoint.url, types: ["*"] });
    await call(`POST /v1/webhooks/${paused.body.id}/pause`, {});
    const status = await readStatus(database, store);
    expect(status.deliveries).toEqual({
      pending: 0,
      sending: 0,
      success: EVENTS + 1,
      failed: 0,
      in_doubt: 0,
    });
    expect(status.webhooks.find(({ id }) => id === webhook.id)).toMatchObject({ waiting: 0, needsPerson: 0 });
    const metrics = await (await fetch(`${url}/metrics`)).text();
    expect(metrics).toMatch(/^fencepost_webhooks_disabled 1$/m);
    expect(metrics).toMatch(/^fencepost_deliveries_in_doubt 0$/m);
    expect(metrics).toMatch(/^fencepost_deliveries_due_lag_seconds 0$/m);
    expect(metrics).toMatch(/^fencepost_outbox_messages 0$/m);
    expect((await call("GET /ready")).status).toBe(200);
    await redis.kill();
    await waitUntil(async () => (await call("GET /ready")).status === 503, {
      what: "readiness tells that Redis is away",
      timeoutMs: 30_000,
    });
    expect(await call("GET /v1/webhooks")).toMatchObject({
      status: 503,
      body: { type: "/docs#unavailable" },
    });
    await redis.restart();
    await waitUntil(async () => (await call("GET /ready")).status === 200, {
      what: "it is ready again",
      timeoutMs: 30_000,
    });
  },
);
