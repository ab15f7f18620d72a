// Contracts that a factory makes, from the config to the rows: a real database, a node over HTTP, the engine.
import { type Chain, type EventSpec, type RpcServer, scv, startChain, startRpc } from "@fencepost/simulator";
import type { FencingToken } from "@fencepost/token";
import { sql } from "drizzle-orm";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import { afterEach, describe, expect, test } from "vitest";
import { z } from "zod";
import { created, FACTORY } from "./__tests__/support/factory.ts";
import { createTestDatabase } from "./__tests__/support/testDatabase.ts";
import { waitUntil } from "./__tests__/support/waitUntil.ts";
import { never } from "./__tests__/support/windows.ts";
import { type Config, defineConfig } from "./config/config.ts";
import { defineContract, discoveredBy } from "./config/contract.ts";
import { defineProjection, type Projection } from "./config/projection.ts";
import { discoveryOf } from "./discovery.ts";
import { type Engine, prepare, startEngine } from "./engine.ts";
import { beginEpoch } from "./ingest/beginEpoch.ts";
import { createLog } from "./observe/log.ts";
import { projectStep } from "./project/projectStep.ts";
import { stellarRpc } from "./source/stellarRpc.ts";
import { type Database, openDatabase } from "./store/postgres/database.ts";
import { acquireLease, openHolder } from "./store/postgres/leases.ts";
import type { NamingEvent } from "./store/postgres/streams.ts";
import { loadDecoder } from "./xdr/decode.ts";

const [P, Q, R, S] = ["p", "q", "r", "s"].map(scv.contractId) as [string, string, string, string];
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const factory = defineContract({
  id: FACTORY,
  startLedger: 1,
  events: { pool_created: z.object({ pool: z.string() }) },
});
const pool = defineContract({
  id: discoveredBy(factory, "pool_created", (e) => e.pool),
  events: { swap: z.object({ amount: z.number() }) },
});
const swaps = pgTable("swaps", {
  token: text().primaryKey(),
  pool: text().notNull(),
  amount: integer().notNull(),
  times: integer().notNull(),
});

/** A row a swap, and how often it was projected. */
function swapsProjection(version: number, of: typeof pool = pool): Projection {
  return defineProjection({
    name: "swaps",
    version,
    contracts: { pool: of },
    tables: { swaps },
    on: {
      "pool:swap": async ({ event, db }) => {
        const { token, contractId, data } = event;
        await db
          .insert(swaps)
          .values({ token, pool: contractId, amount: data.amount, times: 1 })
          .onConflictDoUpdate({ target: swaps.token, set: { times: sql`${swaps.times} + 1` } });
      },
    },
  });
}

/** Has the events of the factory and of this contract stored, and does nothing with them. */
function watching(id: string): Projection {
  return defineProjection({
    name: "by_id",
    version: 1,
    contracts: { factory, pool: defineContract({ id, startLedger: 1, events: pool.events }) },
    tables: {},
    on: {},
  });
}

let amount = 0;
const swap = (contract: string, tx: number) => ({
  contract,
  topics: [scv.sym("swap")],
  value: scv.struct({ amount: scv.u32(++amount) }),
  tx,
});

/** Ledgers with a swap in each of these contracts. */
function closeSwaps(chain: Chain, count: number, contracts: readonly string[]): void {
  for (let i = 0; i < count; i++) chain.close({ events: contracts.map((id, n) => swap(id, n + 2)) });
}

interface Bench {
  readonly chain: Chain;
  readonly rpc: RpcServer;
  readonly database: Database;
  /** In the epoch of today unless another one is named. */
  config(projections: readonly Projection[], epoch?: string): Config;
  run(
    projections: readonly Projection[],
    options?: { readonly adopt?: boolean; readonly epoch?: string },
  ): Promise<Engine>;
  rows(): Promise<readonly { pool: string; amount: number; times: number }[]>;
}

async function open(): Promise<Bench> {
  const chain = startChain();
  const rpc = await startRpc({ chain });
  closing.push(rpc.close);
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  const config = (projections: readonly Projection[], epoch = "20251217"): Config => {
    const network = { name: "testnet", passphrase: "Test SDF Network ; September 2015", epoch };
    return defineConfig({ source: stellarRpc({ network, urls: rpc.url, pollMs: 20 }), projections });
  };
  return {
    chain,
    rpc,
    database,
    config,
    async run(projections, { adopt = false, epoch } = {}) {
      const options = { database, config: config(projections, epoch) };
      await prepare(options, { adopt, rebuildChanged: false, signal: never });
      const engine = await startEngine({ ...options, log: createLog("error") });
      closing.push(() => engine.stop());
      return engine;
    },
    async rows() {
      const { rows } = await database.query<{ pool: string; amount: number; times: number }>(
        "SELECT pool, amount, times FROM swaps.swaps ORDER BY amount",
      );
      return rows;
    },
  };
}

const amountsOf = (rows: readonly { amount: number }[]) => rows.map((row) => row.amount);

/** Waits until the projection has as many rows. */
async function untilRows(bench: Bench, count: number): Promise<void> {
  await waitUntil(async () => (await bench.rows()).length >= count, {
    what: `${count} swaps are projected`,
    timeoutMs: 30_000,
  });
}

async function untilLive({ database }: Bench, version: number): Promise<void> {
  await waitUntil(
    async () => {
      const text = "SELECT FROM fencepost.projections WHERE version = $1 AND state = 'live'";
      return (await database.query(text, [version])).rows.length === 1;
    },
    { what: `version ${version} is live`, timeoutMs: 30_000 },
  );
}

test("contracts that a factory makes while the engine runs are projected, each event once, also after a restart and in a rebuild", async () => {
  amount = 0;
  const bench = await open();
  const { chain } = bench;
  closeSwaps(chain, 2, [P]); // 1, 2: before anybody knows of it
  chain.close({ events: [created(P), swap(P, 2)] }); // 3
  closeSwaps(chain, 20, [P]); // to 23
  const first = await bench.run([swapsProjection(1)]);
  await untilRows(bench, 21);
  chain.close({ events: [created(Q), swap(Q, 2), swap(P, 3)] }); // 24, 25
  closeSwaps(chain, 3, [P, Q]); // to 31
  await untilRows(bench, 29);
  await first.stop();
  chain.close({ events: [swap(R, 2)] }); // 32: not yet made
  chain.close({ events: [created(R), swap(R, 2)] }); // 33
  closeSwaps(chain, 5, [P, Q, R]); // to 48
  const second = await bench.run([swapsProjection(1)]);
  await untilRows(bench, 45);
  const live = await bench.rows();
  expect(live.every(({ times }) => times === 1)).toBe(true);
  const wanted = Array.from({ length: 48 }, (_, i) => i + 1).filter((n) => ![1, 2, 32].includes(n));
  expect(amountsOf(live)).toEqual(wanted);
  expect(new Set(live.map((row) => row.pool))).toEqual(new Set([P, Q, R]));
  await second.stop();

  await bench.run([swapsProjection(2)]);
  await untilLive(bench, 2);
  expect(await bench.rows()).toEqual(live);
});

describe("after a reset of the network", () => {
  const NEXT_EPOCH = "20260617";

  // Events of S are stored in any case, so that only the rule says whose they are.
  const versioned = (version: number) => [swapsProjection(version), watching(S)];

  /** The rows of an old chain on which P, Q and S were made, then the next epoch, on which P, Q and R are made. */
  async function openNextEpoch(): Promise<{ readonly bench: Bench; readonly due: readonly number[] }> {
    amount = 0;
    const bench = await open();
    const { chain, rpc, database } = bench;
    chain.close({ events: [created(P), swap(P, 2)] }); // 1
    closeSwaps(chain, 5, [P]); // to 6
    chain.close({ events: [created(Q), created(S, { tx: 2 }), swap(Q, 3), swap(S, 4)] }); // 7, 8
    const before = await bench.run(versioned(1));
    await untilRows(bench, 8);
    await before.stop();

    const next = startChain({ life: "second" });
    next.close({ events: [swap(P, 2), swap(Q, 3), swap(S, 4)] }); // 9 to 11: of nobody's that was made here
    next.close({ events: [created(Q), swap(Q, 2), swap(P, 3)] }); // 12, 13: earlier than on the old chain
    closeSwaps(next, 4, [P, S]); // 14 to 21: not made yet, and never
    next.close({ events: [created(P), swap(P, 2)] }); // 22: later than on the old chain
    next.close({ events: [created(R), swap(R, 2), swap(Q, 3), swap(S, 4)] }); // 23 to 25
    closeSwaps(next, 2, [P, Q, R, S]); // 26 to 33
    rpc.node.chain = next;
    await beginEpoch(database, bench.config(versioned(1), NEXT_EPOCH).source!, { signal: never });
    return { bench, due: [1, 2, 3, 4, 5, 6, 7, 8, 12, 22, 23, 24, 26, 27, 28, 30, 31, 32] };
  }

  async function expectDue({ bench, due }: Awaited<ReturnType<typeof openNextEpoch>>): Promise<void> {
    const rows = await bench.rows();
    expect(amountsOf(rows)).toEqual(due);
    expect(rows.every(({ times }) => times === 1)).toBe(true);
  }

  test("contracts are found anew on the new chain; those of the old one stay its own, also in a rebuild", async () => {
    const { bench, due } = await openNextEpoch();
    const first = await bench.run(versioned(1), { epoch: NEXT_EPOCH });
    await untilRows(bench, due.length);
    await expectDue({ bench, due });
    const { rows: watched } = await bench.database.query(
      "SELECT contract_id AS id, start_ledger::int AS ledger FROM fencepost.watches WHERE found_by IS NOT NULL ORDER BY 2",
    );
    expect(watched).toEqual([
      { id: Q, ledger: 2 },
      { id: P, ledger: 7 },
      { id: R, ledger: 8 },
    ]);
    await first.stop();
    await bench.run(versioned(2), { epoch: NEXT_EPOCH });
    await untilLive(bench, 2);
    await expectDue({ bench, due });
  });

  test("a version that is built from then on by another rule has the events of both chains", async () => {
    const { bench, due } = await openNextEpoch();
    const other = defineContract({
      id: discoveredBy(factory, "pool_created", (e) => `${e.pool}`),
      events: pool.events,
    });
    const projections = [swapsProjection(2, other), watching(S)];
    await bench.run(projections, { epoch: NEXT_EPOCH, adopt: true });
    await untilLive(bench, 2);
    await untilRows(bench, due.length);
    await expectDue({ bench, due });
  });
});

test("a projection of contracts whose events are stored already waits until the rule looked at everything", async () => {
  amount = 0;
  const bench = await open();
  const { chain, database } = bench;
  closeSwaps(chain, 2, [P]); // 1, 2
  chain.close({ events: [created(P), swap(P, 2)] }); // 3
  closeSwaps(chain, 3, [P]); // to 6
  const before = await bench.run([watching(P)]);
  await waitUntil(async () => (await database.query("SELECT FROM fencepost.events")).rows.length === 7, {
    what: "all is stored",
    timeoutMs: 30_000,
  });
  await before.stop();

  const projection = swapsProjection(1);
  const config = bench.config([projection]);
  await prepare({ database, config }, { adopt: true, rebuildChanged: false, signal: never });
  const holder = openHolder(database.url);
  const key = { kind: "projection", name: "swaps", version: 1 } as const;
  const term = (await acquireLease(database, key, await holder.current(), 30_000)) ?? 0n;
  const context = { database, projection, decoder: await loadDecoder(), leaseMs: 30_000 };
  expect(await projectStep({ ...context, log: createLog("silent") }, term)).toBe("idle");
  await holder.close();

  await bench.run([projection]);
  await untilRows(bench, 4);
  expect(await bench.rows()).toEqual([3, 4, 5, 6].map((n) => ({ pool: P, amount: n, times: 1 })));
});

test("a rule reads its own event by the shape of its factory, and tells why an event names nobody", async () => {
  const source = stellarRpc({ network: "testnet", urls: "http://127.0.0.1:9" });
  const picky = defineContract({
    id: discoveredBy(factory, "pool_created", (e) => {
      if (e.pool === P) return null;
      if (e.pool === Q) throw new Error("not this one");
      return e.pool;
    }),
    events: { swap: z.object({ amount: z.number() }) },
  });
  const projection = { ...swapsProjection(1), contracts: { pool, picky } };
  const { rules, find } = discoveryOf(defineConfig({ source, projections: [projection] }));
  const [plain = "", own = ""] = rules.map(({ name }) => name);
  expect(rules).toEqual([
    { name: `${FACTORY}/pool_created/pool`, factoryId: FACTORY },
    { name: own, factoryId: FACTORY },
  ]);
  const named = (fields: Partial<EventSpec>, contractId = FACTORY): NamingEvent => {
    const { topics = [], value } = { ...created(P), ...fields };
    return { contractId, token: "" as FencingToken, ledger: 1, topics, value };
  };
  expect(await find(named({}, P))).toEqual([]);
  expect(await find(named({ topics: [scv.sym("closed")] }))).toEqual([]);
  expect(await find(named({}))).toEqual([{ rule: plain, contractId: P }]);
  expect(await find(named(created(Q)))).toEqual([
    { rule: plain, contractId: Q },
    { rule: own, misfit: "Error: not this one" },
  ]);
  expect(await find(named({ value: scv.u32(5) }))).toEqual([
    { rule: plain, misfit: expect.stringContaining("expected object") },
    { rule: own, misfit: expect.stringContaining("expected object") },
  ]);
});
