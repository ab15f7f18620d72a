import { readdir, readFile } from "node:fs/promises";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { fetchListener, listen, post, serve, type TestServer } from "./__tests__/httpServer.ts";
import { type PostgresFixture, postgresFixture } from "./__tests__/postgresFixture.ts";
import { SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { WebhookRefusedError } from "./index.ts";

const EXAMPLES = new URL("./__tests__/examples/", import.meta.url);

let fixture: PostgresFixture;

beforeAll(async () => {
  fixture = await postgresFixture();
  await fixture.pool.query("CREATE TABLE locks (token text, amount numeric)");
  vi.stubEnv("DATABASE_URL", fixture.url);
  vi.stubEnv("WEBHOOK_SECRET", SECRET);
});

afterAll(async () => {
  await (await import("./__tests__/examples/receiver.ts")).pool.end();
  vi.unstubAllEnvs();
  await fixture.close();
});

test("the README shows every example as it is run here", async () => {
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const shown = [...readme.matchAll(/```ts\n\/\/ (\S+)\n(.*?)```/gs)].map(([, name, code]) => [name, code]);
  const names = (await readdir(EXAMPLES)).sort();
  expect(shown.map(([name]) => name).sort()).toEqual(names);
  expect(readme.match(/```ts/g)).toHaveLength(names.length);
  for (const [name = "", code] of shown) {
    expect(code).toBe(await readFile(new URL(name, EXAMPLES), "utf8"));
  }
});

const mounted: Record<string, () => Promise<TestServer>> = {
  Express: async () => serve((await import("./__tests__/examples/mount.ts")).app),
  "node:http": async () => listen((await import("./__tests__/examples/mount.ts")).server),
  Fetch: async () => serve(fetchListener((await import("./__tests__/examples/mount.ts")).POST)),
  "one's own transaction": async () => serve(fetchListener(await ownTransactionRoute())),
};

test.each(Object.keys(mounted))(
  "the example for %s writes each event once, and nothing unsigned",
  async (name) => {
    const server = await mounted[name]!();
    try {
      const now = Math.floor(Date.now() / 1_000); // the examples use the clock of the machine
      const request = signedRequest({ id: `evt_${Object.keys(mounted).indexOf(name)}`, timestamp: now });
      const before = await locks();
      for (let i = 0; i < 3; i++) expect((await post(server.url, request)).status).toBe(200);
      expect(await locks()).toBe(before + 1);
      expect((await post(server.url, { ...request, headers: {} })).status).toBe(400);
      expect((await post(server.url, { ...request, body: Buffer.from("{}") })).status).toBe(401);
      expect(await locks()).toBe(before + 1);
    } finally {
      await server.close();
    }
  },
);

async function ownTransactionRoute() {
  const { receive } = await import("./__tests__/examples/ownTransaction.ts");
  return async (request: Request): Promise<Response> => {
    const client = await fixture.pool.connect();
    try {
      await receive(request, client);
      return Response.json({});
    } catch (error) {
      return Response.json({}, { status: error instanceof WebhookRefusedError ? error.status : 500 });
    } finally {
      client.release();
    }
  };
}

async function locks(): Promise<number> {
  const { rows } = await fixture.pool.query(
    "SELECT count(*)::int FROM locks WHERE amount = 170141183460469231731687303715884105727",
  );
  return rows[0]?.count as number;
}
