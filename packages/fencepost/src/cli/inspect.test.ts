import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Endpoint, startChain, startEndpoint, startRpc } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { type CliResult, runCli, startCli } from "../__tests__/support/cliProcess.ts";
import { createPoolProject, type TestFolder } from "../__tests__/support/cliProject.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { createTestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { type Database, openDatabase } from "../index.ts";

// Each process loads the engine: on a busy machine that takes its time.
vi.setConfig({ testTimeout: 180_000, hookTimeout: 180_000 });

const TESTNET = { stream: "testnet", epoch: "20251217" };
const closing: (() => Promise<unknown>)[] = [];
let project: TestFolder;
let database: Database;
let url: string;
let endpoint: Endpoint;
/** Of the HTTP interface that `dev` serves. */
let http: string;
let added: CliResult;
let other: CliResult;
/** The event that became two deliveries, the first of which was refused once; and the one whose handler throws. */
let token: string;
let poison: string;

function cli(...args: readonly string[]): Promise<CliResult> {
  return runCli(args, { cwd: project.path, env: { DATABASE_URL: url } });
}

/** A project under `dev`: five events stored, the last of them poison, two webhooks, one event sent to both. */
beforeAll(async () => {
  const chain = startChain();
  const rpc = await startRpc({ chain });
  endpoint = await startEndpoint();
  const quiet = await startEndpoint();
  const testDatabase = await createTestDatabase();
  url = testDatabase.url;
  project = await createPoolProject(rpc.url);
  database = openDatabase(url);
  closing.push(rpc.close, endpoint.close, quiet.close, testDatabase.drop, project.remove, database.close);
  const file = "projections/activity.ts";
  const text = await readFile(join(project.path, file), "utf8");
  const throwing =
    'if (event.data.amount === 5n) throw new Error("five is too much");\n      await store(db, event)';
  await project.write(file, text.replace("await store(db, event)", throwing));
  lockAssets(chain, 3);
  const dev = startCli(["dev", "--port", "0"], { cwd: project.path, env: { DATABASE_URL: url } });
  closing.push(() => dev.stop("SIGKILL"));
  await dev.waitFor(/fencepost is running/);
  http = /^http: +(\S+)/m.exec(dev.stdout())?.[1] ?? "";

  const add = ["webhooks", "add", "--types", "contract.assets_locked", "--allow-insecure"];
  added = await cli(...add, endpoint.url, "--description", "the first");
  other = await cli(...add, quiet.url);
  await database.query("UPDATE fencepost.webhooks SET deliver_from = '2000-01-01'");
  endpoint.next({ status: 503 });
  lockAssets(chain, 1);
  await untilAttempts(endpoint, 2);
  await untilAttempts(quiet, 1);
  lockAssets(chain, 1);
  const tokens = [...chain.events()].map((row) => tokenFromRpcId(TESTNET, row.id));
  [token = "", poison = ""] = tokens.slice(-2);
  await waitUntil(
    async () => {
      const { rows } = await database.query(
        `SELECT FROM fencepost.projections, (SELECT count(*) AS n FROM fencepost.deliveries WHERE state = 'success') d
         WHERE stopped_token = $1 AND d.n = 2`,
        [poison],
      );
      return rows.length === 1;
    },
    { what: "both deliveries have succeeded and the projection has stopped", timeoutMs: 60_000 },
  );
});

afterAll(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function untilAttempts(at: Endpoint, count: number): Promise<void> {
  await at.waitFor(count, { timeoutMs: 60_000 });
}

it("webhooks add shows the secret once, and says which types nobody declares", async () => {
  expect(added).toMatchObject({ code: 0, stderr: "" });
  expect(added.stdout).toMatch(
    /^id: {5}wh_\w{24}\nurl: .*\ntypes: {2}contract\.assets_locked\nsecret: whsec_\S+\nStore/,
  );
  expect(added.stdout).not.toContain("Note:");
  const mistyped = await cli("webhooks", "add", "https://example.com/", "--types", "contract.asset_locked");
  expect(mistyped.stdout).toContain(
    "Note: no projection declares contract.asset_locked. Declared: contract.assets_locked.",
  );
  const id = /wh_\w+/.exec(mistyped.stdout)?.[0];
  await database.query("DELETE FROM fencepost.catch_ups WHERE webhook_id = $1", [id]);
  await database.query("DELETE FROM fencepost.webhooks WHERE id = $1", [id]);
});

it("webhooks add refuses a wrong url and empty types, and stores nothing", async () => {
  const wrong = await cli("webhooks", "add", "https://user:password@example.com/", "--types", "*");
  expect(wrong).toMatchObject({ code: 1, stderr: expect.stringMatching(/^error: InvalidWebhookError: /) });
  const empty = await cli("webhooks", "add", "https://example.com/", "--types", "");
  expect(empty).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^error: InvalidWebhookError: "" is not/),
  });
});

it("webhooks add takes every setting as an option, and refuses what cannot be read by its name", async () => {
  const data = [
    "--filter",
    '{"amount": 9}',
    "--header",
    "x-a: 1",
    "--header",
    "x-b: two: 2",
    "--on-unknown",
    "ask",
  ];
  const limits = ["--ordering", "strict", "--retry-on", "all", "--rate", "5", "--max-in-flight", "none"];
  const made = await cli("webhooks", "add", "https://example.com/", "--types", "*", ...limits, ...data);
  expect(made).toMatchObject({ code: 0, stderr: "" });
  const id = /wh_\w+/.exec(made.stdout)?.[0];
  const { rows } = await database.query("SELECT * FROM fencepost.webhooks WHERE id = $1", [id]);
  expect(rows).toMatchObject([
    {
      types: ["*"],
      filter: { amount: 9 },
      headers: { "x-a": "1", "x-b": "two: 2" },
      ordering: "strict",
      on_unknown: "ask",
      retry_on: "all",
      rate_per_second: 5,
      max_in_flight: null,
    },
  ]);
  await database.query("UPDATE fencepost.webhooks SET active = false, deleted_at = now() WHERE id = $1", [
    id,
  ]);
  const wrong = await cli("webhooks", "update", "wh_nobody", "--filter", "{x");
  expect(wrong).toMatchObject({ code: 1, stderr: expect.stringContaining("Write JSON") });
  const none = await cli("deliveries", "list", "wh_nobody", "--limit", "0");
  expect(none).toMatchObject({ code: 1, stderr: expect.stringContaining("Use a whole number from 1.") });
});

it("webhooks list shows every webhook and no secret", async () => {
  const { code, stdout } = await cli("webhooks", "list");
  expect(code).toBe(0);
  for (const { stdout: shown } of [added, other]) {
    expect(stdout).toContain(/wh_\w+/.exec(shown)?.[0]);
    expect(stdout).not.toContain(/whsec_(\S+)/.exec(shown)?.[1]);
  }
  expect(stdout).toContain("the first");
});

it("webhooks test sends through the running engine, and --wait tells the outcome", async () => {
  const id = /wh_\w+/.exec(added.stdout)?.[0] ?? "";
  const good = await cli("webhooks", "test", id, "--wait");
  expect(good).toMatchObject({ code: 0, stderr: "" });
  expect(good.stdout).toMatch(
    /^test delivery dlv_\d+ is queued .*\ndelivered: the endpoint answered 200\.\n$/,
  );
  endpoint.next({ status: 404 });
  const bad = await cli("webhooks", "test", id, "--wait");
  expect(bad).toMatchObject({
    code: 1,
    stdout: expect.stringContaining("not delivered: The endpoint answered 404."),
  });
  const unknown = await cli("webhooks", "test", "wh_nobody");
  expect(unknown).toMatchObject({ code: 1, stderr: expect.stringMatching(/^error: UnknownWebhookError: /) });
});

it("trace follows a token through every stage, for people", async () => {
  const { code, stdout } = await cli("trace", token);
  expect(code).toBe(0);
  const lines = stdout.trimEnd().split("\n");
  expect(lines[0]).toBe(`token       ${token}`);
  expect(lines[1]).toBe(`event       assets_locked of ${POOL_CONTRACT}`);
  expect(lines[3]).toMatch(/^stored {6}\S+Z as seq 4$/);
  expect(lines[4]).toBe("projection  activity v1 (live) applied");
  expect(lines[5]).toMatch(/^message {5}evt_\w+ contract\.assets_locked emitted by activity \S+Z$/);
  expect(
    lines.filter((line) => / {2}delivery {2}dlv_\d+ to wh_\w+ \(\S+\) success$/.test(line)),
  ).toHaveLength(2);
  const time = "\\S+Z";
  expect(stdout).toMatch(
    new RegExp(
      `attempt 1 at ${time}: rejected 503 after \\d+ ms \\(The endpoint answered 503\\.\\)\n +` +
        `attempt 2 at ${time}: delivered 200 after \\d+ ms`,
    ),
  );
});

it("trace by event id shows that message, and by delivery id that delivery only", async () => {
  const byToken = JSON.parse((await cli("trace", token, "--json")).stdout);
  expect(byToken).toMatchObject({
    token,
    name: "assets_locked",
    event: { token, seq: "4", contractId: POOL_CONTRACT, late: false, undecodable: null, conflicts: 0 },
    projections: [{ name: "activity", version: 1, state: "live", stage: "applied" }],
    truncated: false,
  });
  const [message] = byToken.messages;
  expect(message.deliveries.map((delivery: { state: string }) => delivery.state)).toEqual([
    "success",
    "success",
  ]);
  expect(JSON.parse((await cli("trace", message.eventId, "--json")).stdout)).toEqual(byToken);

  const [, second] = message.deliveries;
  const byDelivery = JSON.parse((await cli("trace", second.id, "--json")).stdout);
  expect(byDelivery).toEqual({ ...byToken, messages: [{ ...message, deliveries: [second] }] });
});

it("trace names what is not on record", async () => {
  expect(await cli("trace", "evt_aaaaaaaaaaaaaaaaaaaaaaaaaa")).toEqual({
    code: 1,
    stdout: "",
    stderr:
      'error: NotOnRecordError: Nothing is on record under "evt_aaaaaaaaaaaaaaaaaaaaaaaaaa". Give a token, an event ' +
      "id or a delivery id (dlv_…).\n",
  });
});

it("status tells the database, every stage, and where a projection stopped", async () => {
  const { code, stdout } = await cli("status");
  expect(code).toBe(0);
  const { host, pathname, password } = new URL(url);
  expect(stdout).toMatch(new RegExp(`^database: PostgreSQL at ${host}${pathname} \\(DATABASE_URL\\)\n`));
  if (password !== "") expect(stdout).not.toContain(password);
  expect(stdout).toMatch(/\n {2}testnet +\d+ +\d+ +0 +5 +1 +backend \d+ +running\n/);
  expect(stdout).toMatch(/\n {2}activity +1 +live, STOPPED +4 +5 +1 +backend \d+ /);
  expect(stdout).toContain(`activity stopped at contract:assets_locked (${poison})`);
  expect(stdout).toContain("Error: five is too much");
  expect(stdout).toContain(`fencepost skip activity ${poison} --reason`);

  const json = JSON.parse((await cli("status", "--json")).stdout);
  expect(json).toMatchObject({
    database: { kind: "server" },
    migrations: { pending: [] },
    streams: [{ stream: "testnet", lag: 0, seq: "5", halted: null, gaps: [], conflicts: 0, catchingUp: 0 }],
    projections: [{ name: "activity", cursor: "4", seq: "5", stopped: { token: poison } }],
    outbox: 0,
    undecodable: 0,
    deliveries: { pending: 0, sending: 0, in_doubt: 0 },
  });
});

it("skip refuses what does not exist, and passes over one event on the record", async () => {
  const refused = async (...args: readonly string[]): Promise<string> => {
    const { code, stderr } = await cli("skip", ...args);
    expect(code).toBe(1);
    return stderr;
  };
  expect(await refused("activity", poison)).toContain("required option '--reason <text>' not specified");
  expect(await refused("activity", "dlv_1", "--reason", "x")).toMatch(/^error: InvalidTokenError: /);
  expect(await refused("nobody", poison, "--reason", "x")).toMatch(
    /^error: UnknownProjectionError: There is no projection nobody\. There are: activity\./,
  );
  expect(await refused("activity", `${token.slice(0, -1)}9`, "--reason", "x")).toMatch(
    /^error: NotOnRecordError: /,
  );

  // In a database of its own, so that the other tests see the projection stopped whatever their order.
  const copy = await createTestDatabase();
  closing.push(copy.drop);
  const own = { cwd: project.path, env: { DATABASE_URL: copy.url } };
  const dev = startCli(["dev"], own);
  closing.push(() => dev.stop("SIGKILL"));
  const reads = openDatabase(copy.url);
  closing.push(reads.close);
  await dev.waitFor(/ProjectionStoppedError/);
  const skipped = await runCli(["skip", "activity", poison, "--reason", "a test amount"], own);
  expect(skipped).toMatchObject({ code: 0, stdout: `activity passes over ${poison}: a test amount\n` });
  await waitUntil(
    async () => (await reads.query("SELECT FROM fencepost.projections WHERE cursor = 5")).rows.length === 1,
    { what: "the projection goes on", timeoutMs: 60_000 },
  );
  expect((await runCli(["trace", poison], own)).stdout).toContain(
    "projection  activity v1 (live) skipped: a test amount\nmessage     none\n",
  );
  expect((await reads.query("SELECT FROM activity.events")).rows).toHaveLength(4);
});

it("dev serves the HTTP interface, to whoever has a key that the command line made", async () => {
  const created = await cli("keys", "create", "the shop");
  expect(created).toMatchObject({ code: 0, stderr: "" });
  const [, id = "", key = ""] =
    /^id: {2}(key_\w+)\nkey: (fp_\S+)\nStore the key now/.exec(created.stdout) ?? [];
  const status = async (): Promise<number> =>
    (await fetch(`${http}/v1/webhooks`, { headers: { authorization: `Bearer ${key}` } })).status;
  expect(await status()).toBe(200);
  expect((await fetch(`${http}/health`)).status).toBe(200);
  // A projection has stopped in this project.
  const ready = await fetch(`${http}/ready`);
  expect({ status: ready.status, reasons: ((await ready.json()) as { reasons: string[] }).reasons }).toEqual({
    status: 503,
    reasons: [expect.stringContaining("The projection activity v1 has stopped")],
  });
  const metrics = await (await fetch(`${http}/metrics`)).text();
  expect(metrics).toMatch(/^fencepost_events_stored_total\{stream="testnet"\} 5$/m);
  expect(metrics).toMatch(/^fencepost_attempts_total\{outcome="delivered"\} \d+$/m);

  const listed = await cli("keys", "list", "--json");
  expect(JSON.parse(listed.stdout)).toMatchObject({ keys: [{ id, name: "the shop", revokedAt: null }] });
  expect(listed.stdout).not.toContain(key);
  expect((await cli("keys", "revoke", id)).code).toBe(0);
  expect(await status()).toBe(401);
});

it("audit runs the handlers again beside the running ones, and names the message that is gone", async () => {
  const { rows } = await database.query<{ token: string; event_id: string }>(
    "DELETE FROM fencepost.messages WHERE token = (SELECT min(token) FROM fencepost.messages) RETURNING token, event_id",
  );
  const audited = await cli("audit", "--from", "1", "--to", "99", "--rerun");
  expect(audited.stdout).toContain("projection activity v1: 1 events behind\n");
  expect(audited.stdout).toContain(
    "handlers of activity v1, run again: they emit 4 messages, 3 agree\n" +
      `  missing: they emit it: ${rows[0]?.token} ${rows[0]?.event_id} contract.assets_locked\n`,
  );
  // And the webhooks here are made to look as if they had been there before the first three events.
  expect(audited.stdout).toMatch(/\nDIFFERENCES: 6\n$/);
  expect(audited.stderr).toMatch(/^activity: event (\d+) of \1 \(100 %\)\n$/);
  expect(audited.code).toBe(1);
});
