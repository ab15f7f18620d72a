import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { scv, startChain, startEndpoint, startRpc } from "@fencepost/simulator";
import { Client } from "pg";
import { afterEach, expect, it, vi } from "vitest";
import { runCli, startCli } from "../__tests__/support/cliProcess.ts";
import { createPoolProject, createTestFolder, type TestFolder } from "../__tests__/support/cliProject.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { createTestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import {
  createDispatcher,
  type Database,
  migrate,
  openDatabase,
  openProducer,
  postgresStore,
  stellarRpc,
} from "../index.ts";
import { registerStream } from "../ingest/registerStream.ts";
import { processIdentity } from "../store/embedded/processIdentity.ts";

// Each process loads the whole of the engine: on a busy machine that takes its time.
vi.setConfig({ testTimeout: 180_000 });

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const NOBODY_LISTENS = "http://127.0.0.1:9";

async function startNode(settings: Partial<Parameters<typeof startRpc>[0]> = {}) {
  const chain = startChain();
  lockAssets(chain, 5);
  const rpc = await startRpc({ chain, ...settings });
  closing.push(rpc.close);
  return { chain, rpc };
}

async function startProject(rpcUrl: string): Promise<TestFolder> {
  const project = await createPoolProject(rpcUrl);
  closing.push(project.remove);
  return project;
}

async function emptyDatabase(): Promise<string> {
  const database = await createTestDatabase();
  closing.push(database.drop);
  return database.url;
}

async function openOn(url: string): Promise<Database> {
  const database = openDatabase(url);
  closing.push(database.close);
  await migrate(database);
  return database;
}

async function dispatcherOn(url: string) {
  const store = postgresStore(await openOn(url));
  return createDispatcher({ store, now: () => new Date(), allowInsecure: true });
}

async function rowsOf<Row>(url: string, sql: string): Promise<readonly Row[]> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(sql)).rows as Row[];
  } finally {
    await client.end();
  }
}

async function waitForEvents(url: string, count: number): Promise<void> {
  await waitUntil(
    async () => {
      const [row] = await rowsOf<{ there: boolean }>(
        url,
        "SELECT to_regclass('activity.events') IS NOT NULL AS there",
      );
      if (!row?.there) return false;
      return (await rowsOf(url, "SELECT FROM activity.events")).length === count;
    },
    { what: `activity.events has ${count} rows`, timeoutMs: 40_000 },
  );
}

it("dev runs a project on a database of its own, and Ctrl-C stops PostgreSQL after the engine", async () => {
  const { chain, rpc } = await startNode();
  const project = await startProject(rpc.url);
  const dev = startCli(["dev"], { cwd: project.path });
  closing.push(() => dev.stop("SIGKILL"));
  await dev.waitFor(/fencepost is running/);
  const url = /postgres:\/\/\S+/.exec(dev.stdout())?.[0] ?? "";
  await waitForEvents(url, 5);
  lockAssets(chain, 2);
  await waitForEvents(url, 7);

  const folder = join(project.path, ".fencepost");
  const status = await runCli(["status"], { cwd: project.path });
  expect(status).toMatchObject({ code: 0, stderr: "" });
  expect(status.stdout).toContain(`database: embedded PostgreSQL in ${folder}\n`);
  expect(status.stdout).not.toContain(new URL(url).password);

  const postgres = Number((await readFile(join(folder, "data", "postmaster.pid"), "utf8")).split("\n")[0]);
  expect(await processIdentity(postgres)).toBeDefined();
  const { code, stdout, stderr } = await dev.stop("SIGINT");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  expect(stdout.trimEnd().split("\n").slice(-2)).toEqual([
    "fencepost stops",
    `stopped PostgreSQL in ${folder}`,
  ]);
  expect(stdout).not.toMatch(/ (warn|error) |reloaded/);
  expect(await processIdentity(postgres)).toBeUndefined();
});

it("dev picks a changed handler up on save, builds its rows anew, and survives a save that cannot be loaded", async () => {
  const { chain, rpc } = await startNode();
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const dev = startCli(["dev", "--port", "0"], { cwd: project.path, env: { DATABASE_URL: url } });
  closing.push(() => dev.stop("SIGKILL"));
  await waitForEvents(url, 5);
  const file = join(project.path, "projections/activity.ts");
  const text = await readFile(file, "utf8");

  await project.write("projections/activity.ts", `${text}\nexport default nothing;\n`);
  await dev.waitFor(/error: ConfigFailedError: .* threw ReferenceError: nothing is not defined/);
  await dev.waitFor(/The config before it goes on/);
  lockAssets(chain, 1);
  await waitForEvents(url, 6);

  await project.write(
    "projections/activity.ts",
    text.replace("await store(db, event)", 'await store(db, { ...event, name: "changed" })'),
  );
  await dev.waitFor(/reloaded: testnet, activity v1 \(built anew: activity\)/);
  // A free port is another one each time: the one that is served now is told last.
  const served = [...dev.stdout().matchAll(/^http: +(\S+)/gm)].at(-1)?.[1] ?? "";
  expect((await fetch(`${served}/health`)).status).toBe(200);
  lockAssets(chain, 1);
  await waitUntil(
    async () => (await rowsOf(url, "SELECT FROM activity.events WHERE name = 'changed'")).length === 7,
    { what: "all rows are made by the changed handler" },
  );
  const messages = await rowsOf(
    url,
    "SELECT state, count(*)::int AS n FROM fencepost.messages GROUP BY state",
  );
  expect(messages).toEqual([{ state: "emitted", n: 7 }]);
  expect((await dev.stop()).code).toBe(0);
});

it("dev builds a projection anew whose tables changed, and adopts another set of contracts", async () => {
  const { rpc } = await startNode();
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const dev = startCli(["dev"], { cwd: project.path, env: { DATABASE_URL: url } });
  closing.push(() => dev.stop("SIGKILL"));
  await waitForEvents(url, 5);
  const table = await readFile(join(project.path, "projections/activity.ts"), "utf8");
  await project.write(
    "projections/activity.ts",
    table.replace("data: jsonb()", "note: text(),\n  data: jsonb()"),
  );
  const columns =
    "SELECT FROM information_schema.columns WHERE table_schema = 'activity' AND column_name = 'note'";
  await waitUntil(async () => (await rowsOf(url, columns)).length === 1, { what: "the new column is there" });
  await waitForEvents(url, 5);

  const another = scv.contractId("another");
  const contracts = await readFile(join(project.path, "contracts.ts"), "utf8");
  await project.write("contracts.ts", contracts.replace(POOL_CONTRACT, another));
  const watched = async () =>
    rowsOf<{ contract_id: string }>(url, "SELECT contract_id FROM fencepost.watches");
  await waitUntil(async () => (await watched())[0]?.contract_id === another, {
    what: "the contract is watched",
  });
  expect(await watched()).toHaveLength(1);
  expect((await dev.stop()).code).toBe(0);
});

it("start makes everything in an empty database, and runs beside a second one until it is told to stop", async () => {
  const { chain, rpc } = await startNode();
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const env = { DATABASE_URL: url, STELLAR_RPC_URL: rpc.url };
  const first = startCli(["start", "--port", "0"], { cwd: project.path, env });
  closing.push(() => first.stop("SIGKILL"));
  await first.waitFor(/fencepost is running/);
  await waitForEvents(url, 5);
  const http = /"http":"(http:\/\/127\.0\.0\.1:\d+)"/.exec(first.stdout())?.[1] ?? "";
  expect((await fetch(`${http}/ready`)).status).toBe(200);
  expect((await fetch(`${http}/v1/webhooks`)).status).toBe(401);
  const second = startCli(["start"], { cwd: project.path, env });
  closing.push(() => second.stop("SIGKILL"));
  await second.waitFor(/fencepost is running/);

  const { code, stdout, stderr } = await first.stop();
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  const lines = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { msg: string; level: number });
  const messages = lines.map(({ msg }) => msg);
  expect(messages).toContain("fencepost stops");
  expect(messages.some((msg) => msg.startsWith("FENCEPOST_SECRETS_KEY is not set"))).toBe(true);
  await expect(fetch(`${http}/health`)).rejects.toThrow("fetch failed");
  expect(stdout).not.toContain(new URL(url).password);
  lockAssets(chain, 1);
  await waitForEvents(url, 6);
  expect((await second.stop()).code).toBe(0);
});

it("start --embedded keeps the data in .fencepost beside the config", async () => {
  const { rpc } = await startNode();
  const project = await startProject(rpc.url);
  const env = { STELLAR_RPC_URL: rpc.url };
  const start = startCli(["start", "--embedded"], { cwd: project.path, env });
  closing.push(() => start.stop("SIGKILL"));
  await start.waitFor(/fencepost is running/);
  await waitUntil(
    async () => {
      const { stdout } = await runCli(["status", "--json"], { cwd: project.path });
      return (JSON.parse(stdout) as { projections: { cursor: string }[] }).projections[0]?.cursor === "5";
    },
    { what: "status shows the cursor at the end" },
  );
  expect((await start.stop()).code).toBe(0);
});

it("a project of producers only runs, and a command on ledgers tells that it has no source", async () => {
  const project = await createTestFolder();
  closing.push(project.remove);
  await project.write(
    "fencepost.config.ts",
    `import { defineConfig, defineProducer, defineProjection } from "fencepost";
import { pgTable, text } from "drizzle-orm/pg-core";
import { z } from "zod";

const invoices = pgTable("invoices", { token: text().primaryKey() });
const billing = defineProducer({ stream: "billing", events: { paid: z.object({}) } });
export default defineConfig({
  projections: [
    defineProjection({
      name: "invoices",
      version: 1,
      contracts: { billing },
      tables: { invoices },
      on: { "billing:paid": async ({ event, db }) => void (await db.insert(invoices).values({ token: event.token })) },
    }),
  ],
});
`,
  );
  const url = await emptyDatabase();
  const options = { cwd: project.path, env: { DATABASE_URL: url } };
  const migrated = await runCli(["migrate"], options);
  expect(migrated.stdout).toMatch(/\nprojections: invoices v1\n$/);
  expect(migrated.stdout).not.toContain("stream:");
  const producer = openProducer(await openOn(url), { stream: "billing", epoch: "20260101" });

  const running = startCli(["start", "--port", "0"], options);
  closing.push(() => running.stop("SIGKILL"));
  await running.waitFor(/fencepost is running/);
  await producer.append([{ n: 1n, type: "paid", data: {} }]);
  await waitUntil(async () => (await rowsOf(url, "SELECT FROM invoices.invoices")).length === 1, {
    what: "the event is applied",
  });
  const http = /http:\/\/127\.0\.0\.1:\d+/.exec(running.stdout())?.[0] ?? "";
  expect((await fetch(`${http}/ready`)).status).toBe(200);
  expect((await running.stop()).code).toBe(0);
  const { stdout } = await runCli(["status"], options);
  expect(stdout).toMatch(/\n +billing +- +- +- +1 +0 +- +running\n/);
  expect(await runCli(["epoch", "begin"], options)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("error: NoSourceError: The config has no source"),
  });
});

it("a second signal ends a process at once that still waits for an endpoint", async () => {
  const { rpc } = await startNode();
  const endpoint = await startEndpoint({ answer: { kind: "hang" } });
  closing.push(endpoint.close);
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const dispatcher = await dispatcherOn(url);
  const webhook = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  await dispatcher.sendTest(webhook.id);
  const dev = startCli(["dev"], { cwd: project.path, env: { DATABASE_URL: url } });
  closing.push(() => dev.stop("SIGKILL"));
  await endpoint.waitFor(1, { timeoutMs: 40_000 });

  dev.child.kill("SIGINT");
  dev.child.kill("SIGINT"); // as npm does at once with a Ctrl-C
  await dev.waitFor(/fencepost stops/);
  const again = setInterval(() => dev.child.kill("SIGINT"), 200);
  closing.push(async () => clearInterval(again));
  expect((await dev.ended).code).toBe(130);
});

it("start never sends to plain http, and says so", async () => {
  const { rpc } = await startNode();
  const endpoint = await startEndpoint();
  closing.push(endpoint.close);
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const dispatcher = await dispatcherOn(url);
  const { id } = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  await dispatcher.sendTest(id);
  const start = startCli(["start"], {
    cwd: project.path,
    env: { DATABASE_URL: url, STELLAR_RPC_URL: rpc.url },
  });
  closing.push(() => start.stop("SIGKILL"));
  await start.waitFor(/fencepost is running/);
  await start.waitFor(new RegExp(`"webhooks":\\["${id}"\\],"msg":"start sends to https only`));
  const ended = "SELECT error FROM fencepost.attempts WHERE outcome = 'not_sent'";
  await waitUntil(async () => (await rowsOf(url, ended)).length === 1, { what: "the attempt is refused" });
  expect(await rowsOf(url, ended)).toEqual([{ error: expect.stringContaining("https") }]);
  expect(endpoint.requests).toEqual([]);
  expect((await start.stop()).code).toBe(0);
});

it("a newer database is named, and another set of contracts until migrate adopts it", async () => {
  const { rpc } = await startNode();
  const project = await startProject(rpc.url);
  const url = await emptyDatabase();
  const options = { cwd: project.path, env: { DATABASE_URL: url, STELLAR_RPC_URL: rpc.url } };
  const other = { contractId: scv.contractId("another"), startLedger: 1 } as const;
  const source = stellarRpc({ network: "testnet", urls: rpc.url });
  await registerStream(await openOn(url), source, [other], {
    adopt: false,
    signal: new AbortController().signal,
  });
  await rowsOf(url, "INSERT INTO fencepost.migrations (name, hash) VALUES ('9999_later.sql', '')");
  const newer = await runCli(["status"], options);
  expect(newer.code).toBe(1);
  expect(newer.stderr).toContain("error: MigrationError: The database has migration 9999_later.sql");
  await rowsOf(url, "DELETE FROM fencepost.migrations WHERE name = '9999_later.sql'");

  const changed = await runCli(["start"], options);
  expect(changed.code).toBe(1);
  expect(changed.stderr).toContain("error: FilterSetChangedError:");
  const migrated = await runCli(["migrate"], options);
  expect(migrated).toMatchObject({ code: 0, stderr: "" });
  expect(migrated.stdout).toContain("applied: nothing, the schema was up to date\n");
  const watched = await rowsOf<{ contract_id: string }>(url, "SELECT contract_id FROM fencepost.watches");
  expect(watched).toEqual([{ contract_id: POOL_CONTRACT }]);
});

it("migrate makes the schema in an empty database, and says so", async () => {
  const { rpc } = await startNode();
  const project = await startProject(rpc.url);
  const env = { DATABASE_URL: await emptyDatabase(), STELLAR_RPC_URL: rpc.url };
  const { code, stdout } = await runCli(["migrate"], { cwd: project.path, env });
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^database: PostgreSQL at .*\(DATABASE_URL\)\napplied: 0001_.*\nstream: testnet\nprojections: activity v1\n$/,
  );
});

it("an error is one line with its name and what to do, and --verbose adds its stack", async () => {
  const project = await startProject("");
  const start = await runCli(["start"], { cwd: project.path, env: { STELLAR_RPC_URL: NOBODY_LISTENS } });
  expect(start.code).toBe(1);
  expect(start.stderr).toMatch(
    /^error: DatabaseNotChosenError: Neither DATABASE_URL nor --embedded is given\..*\n$/,
  );
  const dev = await runCli(["--verbose", "dev"], { cwd: project.path });
  expect(dev.code).toBe(1);
  expect(dev.stderr).toMatch(
    /^error: ConfigFailedError: fencepost\.config\.ts threw TypeError: source\.urls is empty: set STELLAR_RPC_URL\.\n +at \S*fencepost\.config\.ts:\d+:\d+\)?\n/,
  );
  expect(dev.stderr).toMatch(/loadConfig\.ts:\d+/);
  expect(dev.stderr).toContain("caused by TypeError: source.urls is empty");
});

it("a database that cannot be used is named, without its password", async () => {
  const project = await startProject(NOBODY_LISTENS);
  const env = { DATABASE_URL: "postgres://user:secret@127.0.0.1:9/nowhere" };
  const { code, stderr } = await runCli(["status"], { cwd: project.path, env });
  expect(code).toBe(1);
  expect(stderr).toMatch(/^error: DatabaseUnreachableError: PostgreSQL at 127\.0\.0\.1:9\/nowhere .*\n$/);
  expect(stderr).not.toContain("secret");
});

it("a node that cannot be reached, is of another network, or is older than v23 is named", async () => {
  const project = await startProject(NOBODY_LISTENS);
  const url = await emptyDatabase();
  const other = await startNode({ chain: startChain({ passphrase: "Another network" }) });
  const old = await startNode({ version: "22.1.5" });
  const errorOf = async (rpcUrl: string): Promise<string> => {
    const env = { DATABASE_URL: url, STELLAR_RPC_URL: rpcUrl };
    const { code, stderr } = await runCli(["start"], { cwd: project.path, env });
    expect(code).toBe(1);
    expect(stderr.trimEnd().split("\n")).toHaveLength(1);
    return stderr;
  };
  expect(await errorOf(NOBODY_LISTENS)).toMatch(/^error: SourceUnavailableError: http:\/\/127\.0\.0\.1:9 /);
  expect(await errorOf(other.rpc.url)).toMatch(/^error: WrongNetworkError: .*"Another network"/);
  expect(await errorOf(old.rpc.url)).toMatch(/^error: UnsupportedRpcVersionError: .*22\.1\.5/);
});
