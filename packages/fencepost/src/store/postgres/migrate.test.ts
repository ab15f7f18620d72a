import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { startProxy } from "@fencepost/simulator";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { startScript } from "../../__tests__/support/scriptProcess.ts";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import type { WebhookId } from "../webhook.ts";
import { type Database, openDatabase } from "./database.ts";
import { ConnectionLostError, MigrationError } from "./errors.ts";
import { decideMigrations, migrate, readMigrationState } from "./migrate.ts";
import { postgresStore } from "./postgresStore.ts";

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
});
beforeEach(() => database.query("DROP SCHEMA IF EXISTS fencepost CASCADE"));
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

/** Everything in the schema, by name: empty where a migration left nothing. */
async function relations(): Promise<readonly string[]> {
  const { rows } = await database.query<{ relname: string }>(
    "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'fencepost' ORDER BY 1",
  );
  return rows.map((row) => row.relname);
}

test("applies each file once, and nothing the second time", async () => {
  const { pending } = await readMigrationState(database);
  expect(pending[0]).toBe("0001_pipeline.sql");
  expect(await migrate(database)).toEqual(pending);
  const made = await relations();
  expect(made).toEqual(expect.arrayContaining(["events", "messages", "projections", "streams"]));
  expect(await migrate(database)).toEqual([]);
  expect(await relations()).toEqual(made);
  expect(await readMigrationState(database)).toEqual({ applied: pending.length, pending: [] });
});

test("four processes at once apply it once", async () => {
  const script = `
    const { openDatabase } = await import(${JSON.stringify(new URL("./database.ts", import.meta.url).href)});
    const { migrate } = await import(${JSON.stringify(new URL("./migrate.ts", import.meta.url).href)});
    const database = openDatabase(process.argv[1]);
    await database.query("SELECT 1");
    console.log("ready");
    await new Promise((go) => process.stdin.once("data", go));
    console.log(JSON.stringify(await migrate(database)));
    await database.close();
    process.stdin.destroy();
  `;
  const processes = Array.from({ length: 4 }, () => startScript(script, [testDatabase.url]));
  for (const { nextLine } of processes) expect(await nextLine()).toBe("ready");
  for (const { child } of processes) child.stdin?.write("go\n");
  const applied = await Promise.all(
    processes.map(async ({ nextLine }) => (JSON.parse(await nextLine()) as string[]).length),
  );
  expect(applied.filter((count) => count > 0)).toHaveLength(1);
  expect(await migrate(database)).toEqual([]);
});

test("a database of a newer version, or of a file that was edited after it ran, is refused by name", async () => {
  await migrate(database);
  await database.query("INSERT INTO fencepost.migrations (name, hash) VALUES ('9999_future.sql', 'x')");
  await expect(migrate(database)).rejects.toThrow(MigrationError);
  await expect(migrate(database)).rejects.toThrow(/9999_future.sql, which this version .* does not know/);
  await database.query("DELETE FROM fencepost.migrations WHERE name = '9999_future.sql'");
  await database.query("UPDATE fencepost.migrations SET hash = 'other' WHERE name = '0001_pipeline.sql'");
  await expect(migrate(database)).rejects.toThrow(MigrationError);
  await expect(migrate(database)).rejects.toThrow("0001_pipeline.sql was changed after it was applied");
  await expect(readMigrationState(database)).rejects.toThrow(MigrationError);
});

test("a failure in the middle of a file leaves nothing behind, and it can be tried again", async () => {
  await database.query("CREATE SCHEMA fencepost");
  await database.query("CREATE TABLE fencepost.deliveries (id text)");
  await expect(migrate(database)).rejects.toThrow('relation "deliveries" already exists');
  expect(await relations()).toEqual(["deliveries"]);
  await database.query("DROP TABLE fencepost.deliveries");
  expect(await migrate(database)).not.toEqual([]);
});

test("a connection that breaks in the middle leaves nothing behind, and it can be tried again", async () => {
  const url = new URL(testDatabase.url);
  const proxy = await startProxy({ targetPort: Number(url.port), targetHost: url.hostname });
  url.hostname = "127.0.0.1";
  url.port = `${proxy.port}`;
  const broken = openDatabase(url.href);
  proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("CREATE TABLE fencepost.events"), {
    deliver: true,
  });
  await expect(migrate(broken)).rejects.toThrow(ConnectionLostError);
  await broken.close();
  await proxy.close();
  expect(await migrate(database)).not.toEqual([]);
  expect(await migrate(database)).toEqual([]);
});

test("what the pipeline had stored before the delivery schema is kept, in its order", async () => {
  const name = "0001_pipeline.sql";
  const sql = await readFile(new URL(`./migrations/${name}`, import.meta.url), "utf8");
  await database.query("CREATE SCHEMA fencepost");
  await database.query(sql);
  await database.query("CREATE TABLE fencepost.migrations (name text PRIMARY KEY, hash text NOT NULL)");
  await database.query("INSERT INTO fencepost.migrations VALUES ($1, $2)", [
    name,
    createHash("sha256").update(sql).digest("hex"),
  ]);
  await database.query(`
    INSERT INTO fencepost.messages (event_id, token, type, state, content_hash, occurred_at, created_at) VALUES
      ('evt_c', 't-3', 'a', 'emitted', '', '2026-01-03', '2026-02-01'),
      ('evt_a', 't-1', 'a', 'emitted', '', '2026-01-01', '2026-02-01'),
      ('order', NULL, 'a', 'dispatched', '', '2026-01-01', '2026-01-15'),
      ('evt_b', 't-2', 'a', 'emitted', '', '2026-01-01', '2026-02-01');
    INSERT INTO fencepost.message_bodies SELECT event_id, '{}' FROM fencepost.messages;
    INSERT INTO fencepost.outbox (event_id) VALUES ('evt_a'), ('evt_b'), ('evt_c');
    INSERT INTO fencepost.webhooks (id, url, types, secrets, active, on_unknown) VALUES
      ('wh_1', 'https://a.example/', '{*}', '{whsec_new,whsec_old}', true, 'hold'),
      ('wh_2', 'https://b.example/', '{*}', '{}', false, 'resend');
    INSERT INTO fencepost.deliveries (event_id, webhook_id, state, attempts, finished_at) VALUES
      ('order', 'wh_1', 'in_doubt', 1, '2026-02-02'), ('order', 'wh_2', 'pending', 0, NULL);
    INSERT INTO fencepost.attempts (delivery_id, number, fence, url, "timestamp", started_at)
      VALUES (1, 1, 1, 'https://a.example/', 1, '2026-02-01Z');`);
  expect(await migrate(database)).toContain("0002_delivery.sql");

  const read = async (query: string): Promise<unknown> => (await database.query(query)).rows;
  expect(await read("SELECT event_id, position FROM fencepost.messages ORDER BY position")).toEqual([
    { event_id: "order", position: 1n },
    { event_id: "evt_a", position: 2n },
    { event_id: "evt_b", position: 3n },
    { event_id: "evt_c", position: 4n },
  ]);
  expect(await read("SELECT event_id, position FROM fencepost.outbox ORDER BY position")).toEqual([
    { event_id: "evt_a", position: 2n },
    { event_id: "evt_b", position: 3n },
    { event_id: "evt_c", position: 4n },
  ]);
  expect(await read("SELECT nextval('fencepost.message_position') AS next")).toEqual([{ next: 5n }]);
  const store = postgresStore(database);
  expect(await store.listWebhooks({ limit: 10 })).toMatchObject([
    {
      active: true,
      onUnknown: "hold",
      secrets: [
        { secret: "whsec_new", expiresAt: null },
        { secret: "whsec_old", expiresAt: null },
      ],
      headers: {},
      filter: null,
      ordering: "none",
      retryScheduleMs: null,
      disableAfterMs: null,
    },
    { active: false, secrets: [], disabledAt: expect.any(Date) },
  ]);
  const waiting = await store.listDeliveries("wh_1" as WebhookId, { needsPerson: true }, { limit: 10 });
  expect(waiting).toMatchObject([{ id: "dlv_1", state: "in_doubt", blockedBy: null }]);
  expect(await read("SELECT first_at FROM fencepost.deliveries WHERE id = 1")).toEqual([
    { first_at: new Date("2026-02-01") },
  ]);
  expect(await store.listUntold()).toEqual([]);
});

test("what is pending is told without changing anything", async () => {
  expect((await readMigrationState(database)).applied).toBe(0);
  const { rows } = await database.query("SELECT FROM pg_namespace WHERE nspname = 'fencepost'");
  expect(rows).toEqual([]);
});

test("files are pending in their order, and an unknown or another one is refused", () => {
  const files = [
    { name: "1", hash: "a" },
    { name: "2", hash: "b" },
    { name: "3", hash: "c" },
  ];
  expect(decideMigrations(files, new Map())).toEqual(files);
  expect(decideMigrations(files, new Map([["1", "a"]]))).toEqual(files.slice(1));
  expect(() => decideMigrations(files, new Map([["1", "x"]]))).toThrow("Migration 1 was changed");
  expect(() => decideMigrations(files, new Map([["4", "d"]]))).toThrow("Install the newer version");
});
