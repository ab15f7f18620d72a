// npm run bench:ingest -- --events 100000 --ledgers 300 --contracts 5 --json
// Events a second stored from a simulated node, next to the same rows inserted by hand-written batched SQL; and ledgers
// of a data lake stored, next to bare decoding of the same ledgers, by the SDK and by the reader of the source. Memory is
// told for the first tenth of the ledgers and for all of them.
import { type ChildProcess, spawn } from "node:child_process";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { scv } from "@fencepost/simulator";
import {
  createLog,
  type Database,
  migrate,
  openDatabase,
  startEmbeddedPostgres,
  stellarRpc,
} from "fencepost";
import { createIngest } from "../packages/fencepost/src/ingest/ingestStep.ts";
import { registerStream } from "../packages/fencepost/src/ingest/registerStream.ts";
import { dataLake } from "../packages/fencepost/src/source/dataLake/dataLake.ts";
import type { Source } from "../packages/fencepost/src/source/source.ts";
import { loadDecoder } from "../packages/fencepost/src/xdr/decode.ts";
import { firstLine } from "./firstLine.ts";
import { decodeByReader, decodeBySdk, hasRecordedLedgers, writeRecordedLake } from "./ingestLake.ts";

const { values: options } = parseArgs({
  options: {
    events: { type: "string", default: "100000" },
    ledgers: { type: "string", default: "300" },
    contracts: { type: "string", default: "5" },
    json: { type: "boolean", default: false },
  },
});
/** Rows that are inserted by hand; more of them take longer, not another time each. */
const ROWS_BY_HAND = 100_000;
/** Ledgers that the SDK decodes, a quarter of a second each. */
const LEDGERS_BY_SDK = 20;

const { signal } = new AbortController();
const log = createLog("error");
const decoder = await loadDecoder();
const folder = await mkdtemp(join(tmpdir(), "fencepost-bench-"));
await chmod(folder, 0o755); // as root the server runs as another user
const postgres = await startEmbeddedPostgres({ dataDir: join(folder, "postgres") });
const database = openDatabase(postgres.url);
let node: ChildProcess | undefined;
try {
  await migrate(database);
  const rpc = await measureRpc();
  const lake = await measureLake();
  const ratio = {
    rpc: rpc.ratio,
    lake: lake?.ratio ?? null,
    lakeToOwnReader: lake?.ratioToOwnReader ?? null,
  };
  const report = { rpc, lake, ratio };
  if (options.json) process.stdout.write(`${JSON.stringify(report)}\n`);
  else console.dir(report, { depth: null });
} finally {
  node?.kill("SIGKILL");
  await database.close();
  await postgres.stop();
  await rm(folder, { recursive: true, force: true });
}

async function measureRpc() {
  node = spawn(
    process.execPath,
    [fileURLToPath(new URL("backfillNode.ts", import.meta.url)), options.events],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const { url, latest } = JSON.parse(await firstLine(node)) as { url: string; latest: number };
  const source = stellarRpc({ network: "testnet", urls: url, pageLimit: 10_000 });
  const stored = await store(source, [scv.contractId("bench")], "oldest", latest);
  const byHand = await insertByHand(database);
  const perSecond = stored.events / stored.seconds;
  const { peakMemoryMb, heldMemoryMb } = stored;
  return {
    events: stored.events,
    perSecond: Math.round(perSecond),
    byHandPerSecond: Math.round(byHand),
    ratio: round2(perSecond / byHand),
    peakMemoryMb,
    heldMemoryMb,
  };
}

/** Undefined where the recorded ledgers are not there. */
async function measureLake() {
  if (!hasRecordedLedgers()) return undefined;
  await database.query("TRUNCATE fencepost.streams, fencepost.watches, fencepost.events CASCADE");
  const lake = await writeRecordedLake(join(folder, "lake"), Number(options.ledgers));
  const contractIds = lake.contractIds.slice(0, Number(options.contracts));
  const bySdk = await decodeBySdk(lake, LEDGERS_BY_SDK);
  const byReader = await decodeByReader(lake, contractIds);
  const source = dataLake({ network: "pubnet", url: lake.folder });
  const stored = await store(source, contractIds, lake.fromLedger, lake.throughLedger);
  const ledgers = lake.throughLedger - lake.fromLedger + 1;
  const each = stored.seconds / ledgers;
  return {
    ledgers,
    contracts: contractIds.length,
    events: stored.events,
    ledgersPerSecond: round2(1 / each),
    sdkLedgersPerSecond: round2(1 / bySdk),
    ownReaderLedgersPerSecond: round2(1 / byReader),
    ratio: round2(bySdk / each),
    ratioToOwnReader: round2(byReader / each),
    peakMemoryMb: stored.peakMemoryMb,
    heldMemoryMb: stored.heldMemoryMb,
  };
}

interface Stored {
  readonly events: number;
  readonly seconds: number;
  /** The most that this process took of the machine. */
  readonly peakMemoryMb: Memory;
  /** What it held on to, without garbage. */
  readonly heldMemoryMb: Memory;
}

/** When the first tenth of the ledgers was stored, and when all of them were. */
interface Memory {
  readonly firstTenth: number;
  readonly whole: number;
}

/** Stage ingest, from an empty stream through one ledger. */
async function store(
  source: Source,
  contractIds: readonly string[],
  startLedger: number | "oldest",
  throughLedger: number,
): Promise<Stored> {
  const requests = contractIds.map((contractId) => ({ contractId, startLedger }));
  await registerStream(database, source, requests, { adopt: false, signal });
  const peakMemoryMb = { firstTenth: 0, whole: 0 };
  const heldMemoryMb = { firstTenth: 0, whole: 0 };
  let events = 0;
  let firstLedger = 0;
  let ledger = 0;
  const ingest = createIngest({
    database,
    source,
    decoder,
    leaseMs: 10_000,
    onGap: "stop",
    log,
    onStored(stored) {
      events += stored.events;
      ledger = stored.ledger;
      firstLedger ||= ledger;
      peakMemoryMb.whole = Math.max(peakMemoryMb.whole, megabytes(process.memoryUsage.rss()));
    },
  });
  const began = performance.now();
  while (ledger < throughLedger) {
    await ingest.step(0n, signal);
    const isTenth = ledger - firstLedger >= (throughLedger - firstLedger) / 10;
    if (!isTenth || peakMemoryMb.firstTenth > 0) continue;
    peakMemoryMb.firstTenth = peakMemoryMb.whole;
    heldMemoryMb.firstTenth = held();
  }
  const seconds = (performance.now() - began) / 1_000;
  heldMemoryMb.whole = held();
  return { events, seconds, peakMemoryMb, heldMemoryMb };
}

/** What is in use once all garbage has gone. */
function held(): number {
  globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return megabytes(heapUsed + external);
}

function megabytes(bytes: number): number {
  return Math.round(bytes / 2 ** 20);
}

/**
 * Takes stored rows out and inserts them again, as a careful hand would: batches of 500 in one statement each. Returns
 * rows a second.
 */
async function insertByHand(database: Database): Promise<number> {
  const { rows } = await database.query<Record<string, unknown>>(
    `SELECT token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, array_to_json(topics)::text AS topics, value,
            content_hash FROM fencepost.events ORDER BY token LIMIT $1`,
    [ROWS_BY_HAND],
  );
  await database.query("TRUNCATE fencepost.events");
  const columns = [
    "token",
    "stream",
    "seq",
    "type",
    "contract_id",
    "tx_hash",
    "ledger",
    "closed_at",
    "topics",
  ];
  const began = performance.now();
  for (let i = 0; i < rows.length; i += 500) {
    const batch = rows.slice(i, i + 500);
    await database.query(
      `INSERT INTO fencepost.events
         (token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash)
       SELECT token, stream, seq, type, contract_id, tx_hash, ledger, closed_at,
              ARRAY(SELECT jsonb_array_elements_text(topics::jsonb)), value, content_hash
       FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                   $8::timestamptz[], $9::text[], $10::text[], $11::bytea[])
         AS i(token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash)`,
      [...columns, "value", "content_hash"].map((column) => batch.map((row) => row[column])),
    );
  }
  return rows.length / ((performance.now() - began) / 1_000);
}

function round2(value: number): number {
  return Math.round(value * 100) / 100;
}
