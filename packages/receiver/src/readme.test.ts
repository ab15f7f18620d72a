import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { asToken } from "@fencepost/token";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { fetchListener, listen, post, serve, type TestServer } from "./__tests__/httpServer.ts";
import { type PostgresFixture, postgresFixture } from "./__tests__/postgresFixture.ts";
import { hasRedis, startRedis } from "./__tests__/redisServer.ts";
import { SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { fetchHandler } from "./index.ts";

const EXAMPLES = new URL("./__tests__/examples/", import.meta.url);
const PAGES = ["../README.md", "../../../docs/receiver.md"].map((page) => new URL(page, import.meta.url));

/** The clock of the machine, which the examples use, in Unix seconds. */
const now = () => Math.floor(Date.now() / 1_000);

let fixture: PostgresFixture;
let folder: string;

beforeAll(async () => {
  fixture = await postgresFixture();
  folder = await mkdtemp(join(tmpdir(), "fencepost-readme-"));
  await fixture.pool.query("CREATE TABLE locks (token text, amount numeric)");
  await fixture.pool.query("CREATE TABLE prices (pool_id text PRIMARY KEY, price numeric)");
  vi.stubEnv("DATABASE_URL", fixture.url);
  vi.stubEnv("WEBHOOK_SECRET", SECRET);
  vi.stubEnv("SQLITE_PATH", join(folder, "app.db"));
});

afterAll(async () => {
  await (await import("./__tests__/examples/receiver.ts")).pool.end();
  await (await import("./__tests__/examples/sqlite.ts")).inbox.close();
  vi.unstubAllEnvs();
  await fixture.close();
  await rm(folder, { recursive: true, force: true });
});

test("the README and the docs show every example as it is run here", async () => {
  const text = (await Promise.all(PAGES.map((page) => readFile(page, "utf8")))).join("\n");
  const shown = [...text.matchAll(/```ts\n\/\/ (\S+)\n(.*?)```/gs)].map(([, name, code]) => [name, code]);
  const names = (await readdir(EXAMPLES)).sort();
  expect(shown.map(([name]) => name).sort()).toEqual(names);
  expect(text.match(/```ts/g)).toHaveLength(names.length);
  for (const [name = "", code] of shown) {
    expect(code).toBe(await readFile(new URL(name, EXAMPLES), "utf8"));
  }
});

const mounted: Record<string, () => Promise<TestServer>> = {
  Express: async () => serve((await import("./__tests__/examples/mount.ts")).app),
  Fastify: async () => {
    const { fastifyApp } = await import("./__tests__/examples/mount.ts");
    await fastifyApp.ready();
    return serve((request, response) => fastifyApp.routing(request, response));
  },
  "node:http": async () => listen((await import("./__tests__/examples/mount.ts")).server),
  Fetch: async () => serve(fetchListener((await import("./__tests__/examples/mount.ts")).POST)),
  "one's own transaction": async () => serve(fetchListener(await ownTransactionRoute())),
};

describe.each(Object.keys(mounted))("the example for %s", (name) => {
  test("writes each event once, nothing unsigned, and nothing that was fenced off", async () => {
    const server = await mounted[name]!();
    try {
      const id = `evt_${Object.keys(mounted).indexOf(name)}`;
      const request = signedRequest({ id, timestamp: now() });
      const before = await locks();
      for (let i = 0; i < 3; i++) expect((await post(server.url, request)).status).toBe(200);
      expect(await locks()).toBe(before + 1);
      expect((await post(server.url, { ...request, headers: {} })).status).toBe(400);
      expect((await post(server.url, { ...request, body: Buffer.from("{}") })).status).toBe(401);

      const late = signedRequest({ id: `${id}_late`, timestamp: now() });
      const events = [id, `${id}_late`].map((event_id) => ({ event_id, before: now() }));
      const body = JSON.stringify({ type: "webhook.receipt_query", events });
      const query = signedRequest({ id: "query_1", body, timestamp: now() });
      expect(await post(server.url, query)).toMatchObject({
        status: 200,
        json: { events: [{ status: "received" }, { status: "fenced" }] },
      });
      expect(await post(server.url, late)).toMatchObject({
        status: 409,
        json: { error: "fenced" },
        fenced: "true",
      });
      expect(await locks()).toBe(before + 1);
    } finally {
      await server.close();
    }
  });
});

async function ownTransactionRoute() {
  const { receive } = await import("./__tests__/examples/ownTransaction.ts");
  return async (request: Request): Promise<Response> => {
    const client = await fixture.pool.connect();
    try {
      return await receive(request, client);
    } finally {
      client.release();
    }
  };
}

describe("the example", () => {
  test("for Drizzle writes each event once", async () => {
    const { record } = await import("./__tests__/examples/drizzle.ts");
    const { receiver } = await import("./__tests__/examples/receiver.ts");
    const message = receiver.verify(signedRequest({ id: "evt_drizzle", timestamp: now() }));
    const before = await locks();
    for (let i = 0; i < 2; i++) await record(message);
    expect(await locks()).toBe(before + 1);
  });

  test("for state that is replaced keeps the latest, whatever comes last", async () => {
    const { setPrice } = await import("./__tests__/examples/latest.ts");
    const { receiver } = await import("./__tests__/examples/receiver.ts");
    for (const n of [1, 3, 2]) {
      const message = receiver.verify(signedRequest({ id: `evt_price_${n}`, timestamp: now() }));
      const fencingToken = asToken(`billing-20260101-${String(n).padStart(20, "0")}`);
      const data = { pool_id: "pool_1", price: String(n) };
      await receiver.handle({ ...message, fencingToken, data }, setPrice);
    }
    const { rows } = await fixture.pool.query("SELECT price::text FROM prices");
    expect(rows).toEqual([{ price: "3" }]);
  });

  test("for pruning forgets what is old, and nothing else", async () => {
    const { prune } = await import("./__tests__/examples/prune.ts");
    const { receiver } = await import("./__tests__/examples/receiver.ts");
    for (const id of ["evt_old", "evt_new"]) {
      await receiver.handle(signedRequest({ id, timestamp: now() }), () => {});
    }
    const age =
      "UPDATE fencepost_inbox SET attempted_at = now() - interval '31 days' WHERE event_id = 'evt_old'";
    await fixture.pool.query(age);
    expect(await prune()).toEqual({ removed: 1, complete: true });
  });

  test("for SQLite writes each event once", async () => {
    const { receiver, recordLock } = await import("./__tests__/examples/sqlite.ts");
    const database = new DatabaseSync(join(folder, "app.db"));
    database.exec("CREATE TABLE locks (token TEXT, amount TEXT)");
    const route = fetchHandler(receiver, recordLock);
    for (let i = 0; i < 2; i++) {
      const request = new Request("https://customer.example/webhooks", {
        method: "POST",
        ...signedRequest({ timestamp: now() }),
      });
      expect((await route(request)).status).toBe(200);
    }
    expect(database.prepare("SELECT * FROM locks").all()).toHaveLength(1);
    database.close();
  });

  test.skipIf(!hasRedis)("for Redis handles each event once", async () => {
    const server = await startRedis();
    vi.stubEnv("REDIS_URL", server.path);
    const { client, receiver } = await import("./__tests__/examples/redis.ts");
    try {
      let runs = 0;
      const request = signedRequest({ timestamp: now() });
      for (let i = 0; i < 2; i++) await receiver.handle(request, () => ++runs);
      expect(runs).toBe(1);
    } finally {
      client.disconnect();
      await server.stop();
    }
  });
});

async function locks(): Promise<number> {
  const { rows } = await fixture.pool.query(
    "SELECT count(*)::int FROM locks WHERE amount = 170141183460469231731687303715884105727",
  );
  return rows[0]?.count as number;
}
