// Stage ingest of a test: a simulated chain behind an RPC, a source, a database, and whoever leads.
import { type Chain, type RpcServer, startChain, startRpc } from "@fencepost/simulator";
import { type FencingToken, tokenFromRpcId } from "@fencepost/token";
import { afterAll } from "vitest";
import type { DiscoveryRule } from "../../ingest/discovery.ts";
import { createIngest, type Ingest, type IngestContext, ingestStep } from "../../ingest/ingestStep.ts";
import { registerStream, type WatchRequest } from "../../ingest/registerStream.ts";
import type { LeaseKey } from "../../lease/holder.ts";
import { createLog } from "../../observe/log.ts";
import type { StepResult } from "../../runner/runner.ts";
import type { Source } from "../../source/source.ts";
import { type StellarRpcOptions, type StellarRpcSource, stellarRpcWith } from "../../source/stellarRpc.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { acquireLease, openHolder } from "../../store/postgres/leases.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { readStream, type StreamRow } from "../../store/postgres/streams.ts";
import { loadDecoder } from "../../xdr/decode.ts";
import { createTestDatabase, type TestDatabase } from "./testDatabase.ts";
import { never, noWait } from "./windows.ts";

const STREAM: LeaseKey = { kind: "stream", stream: "testnet" };

interface StoredRow {
  readonly token: FencingToken;
  readonly seq: bigint;
  readonly ledger: number;
  readonly late: boolean;
}

export interface IngestBench {
  readonly chain: Chain;
  readonly rpc: RpcServer;
  readonly database: Database;
  readonly source: StellarRpcSource;
  /** What a step needs; a test may give a part of its own. */
  context(over?: Partial<IngestContext>): IngestContext;
  /** Another source at the same node. */
  openSource(options?: Partial<StellarRpcOptions>): StellarRpcSource;
  watch(
    requests: readonly WatchRequest[],
    options?: { adopt?: boolean; source?: Source; rules?: readonly DiscoveryRule[] },
  ): Promise<void>;
  /** Takes the lease as another process would: the term of whoever led before is over. */
  lead(): Promise<bigint>;
  step(term: bigint, over?: Partial<IngestContext>): Promise<StepResult>;
  /** Stage ingest of a process that goes on: what it read ahead is there at its next step. */
  ingest(over?: Partial<IngestContext>): Ingest;
  /** Steps under `term` until one is idle. */
  catchUp(term: bigint, over?: Partial<IngestContext>): Promise<void>;
  stream(): Promise<StreamRow>;
  /** Every stored event, in the order of seq. */
  stored(): Promise<readonly StoredRow[]>;
  /** The tokens of the chain's events of these contracts, in order. */
  tokensOnChain(contractIds: readonly string[], fromLedger?: number): FencingToken[];
  close(): Promise<void>;
}

const MAX_STEPS = 1_000;

/** One database for the tests of a file, which run one after the other: each begins with empty tables. */
let opening: Promise<{ readonly testDatabase: TestDatabase; readonly database: Database }> | undefined;

afterAll(async () => {
  const opened = await opening;
  await opened?.database.close();
  await opened?.testDatabase.drop();
});

async function openEmptyDatabase(): Promise<Database> {
  opening ??= createTestDatabase().then(async (testDatabase) => {
    const database = openDatabase(testDatabase.url);
    await migrate(database);
    return { testDatabase, database };
  });
  const { database } = await opening;
  await database.query(
    "TRUNCATE fencepost.streams, fencepost.watches, fencepost.events, fencepost.conflicts, fencepost.gaps, fencepost.quarantine, fencepost.discoveries",
  );
  return database;
}

export async function openIngest(
  chain: Chain = startChain(),
  options: Partial<StellarRpcOptions> = {},
): Promise<IngestBench> {
  const rpc = await startRpc({ chain });
  const database = await openEmptyDatabase();
  const decoder = await loadDecoder();
  const openSource = (own: Partial<StellarRpcOptions> = {}) =>
    stellarRpcWith({ network: "testnet", urls: rpc.url, ...options, ...own }, noWait);
  const source = openSource();
  const holders: { close(): Promise<void> }[] = [];

  const bench: IngestBench = {
    chain,
    rpc,
    database,
    source,
    context: (over) => ({
      database,
      source,
      decoder,
      leaseMs: 30_000,
      onGap: "stop",
      log: createLog("silent"),
      ...over,
    }),
    openSource,
    watch: (requests, { adopt = false, source: given = source, rules = [] } = {}) =>
      registerStream(database, given, requests, { adopt, rules, signal: never }),
    async lead() {
      await database.query("UPDATE fencepost.streams SET lease_until = NULL");
      const holder = openHolder(database.url);
      holders.push(holder);
      const term = await acquireLease(database, STREAM, await holder.current(), 30_000);
      if (term === null) throw new Error("The lease was not free.");
      return term;
    },
    step: (term, over) => ingestStep(bench.context(over), term, never),
    ingest: (over) => createIngest(bench.context(over)),
    async catchUp(term, over) {
      const ingest = bench.ingest(over);
      for (let steps = 0; steps < MAX_STEPS; steps++) if ((await ingest.step(term, never)) === "idle") return;
      throw new Error(`The stream was not idle after ${MAX_STEPS} steps.`);
    },
    async stream() {
      const row = await readStream(database, "testnet");
      if (!row) throw new Error("There is no stream.");
      return row;
    },
    async stored() {
      const { rows } = await database.query<StoredRow>(
        "SELECT token, seq, ledger::int AS ledger, late FROM fencepost.events ORDER BY seq",
      );
      return rows;
    },
    tokensOnChain: (contractIds, fromLedger = 1) =>
      [...rpc.node.chain.events()]
        .filter((row) => contractIds.includes(row.contractId) && row.ledger >= fromLedger)
        .map((row) => tokenFromRpcId(source.chain, row.id)),
    async close() {
      for (const holder of holders) await holder.close();
      await rpc.close();
    },
  };
  return bench;
}
