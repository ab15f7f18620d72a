import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import type { Loop, StepResult } from "../runner/runner.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { acquireLease, type HolderConnection, openHolder } from "../store/postgres/leases.ts";
import { migrate } from "../store/postgres/migrate.ts";
import type { LeaseKey } from "./holder.ts";
import { type LeaderOptions, startLeader } from "./leader.ts";
import { StaleTermError } from "./term.ts";

const KEY: LeaseKey = { kind: "stream", stream: "testnet" };
const LONG_MS = 600_000;

let testDatabase: TestDatabase;
let database: Database;
const closing: (() => Promise<unknown>)[] = [];

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
  await database.query("TRUNCATE fencepost.streams, fencepost.watches");
  await database.query(
    "INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash) VALUES ('testnet', '20251217', 'p', 1, 'h')",
  );
});
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function openTestHolder(): HolderConnection {
  const holder = openHolder(testDatabase.url);
  closing.push(holder.close);
  return holder;
}

interface Led {
  readonly loop: Loop;
  readonly holder: HolderConnection;
  /** The terms of its steps, in order. */
  readonly terms: bigint[];
  readonly errors: unknown[];
  readonly log: string[];
}

function lead(options: Partial<LeaderOptions> = {}): Led {
  const holder = openTestHolder();
  const [terms, errors, log]: [bigint[], unknown[], string[]] = [[], [], []];
  const { step = async (): Promise<StepResult> => "idle", ...rest } = options;
  const loop = startLeader({
    database,
    holder,
    key: KEY,
    leaseMs: LONG_MS,
    idleMs: 10,
    log: createLog("debug", { write: (line) => log.push(JSON.parse(line).msg as string) }),
    onError: (error) => errors.push(error),
    ...rest,
    step(term, signal) {
      terms.push(term);
      return step(term, signal);
    },
  });
  closing.push(loop.stop);
  return { loop, holder, terms, errors, log };
}

const leads = ({ terms }: Led, term: bigint) =>
  waitUntil(() => terms.at(-1) === term, { what: `a step runs under term ${term}` });
const takeOver = () =>
  database.query(
    "UPDATE fencepost.streams SET term = term + 1, holder = 'another', lease_until = clock_timestamp() + interval '1 hour', holder_pid = pg_backend_pid(), holder_started = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())",
  );
const setFree = () => database.query("UPDATE fencepost.streams SET lease_until = NULL");

describe("of two processes", () => {
  test("one leads; when it stops the other leads under the next term, without waiting for the lease", async () => {
    const first = lead();
    await leads(first, 1n);
    const second = lead();
    await second.holder.current();
    await waitUntil(() => first.terms.length > 20, { what: "the first has led for a while" });
    expect(second.terms).toEqual([]);
    await first.loop.stop();
    await leads(second, 2n);
    expect(new Set(first.terms)).toEqual(new Set([1n]));
  });

  test("the other takes over at once when the connection of the one's process is gone", async () => {
    const first = lead();
    await leads(first, 1n);
    const second = lead();
    await first.holder.close();
    await leads(second, 2n);
  });
});

describe("a term that was lost", () => {
  test("is noticed by the commit that it fails: the process waits, and leads again when it can", async () => {
    const led = lead({
      async step(term) {
        const { rows } = await database.query<{ term: bigint }>("SELECT term FROM fencepost.streams");
        if (rows[0]?.term !== term) throw new StaleTermError("ingest testnet", term, "stale_term");
        return "idle";
      },
    });
    await leads(led, 1n);
    await takeOver();
    await waitUntil(() => led.errors.length > 0, { what: "a commit fails" });
    await setFree();
    await leads(led, 3n);
    expect(led.errors).toEqual([expect.objectContaining({ name: "StaleTermError", term: 1n })]);
    expect(new Set(led.terms)).toEqual(new Set([1n, 3n]));
    expect(led.log.filter((line) => line === "term lost")).toHaveLength(1);
  });

  test("is noticed by the renewal, also while no step commits", async () => {
    const led = lead({ leaseMs: 300, idleMs: LONG_MS });
    await leads(led, 1n);
    await takeOver();
    await waitUntil(() => led.log.includes("term lost"), { what: "the renewal finds the term gone" });
    await setFree();
    led.loop.wake();
    await leads(led, 3n);
  });
});

test("a lease is renewed while its process leads, however long its steps take", async () => {
  const led = lead({ leaseMs: 300, idleMs: LONG_MS });
  await leads(led, 1n);
  const other = openTestHolder();
  const until = async () =>
    (
      await database.query<{ at: Date }>("SELECT lease_until AS at FROM fencepost.streams")
    ).rows[0]?.at.getTime() ?? 0;
  const first = await until();
  await waitUntil(async () => (await until()) > first + 600, {
    what: "the lease reaches two leases further",
  });
  expect(await acquireLease(database, KEY, await other.current(), LONG_MS)).toBeNull();
  expect(led.terms).toEqual([1n]);
});

test("an error of a step keeps the term, and the step is tried again", async () => {
  let failures = 2;
  const led = lead({
    async step() {
      if (failures-- > 0) throw new Error("not now");
      return "idle";
    },
  });
  await waitUntil(() => led.terms.length > 3, { what: "steps run again" });
  expect(new Set(led.terms)).toEqual(new Set([1n]));
  expect(led.errors).toHaveLength(2);
});

test("a database that is away is waited for", async () => {
  const led = lead({ holder: openHolder("postgres://nobody@127.0.0.1:1/none") });
  await waitUntil(() => led.errors.length > 1, { what: "it was tried twice" });
  expect(led.errors[0]).toMatchObject({ name: "DatabaseUnreachableError" });
  expect(led.terms).toEqual([]);
});
