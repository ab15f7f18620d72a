// The guards that overlap end to end, each at the statement itself: the others would hide that it is gone.
import { deriveEventId, ledgerToken } from "@fencepost/token";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createTestDatabase } from "../../__tests__/support/testDatabase.ts";
import { type Database, openDatabase } from "./database.ts";
import { migrate } from "./migrate.ts";
import { insertProjection, moveProjection } from "./projections.ts";
import { adoptFilters, insertStream, moveEarlier, moveStream, moveWatches, writeWatches } from "./streams.ts";

const closing: (() => Promise<void>)[] = [];
let database: Database;

beforeAll(async () => {
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  database = openDatabase(testDatabase.url);
  closing.push(database.close);
  await migrate(database);
});
afterAll(async () => {
  for (const close of closing.reverse()) await close();
});

describe("the compare-and-set of a stream", () => {
  const at = { stream: "testnet", term: 0n, nextLedger: 5, filtersHash: "filters" };
  const to = { nextLedger: 9, seq: 3n, latestLedger: 9, leaseMs: 1_000 };
  const move = (from: typeof at): Promise<boolean> =>
    database.transaction((client) => moveStream(client, from, to));

  beforeEach(async () => {
    await database.query("TRUNCATE fencepost.watches, fencepost.streams");
    await database.transaction((client) =>
      insertStream(client, { ...at, epoch: "20251217", passphrase: "test" }),
    );
  });

  test("moves it from where it is, once", async () => {
    expect(await move(at)).toBe(true);
    expect(await move(at)).toBe(false);
  });

  test("does not move it under another term", async () => {
    expect(await move({ ...at, term: 1n })).toBe(false);
  });

  test("does not move it from another ledger", async () => {
    expect(await move({ ...at, nextLedger: 4 })).toBe(false);
  });

  test("does not move it with another filter set", async () => {
    await database.transaction((client) => adoptFilters(client, at.stream, "other filters"));
    expect(await move({ ...at, term: 1n })).toBe(false);
  });

  test("moves contracts that lag only from where they are", async () => {
    await database.transaction((client) =>
      writeWatches(client, at.stream, [{ contractId: "C1", startLedger: 1, nextLedger: 2 }]),
    );
    const moveFrom = (from: number): Promise<boolean> =>
      database.transaction((client) => moveWatches(client, at.stream, ["C1"], from, 4, 5));
    expect(await moveFrom(1)).toBe(false);
    expect(await moveFrom(2)).toBe(true);
    expect(await moveFrom(2)).toBe(false);
  });

  test("moves contracts whose start was set back only from where they are", async () => {
    const earlier = { nextLedger: 2, endLedger: 9 };
    await database.transaction((client) =>
      writeWatches(client, at.stream, [{ contractId: "C1", startLedger: 1, nextLedger: null, earlier }]),
    );
    const moveFrom = (from: number): Promise<boolean> =>
      database.transaction((client) => moveEarlier(client, at.stream, ["C1"], from, 4));
    expect(await moveFrom(1)).toBe(false);
    expect(await moveFrom(2)).toBe(true);
    expect(await moveFrom(2)).toBe(false);
  });
});

describe("the compare-and-set of a projection", () => {
  const at = { name: "pools", version: 1, term: 0n, cursor: 0n };
  const move = (from: typeof at): Promise<boolean> =>
    database.transaction((client) => moveProjection(client, from, { cursor: 7n, leaseMs: 1_000 }));

  beforeEach(async () => {
    await database.query("TRUNCATE fencepost.projections");
    await database.transaction((client) =>
      insertProjection(client, { ...at, stream: "testnet", emitAfter: 0n, state: "live", fingerprint: "" }),
    );
  });

  test("moves it from where it is, once", async () => {
    expect(await move(at)).toBe(true);
    expect(await move(at)).toBe(false);
  });

  test("does not move it under another term", async () => {
    expect(await move({ ...at, term: 1n })).toBe(false);
  });

  test("does not move it from another seq", async () => {
    expect(await move({ ...at, cursor: 1n })).toBe(false);
  });
});

describe("a unique key", () => {
  const token = ledgerToken({ stream: "testnet", epoch: "20251217", ledger: 1, tx: 1, op: 0, event: 0 });
  const eventId = deriveEventId(token, "pool.assets_locked");

  test("admits a token to the events once", async () => {
    await twice(
      `INSERT INTO fencepost.events (token, stream, seq, type, tx_hash, ledger, closed_at, topics, value, content_hash)
       VALUES ($1, 'testnet', (random() * 1e9)::bigint, 'contract', '', 1, now(), '{}', '', '')`,
      [token],
    );
  });

  test("admits an event id to the messages once", async () => {
    await twice(
      `INSERT INTO fencepost.messages (event_id, type, state, content_hash, occurred_at)
       VALUES ($1, 'pool.assets_locked', 'emitted', '', now())`,
      [eventId],
    );
  });

  test("admits a webhook and an event id to the deliveries once", async () => {
    await database.query(
      "INSERT INTO fencepost.webhooks (id, url, types, secrets) VALUES ('wh_1', 'https://a.example', '{*}', '{}')",
    );
    await twice("INSERT INTO fencepost.deliveries (event_id, webhook_id) VALUES ($1, 'wh_1')", [eventId]);
  });

  async function twice(statement: string, values: readonly unknown[]): Promise<void> {
    await database.query(statement, values);
    await expect(database.query(statement, values)).rejects.toMatchObject({ code: "23505" });
  }
});
