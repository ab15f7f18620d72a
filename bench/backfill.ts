// npm run bench:backfill -- --events 200000 --json
// Reads a whole chain into an empty database: events a second through ingest and projection, the engine's peak
// memory, and what PostgreSQL read per window in the first and the last tenth, from its own statistics.
import { type ChildProcess, spawn } from "node:child_process";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { type Database, openDatabase, startEmbeddedPostgres } from "fencepost";
import { firstLine } from "./firstLine.ts";

const { values: options } = parseArgs({
  options: { events: { type: "string", default: "200000" }, json: { type: "boolean", default: false } },
});
const events = Number(options.events);
const MAX_MEMORY_MB = 400;
/** Allowed growth of what a window reads, last tenth over first: noise, not a trend. */
const MAX_GROWTH = 1.5;

const folder = await mkdtemp(join(tmpdir(), "fencepost-bench-"));
await chmod(folder, 0o755); // as root the server runs as another user
const children: ChildProcess[] = [];
let postgres = await startEmbeddedPostgres({ dataDir: folder });
try {
  await recordStatements();
  const report = await measure(postgres.url);
  if (options.json) process.stdout.write(`${JSON.stringify(report)}\n`);
  else console.dir(report, { depth: null });
  if (report.peakMemoryMb > MAX_MEMORY_MB || report.readGrowth > MAX_GROWTH) process.exitCode = 1;
} finally {
  for (const child of children) child.kill("SIGKILL");
  await postgres.stop();
  await rm(folder, { recursive: true, force: true });
}

/** Has PostgreSQL keep what each statement reads; that takes a restart. */
async function recordStatements(): Promise<void> {
  const database = openDatabase(postgres.url);
  await database.query("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
  await database.close();
  await postgres.stop();
  postgres = await startEmbeddedPostgres({ dataDir: folder });
  const again = openDatabase(postgres.url);
  await again.query("CREATE EXTENSION pg_stat_statements");
  await again.close();
}

async function measure(databaseUrl: string) {
  const node = run("backfillNode.ts", [String(events)]);
  const { url, latest } = JSON.parse(await firstLine(node)) as { url: string; latest: number };
  const database = openDatabase(databaseUrl);
  const began = performance.now();
  const engine = run("backfillEngine.ts", [databaseUrl, url]);

  const samples: Sample[] = [];
  let ingestedAt = 0;
  for (;;) {
    if (engine.exitCode !== null) throw new Error(`The engine ended with ${engine.exitCode}.`);
    const sample = await takeSample(database);
    if (sample) {
      samples.push(sample);
      if (ingestedAt === 0 && sample.nextLedger > latest) ingestedAt = performance.now();
      if (sample.nextLedger > latest && sample.projected === sample.seq) break;
    }
    await sleep(500);
  }
  const seconds = (performance.now() - began) / 1_000;
  const peakMemoryMb = await peakMemory(engine);
  await database.close();

  const reads = readsPerWindow(samples);
  return {
    events,
    seconds: round(seconds),
    ingestedPerSecond: round(events / ((ingestedAt - began) / 1_000)),
    projectedPerSecond: round(events / seconds),
    peakMemoryMb,
    reads,
    readGrowth: Math.max(...reads.map(({ growth }) => growth)),
  };
}

interface Sample {
  readonly nextLedger: number;
  readonly seq: number;
  readonly projected: number;
  /** By statement: how often it ran so far, and what it read. */
  readonly statements: ReadonlyMap<string, Reads>;
}

interface Reads {
  readonly query: string;
  readonly calls: number;
  readonly rows: number;
  readonly buffers: number;
}

async function takeSample(database: Database): Promise<Sample | undefined> {
  const { rows: cursors } = await database
    .query<{ next: number; seq: number; projected: number }>(
      `SELECT s.next_ledger::int AS next, s.seq::int, p.cursor::int AS projected
       FROM fencepost.streams s JOIN fencepost.projections p USING (stream)`,
    )
    .catch(() => ({ rows: [] })); // the tables are not there yet
  const cursor = cursors[0];
  if (!cursor) return undefined;
  // A fan-out takes as many messages as there are, so what one run of it reads tells nothing about growth.
  const { rows } = await database.query<Reads & { id: string }>(
    `SELECT queryid::text AS id, query, calls::int, rows::int, (shared_blks_hit + shared_blks_read)::int AS buffers
     FROM pg_stat_statements WHERE query ~ 'fencepost\\.(events|streams|projections|messages)' AND query !~ 'pg_stat_statements|^WITH offered'`,
  );
  const statements = new Map(rows.map(({ id, ...reads }) => [id, reads]));
  return { nextLedger: cursor.next, seq: cursor.seq, projected: cursor.projected, statements };
}

/**
 * For each statement of ingest and projection that runs once a window: what one run reads in the first and in the
 * last tenth of its stage's work.
 */
function readsPerWindow(samples: readonly Sample[]) {
  const last = samples.at(-1);
  if (!last) return [];
  return [...last.statements].flatMap(([id, { query, calls }]) => {
    if (calls < 50) return [];
    const progress = (sample: Sample): number => sample.statements.get(id)?.calls ?? 0;
    const part = (from: number, to: number) => {
      const a = samples.findLast((sample) => progress(sample) <= from * calls)?.statements.get(id);
      const b = samples.find((sample) => progress(sample) >= to * calls)?.statements.get(id);
      const runs = (b?.calls ?? 0) - (a?.calls ?? 0);
      return {
        rows: round(((b?.rows ?? 0) - (a?.rows ?? 0)) / runs, 1),
        buffers: round(((b?.buffers ?? 0) - (a?.buffers ?? 0)) / runs, 1),
      };
    };
    const [first, end] = [part(0, 0.1), part(0.9, 1)];
    const growth = round(end.buffers / Math.max(1, first.buffers), 2);
    return [{ statement: query.replaceAll(/\s+/g, " ").slice(0, 70), runs: calls, first, last: end, growth }];
  });
}

/** The largest resident set of the process so far, in MB: Linux keeps it. */
async function peakMemory({ pid }: ChildProcess): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  return round(Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1]) / 1024);
}

function run(script: string, args: readonly string[]): ChildProcess {
  const path = fileURLToPath(new URL(script, import.meta.url));
  const child = spawn(process.execPath, ["--max-semi-space-size=8", path, ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  children.push(child);
  return child;
}

function round(value: number, digits = 0): number {
  return Number(value.toFixed(digits));
}
