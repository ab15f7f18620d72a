import { asToken, type FencingToken, ledgerToken } from "@fencepost/token";
import { afterEach, expect, it } from "vitest";
import { createTestDatabase } from "../../__tests__/support/testDatabase.ts";
import { type Database, openDatabase } from "./database.ts";
import { migrate } from "./migrate.ts";
import { postgresStore } from "./postgresStore.ts";
import { readTrace, type Trace } from "./trace.ts";

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
  return database;
}

function trace(database: Database, id: string): Promise<Trace | undefined> {
  return readTrace(database, postgresStore(database), id);
}

const CHAIN = { stream: "testnet", epoch: "20251217" };
const TOKEN = ledgerToken({ ...CHAIN, ledger: 7, tx: 1, op: 0, event: 0 });

async function insertEvent(database: Database, token: FencingToken, seq: number): Promise<void> {
  await database.query(
    `INSERT INTO fencepost.events (token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash)
     VALUES ($1, 'testnet', $2, 'contract', 'C1', 'aa', 7, '2026-01-01', '{}', '', '')`,
    [token, seq],
  );
}

async function insertProjection(
  database: Database,
  name: string,
  row: {
    readonly cursor: number;
    readonly state?: string;
    readonly version?: number;
    readonly stopped?: string;
  },
): Promise<void> {
  await database.query(
    `INSERT INTO fencepost.projections (name, version, stream, cursor, state, fingerprint, stopped_token, stopped_error)
     VALUES ($1, $2, 'testnet', $3, $4, '', $5, 'why it stopped')`,
    [name, row.version ?? 1, row.cursor, row.state ?? "live", row.stopped ?? null],
  );
}

it("tells what each projection did with an event", async () => {
  const database = await startDatabase();
  await insertEvent(database, TOKEN, 5);
  await insertProjection(database, "passed", { cursor: 5 });
  await insertProjection(database, "waiting", { cursor: 4 });
  await insertProjection(database, "stopped", { cursor: 4, stopped: TOKEN });
  await insertProjection(database, "skipping", { cursor: 6 });
  await insertProjection(database, "aside", { cursor: 6 });
  await insertProjection(database, "older", { cursor: 4, state: "retired" });
  await insertProjection(database, "older", { cursor: 5, version: 2 });
  await database.query(
    "INSERT INTO fencepost.skips (projection, token, reason) VALUES ('skipping', $1, 'on purpose')",
    [TOKEN],
  );
  await database.query(
    `INSERT INTO fencepost.quarantine (token, projection, version, reason)
     VALUES ($1, 'aside', 1, 'amount: too large'), ($1, 'waiting', 1, 'of an earlier build')`,
    [TOKEN],
  );
  const found = await trace(database, TOKEN);
  expect(
    found?.projections.map(({ name, version, stage, reason }) => [name, version, stage, reason]),
  ).toEqual([
    ["aside", 1, "set_aside", "amount: too large"],
    ["older", 2, "passed", null],
    ["passed", 1, "passed", null],
    ["skipping", 1, "skipped", "on purpose"],
    ["stopped", 1, "stopped", "why it stopped"],
    ["waiting", 1, "waiting", null],
  ]);
  expect(found?.event).toMatchObject({ seq: 5n, undecodable: null, conflicts: 0 });
  expect(found?.messages).toEqual([]);
});

it("tells that an event could not be decoded, and that the source gave other content", async () => {
  const database = await startDatabase();
  await insertEvent(database, TOKEN, 1);
  await database.query(
    "INSERT INTO fencepost.quarantine (token, projection, reason) VALUES ($1, '', 'value: bad')",
    [TOKEN],
  );
  await database.query(
    "INSERT INTO fencepost.conflicts (token, seen_hash, stored_hash, seen) VALUES ($1, 'a', 'b', '{}')",
    [TOKEN],
  );
  expect((await trace(database, TOKEN))?.event).toMatchObject({
    undecodable: "value: bad",
    conflicts: 1,
  });
});

it("shows attempts with their outcome, those without, and what came too late", async () => {
  const database = await startDatabase();
  await database.query(
    `INSERT INTO fencepost.messages (event_id, token, type, state, content_hash, occurred_at)
     VALUES ('order_1', $1, 'order.paid', 'dispatched', '', '2026-01-01'), ('order_2', NULL, 'order.paid', 'dispatched', '', '2026-01-01')`,
    [TOKEN],
  );
  await database.query(
    "INSERT INTO fencepost.webhooks (id, url, types, secrets) VALUES ('wh_1', 'https://x', '{*}', '[]')",
  );
  await database.query(
    `INSERT INTO fencepost.deliveries (event_id, webhook_id, state) VALUES ('order_1', 'wh_1', 'sending'), ('order_2', 'wh_1', 'pending')`,
  );
  await database.query(
    `INSERT INTO fencepost.attempts (delivery_id, number, fence, url, "timestamp", outcome, status, late_outcome)
     VALUES (1, 1, 8, 'https://x', 1, 'unknown', NULL, 'delivered 200'), (1, 2, 9, 'https://y', 2, NULL, NULL, NULL)`,
  );
  await database.query("INSERT INTO fencepost.outbox (event_id, position) VALUES ('order_2', 1)");

  const first = await trace(database, "order_1");
  // The caller's token is carried, although no event of this database has it.
  expect(first).toMatchObject({ token: TOKEN, event: null, projections: [] });
  expect(first?.messages[0]?.deliveries).toMatchObject([
    {
      id: "dlv_1",
      url: "https://x",
      state: "sending",
      attempts: [
        { number: 1, url: "https://x", outcome: "unknown", lateOutcome: "delivered 200" },
        { number: 2, url: "https://y", outcome: null, lateOutcome: null },
      ],
    },
  ]);
  const second = await trace(database, "dlv_2");
  expect(second).toMatchObject({
    token: null,
    event: null,
    messages: [{ eventId: "order_2", inOutbox: true }],
  });
  expect(await trace(database, asToken(TOKEN))).toEqual(first);
});

it("shows the deliveries of a message that is itself kept elsewhere", async () => {
  const database = await startDatabase();
  await database.query(
    "INSERT INTO fencepost.webhooks (id, url, types, secrets, deleted_at) VALUES ('wh_1', 'https://x', '{*}', '[]', now())",
  );
  await database.query(
    "INSERT INTO fencepost.deliveries (event_id, webhook_id, state) VALUES ('order_1', 'wh_1', 'success')",
  );
  const unknown = { type: null, projection: null, state: null, occurredAt: null, createdAt: null };
  const found = await trace(database, "order_1");
  expect(found).toMatchObject({
    token: null,
    event: null,
    messages: [{ eventId: "order_1", ...unknown, inOutbox: false }],
  });
  // Its webhook was deleted: where that would send to is not known any more.
  expect(found?.messages[0]?.deliveries).toMatchObject([{ id: "dlv_1", url: null, attempts: [] }]);
  expect(await trace(database, "dlv_1")).toEqual(found);
});

it("finds a caller's event id that looks like a delivery id, and nothing where nothing is", async () => {
  const database = await startDatabase();
  await database.query(
    `INSERT INTO fencepost.messages (event_id, type, state, content_hash, occurred_at)
     VALUES ('dlv_77', 'order.paid', 'dispatched', '', '2026-01-01')`,
  );
  expect((await trace(database, "dlv_77"))?.messages[0]?.eventId).toBe("dlv_77");
  for (const id of ["dlv_78", "evt_x", TOKEN, ""]) expect(await trace(database, id)).toBeUndefined();
});

it("lists no more than 200 messages of a token, and says that there are more", async () => {
  const database = await startDatabase();
  await insertEvent(database, TOKEN, 1);
  await database.query(
    `INSERT INTO fencepost.messages (event_id, token, type, state, content_hash, occurred_at)
     SELECT 'm' || n, $1, 'a.b', 'emitted', '', '2026-01-01' FROM generate_series(1, 201) n`,
    [TOKEN],
  );
  const found = await trace(database, TOKEN);
  expect(found?.messages).toHaveLength(200);
  expect(found?.truncated).toBe(true);
});
