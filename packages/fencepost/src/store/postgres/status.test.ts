import { afterEach, expect, it } from "vitest";
import { createTestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { type Database, openDatabase } from "./database.ts";
import { readHealth } from "./deliveryCounts.ts";
import { acquireLease, openHolder } from "./leases.ts";
import { migrate } from "./migrate.ts";
import { postgresStore } from "./postgresStore.ts";
import { readStatus, type Status } from "./status.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function startDatabase(): Promise<Database> {
  const { url, drop } = await createTestDatabase();
  closing.push(drop);
  const database = openDatabase(url);
  closing.push(database.close);
  await migrate(database);
  await database.query(
    `INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash, seq, latest_ledger)
     VALUES ('testnet', '20251217', 'x', 91, '', 40, 100)`,
  );
  await database.query(
    `INSERT INTO fencepost.projections (name, version, stream, cursor, state, fingerprint)
     VALUES ('pools', 1, 'testnet', 40, 'live', ''), ('pools', 2, 'testnet', 10, 'building', '')`,
  );
  return database;
}

function statusOf(database: Database): Promise<Status> {
  return readStatus(database, postgresStore(database));
}

it("of an empty installation, says that there is nothing", async () => {
  const { url, drop } = await createTestDatabase();
  closing.push(drop);
  const database = openDatabase(url);
  closing.push(database.close);
  await migrate(database);
  expect(await statusOf(database)).toEqual({
    streams: [],
    projections: [],
    undecodable: 0,
    outbox: 0,
    deliveries: { pending: 0, sending: 0, success: 0, failed: 0, in_doubt: 0 },
    webhooks: [],
  });
});

it("knows no lag before the source has answered, and no ledgers of a producer", async () => {
  const database = await startDatabase();
  await database.query("UPDATE fencepost.streams SET latest_ledger = NULL");
  await database.query(
    `INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash, seq)
     VALUES ('billing', '20260101', '', 0, '', 4)`,
  );
  expect((await statusOf(database)).streams).toMatchObject([
    { stream: "billing", nextLedger: null, latestLedger: null, lag: null, seq: 4n },
    { stream: "testnet", nextLedger: 91, latestLedger: null, lag: null },
  ]);
});

it("tells how far stream and projections are, and what is wrong with them", async () => {
  const database = await startDatabase();
  await database.query("UPDATE fencepost.streams SET halted = 'gap'");
  await database.query(
    "INSERT INTO fencepost.gaps (stream, from_ledger, to_ledger, accepted_at) VALUES ('testnet', 91, 95, NULL), ('testnet', 10, 20, now())",
  );
  await database.query(
    "INSERT INTO fencepost.watches VALUES ('testnet', 'C1', 1, NULL), ('testnet', 'C2', 1, 5)",
  );
  await database.query(
    "INSERT INTO fencepost.conflicts (token, seen_hash, stored_hash, seen) VALUES ('testnet-20251217-1', '', '', '{}'), ('testnet_2-20251217-1', '', '', '{}')",
  );
  await database.query(
    "INSERT INTO fencepost.quarantine (token, projection, version, reason) VALUES ('a', '', 0, ''), ('b', 'pools', 2, ''), ('c', 'pools', 2, '')",
  );
  await database.query("INSERT INTO fencepost.skips (projection, token, reason) VALUES ('pools', 'b', '')");
  await database.query("INSERT INTO fencepost.outbox (event_id, position) VALUES ('x', 1), ('y', 2)");
  const status = await statusOf(database);
  expect(status.streams).toMatchObject([
    {
      nextLedger: 91,
      latestLedger: 100,
      lag: 10,
      seq: 40n,
      leader: null,
      halted: "gap",
      conflicts: 1,
      catchingUp: 1,
      gaps: [
        { fromLedger: 91, toLedger: 95, accepted: false },
        { fromLedger: 10, toLedger: 20, accepted: true },
      ],
    },
  ]);
  expect(status.projections).toMatchObject([
    {
      name: "pools",
      version: 2,
      state: "building",
      cursor: 10n,
      seq: 40n,
      quarantined: 2,
      skipped: 1,
      stopped: null,
    },
    { name: "pools", version: 1, state: "live", cursor: 40n, seq: 40n, quarantined: 0 },
  ]);
  expect(status).toMatchObject({ undecodable: 1, outbox: 2 });
});

it("shows a leader while its connection lives, and nobody as soon as that is gone", async () => {
  const database = await startDatabase();
  const holder = openHolder(database.url);
  closing.push(holder.close);
  const { pid } = await holder.current();
  await acquireLease(database, { kind: "stream", stream: "testnet" }, await holder.current(), 60_000);
  expect((await statusOf(database)).streams[0]?.leader).toMatchObject({ pid });
  await holder.close();
  await waitUntil(async () => (await statusOf(database)).streams[0]?.leader === null, {
    what: "status shows that nobody leads",
  });
  const { rows } = await database.query(
    "SELECT FROM fencepost.streams WHERE lease_until > now() AND holder IS NOT NULL",
  );
  expect(rows).toHaveLength(1);
});

async function insertWebhook(database: Database, id: string, settings = "active = true"): Promise<void> {
  await database.query(
    `INSERT INTO fencepost.webhooks (id, url, types, secrets)
     VALUES ($1, 'https://x', '{a.b}', '[{"secret": "whsec_secret", "expires_at": null}]')`,
    [id],
  );
  await database.query(`UPDATE fencepost.webhooks SET ${settings} WHERE id = $1`, [id]);
}

it("counts deliveries by state, what waits for each webhook, and what waits for a person", async () => {
  const database = await startDatabase();
  await insertWebhook(database, "wh_1", "active = false, disabled_reason = 'gone'");
  await insertWebhook(database, "wh_2");
  await insertWebhook(database, "wh_3", "deleted_at = now()");
  await database.query(
    `INSERT INTO fencepost.deliveries (event_id, webhook_id, state, next_at, doubt_since)
     SELECT n::text, 'wh_1', (ARRAY['success', 'failed', 'success', 'in_doubt', 'in_doubt'])[n],
            CASE n WHEN 5 THEN now() END, CASE WHEN n > 3 THEN now() END FROM generate_series(1, 5) n`,
  );
  await database.query(
    "INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) VALUES (9, 'wh_1', now())",
  );
  const status = await statusOf(database);
  expect(status.deliveries).toEqual({ pending: 0, sending: 0, success: 2, failed: 1, in_doubt: 2 });
  const shown = { url: "https://x", types: ["a.b"] };
  expect(status.webhooks).toEqual([
    { id: "wh_1", ...shown, active: false, disabledReason: "gone", waiting: 1, needsPerson: 1 },
    { id: "wh_2", ...shown, active: true, disabledReason: null, waiting: 0, needsPerson: 0 },
  ]);
  expect(
    JSON.stringify(status, (_, value) => (typeof value === "bigint" ? `${value}` : value)),
  ).not.toContain("whsec");
});

it("measures the lag of what is due, not of what is paused, deleted, claimed or held back by an order", async () => {
  const database = await startDatabase();
  const none = { dueLagSeconds: 0, inDoubt: 0, disabledWebhooks: 0 };
  expect(await readHealth(database)).toEqual(none);
  await insertWebhook(database, "wh_active");
  await insertWebhook(database, "wh_paused", "active = false");
  await insertWebhook(database, "wh_strict", "ordering = 'strict'");
  await insertWebhook(database, "wh_deleted", "active = false, deleted_at = now()");
  await database.query(
    `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
     VALUES (1, 'wh_active', now() + interval '1 minute'), (2, 'wh_paused', now() - interval '1 hour'),
            (3, 'wh_strict', now() - interval '1 hour'), (4, 'wh_deleted', now() - interval '1 hour')`,
  );
  await database.query(
    `INSERT INTO fencepost.deliveries (event_id, webhook_id, state, next_at, doubt_since)
     VALUES ('a', 'wh_active', 'in_doubt', NULL, now()), ('b', 'wh_active', 'in_doubt', now(), now()),
            ('c', 'wh_active', 'failed', NULL, NULL)`,
  );
  expect(await readHealth(database)).toEqual({ ...none, inDoubt: 1, disabledWebhooks: 1 });
  await database.query(
    "INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) VALUES (5, 'wh_active', now() - interval '30 seconds')",
  );
  const { dueLagSeconds } = await readHealth(database);
  expect(dueLagSeconds).toBeGreaterThanOrEqual(30);
  expect(dueLagSeconds).toBeLessThan(1_800);
});
