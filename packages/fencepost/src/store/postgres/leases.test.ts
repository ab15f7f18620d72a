import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import type { LeaseKey } from "../../lease/holder.ts";
import { type Database, openDatabase } from "./database.ts";
import { acquireLease, type HolderConnection, openHolder, releaseLease, renewLease } from "./leases.ts";
import { migrate } from "./migrate.ts";
import { stageTransaction } from "./stageTransaction.ts";

const STREAM: LeaseKey = { kind: "stream", stream: "testnet" };
const PROJECTION: LeaseKey = { kind: "projection", name: "pools", version: 2 };
const LONG_MS = 600_000;

let testDatabase: TestDatabase;
let database: Database;
let one: HolderConnection;
let two: HolderConnection;

beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});
beforeEach(async () => {
  await database.query("TRUNCATE fencepost.streams, fencepost.watches, fencepost.projections");
  await database.query(
    "INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash) VALUES ('testnet', '20251217', 'p', 1, 'h')",
  );
  await database.query(
    `INSERT INTO fencepost.projections (name, version, stream, state, fingerprint)
     VALUES ('pools', 1, 'testnet', 'retired', 'f'), ('pools', 2, 'testnet', 'live', 'f')`,
  );
  one = openHolder(testDatabase.url);
  two = openHolder(testDatabase.url);
});
afterEach(async () => {
  await Promise.all([one.close(), two.close()]);
});

const acquire = async (holder: HolderConnection, key: LeaseKey = STREAM, leaseMs = LONG_MS) =>
  acquireLease(database, key, await holder.current(), leaseMs);
const expire = () => database.query("UPDATE fencepost.streams SET lease_until = clock_timestamp()");
/** Tries until the lease is free. */
async function acquireSoon(holder: HolderConnection): Promise<bigint> {
  const terms: (bigint | null)[] = [];
  const free = async () => {
    terms.push(await acquire(holder));
    return terms.at(-1) !== null;
  };
  await waitUntil(free, { what: "the lease is free" });
  return terms.at(-1) ?? 0n;
}
const terminate = (pid: number) => database.query("SELECT pg_terminate_backend($1)", [pid]);

describe.each([
  ["a stream", STREAM],
  ["one version of a projection", PROJECTION],
])("the lease of %s", (_, key) => {
  test("is held while its holder's backend lives and its time has not passed", async () => {
    expect(await acquire(one, key)).toBe(1n);
    expect(await acquire(two, key)).toBeNull();
    expect(await acquire(one, key)).toBe(2n); // its holder may take it again, under a new term
    const { rows } = await database.query(
      "SELECT version, term::int AS term FROM fencepost.projections ORDER BY 1",
    );
    expect(rows).toEqual([
      { version: 1, term: 0 },
      { version: 2, term: key === PROJECTION ? 2 : 0 },
    ]);
  });

  test("is free at once when it is given back", async () => {
    const term = (await acquire(one, key)) ?? 0n;
    await releaseLease(database, key, term - 1n); // an older term gives nothing back
    expect(await acquire(two, key)).toBeNull();
    await releaseLease(database, key, term);
    expect(await acquire(two, key)).toBe(term + 1n);
  });
});

test("of many that want a free lease at once, one gets it", async () => {
  const holders = Array.from({ length: 8 }, () => openHolder(testDatabase.url));
  try {
    await Promise.all(holders.map((holder) => holder.current()));
    const terms = await Promise.all(holders.map((holder) => acquire(holder)));
    expect(terms.filter((term) => term !== null)).toEqual([1n]);
  } finally {
    await Promise.all(holders.map((holder) => holder.close()));
  }
});

test("a lease is taken over at once when its holder's backend is gone, long before its time", async () => {
  await acquire(one);
  await one.close();
  expect(await acquireSoon(two)).toBe(2n);
});

test("a lease is taken over when the holder's process id belongs to another backend now", async () => {
  await acquire(one);
  await database.query("UPDATE fencepost.streams SET holder_started = holder_started - interval '1 hour'");
  expect(await acquire(two)).toBe(2n);
});

test("a lease is taken over when its time has passed, though its holder's backend lives", async () => {
  await acquire(one);
  await expire();
  expect(await acquire(two)).toBe(2n);
  expect(await acquire(one)).toBeNull();
});

test("a row that a live commit has locked is passed over without waiting", async () => {
  await acquire(one);
  await expire();
  await database.transaction(async (client) => {
    await client.query("SELECT FROM fencepost.streams FOR UPDATE");
    expect(await acquire(two)).toBeNull();
  });
  expect(await acquire(two)).toBe(2n);
});

describe("a renewal", () => {
  const renew = async (holder: HolderConnection, term: bigint) =>
    renewLease(database, STREAM, await holder.current(), term, LONG_MS);

  test("extends the lease of the term that holds it, and of no other", async () => {
    await acquire(one, STREAM, 1_000);
    await expire();
    expect(await renew(one, 1n)).toBe(true);
    expect(await acquire(two)).toBeNull();
    expect(await renew(one, 0n)).toBe(false);
    expect(await renew(two, 1n)).toBe(false);
    await expire();
    expect(await acquire(two)).toBe(2n);
    expect(await renew(one, 1n)).toBe(false);
  });

  test("does not bring back a lease that was given back", async () => {
    await acquire(one);
    await releaseLease(database, STREAM, 1n);
    expect(await renew(one, 1n)).toBe(false);
  });

  test("names the new backend of a holder whose connection broke", async () => {
    const before = await one.current();
    await acquire(one);
    await terminate(before.pid);
    await waitUntil(async () => (await one.current()).pid !== before.pid, {
      what: "the holder has connected again",
    });
    expect((await one.current()).id).toBe(before.id);
    expect(await renew(one, 1n)).toBe(true);
    expect(await acquire(two)).toBeNull();
  });
});

test("a leader paused inside a transaction is cut off by name, and does not hold up its successor", async () => {
  const leaseMs = 1_000;
  const term = await acquire(one, STREAM, leaseMs);
  let successor = 0n;
  const paused = stageTransaction(database, leaseMs, async (client) => {
    await client.query("SELECT FROM fencepost.streams WHERE stream = 'testnet' FOR UPDATE");
    successor = await acquireSoon(two);
    await client.query("UPDATE fencepost.streams SET next_ledger = 999");
  });
  await expect(paused).rejects.toMatchObject({ name: "ConnectionLostError", code: "25P03" });
  expect(successor).toBe((term ?? 0n) + 1n);
  const { rows } = await database.query("SELECT next_ledger::int AS n, term FROM fencepost.streams");
  expect(rows).toEqual([{ n: 1, term: successor }]);
});

test("a holder says where it cannot connect", async () => {
  const url = new URL(testDatabase.url);
  url.pathname = "/fencepost_not_there";
  const holder = openHolder(url.href);
  await expect(holder.current()).rejects.toMatchObject({ name: "DatabaseUnreachableError" });
  await holder.close();
});
