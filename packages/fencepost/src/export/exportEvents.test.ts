import { createWriteStream } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { finished } from "node:stream/promises";
import { type Chain, losesRows, scv, startChain } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { lockAssets, POOL_CONTRACT, poolsProjection } from "../__tests__/support/pools.ts";
import { createTestDatabase } from "../__tests__/support/testDatabase.ts";
import { never } from "../__tests__/support/windows.ts";
import { backfill } from "../ingest/backfill.ts";
import { createIngest } from "../ingest/ingestStep.ts";
import { registerStream, type WatchRequest } from "../ingest/registerStream.ts";
import { createLog } from "../observe/log.ts";
import { projectStep } from "../project/projectStep.ts";
import { registerProjection } from "../project/registerProjection.ts";
import { replay } from "../source/replayFile/replay.ts";
import type { Source } from "../source/source.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { acquireLease, openHolder } from "../store/postgres/leases.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { type ExportOptions, ExportRangeError, type ExportReport, exportEvents } from "./exportEvents.ts";

const OTHER = scv.contractId("other");
const BOTH = [
  { contractId: POOL_CONTRACT, startLedger: 1 },
  { contractId: OTHER, startLedger: 12 },
];

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fencepost-export-"));
});
afterAll(() => rm(folder, { recursive: true }));
let bench: IngestBench;
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await bench.close();
});

function closeLedgers(chain: Chain, count: number): void {
  for (let i = 0; i < count; i++) {
    lockAssets(chain, 7);
    chain.close({ events: [{ contract: OTHER, topics: [scv.sym("locked")], value: scv.u32(i) }] });
  }
}

async function startStored(watched: readonly WatchRequest[] = BOTH, ledgers = 20): Promise<bigint> {
  const chain = startChain();
  closeLedgers(chain, ledgers);
  bench = await openIngest(chain);
  await bench.watch(watched);
  const term = await bench.lead();
  await bench.catchUp(term);
  return term;
}

async function exportTo(
  name: string,
  database: Database = bench.database,
  options: Partial<ExportOptions> = {},
): Promise<ExportReport & { readonly path: string }> {
  const path = join(folder, name);
  const file = createWriteStream(path);
  const report = await exportEvents(database, { stream: "testnet", ...options }, file);
  await finished(file.end());
  return { ...report, path };
}

const recorded = (path: string): Source => replay({ path, network: "testnet" });

async function rowsOf(database: Database) {
  const { rows } = await database.query(
    `SELECT token, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash
     FROM fencepost.events ORDER BY token`,
  );
  return rows;
}

/** A database of its own that ingests and projects all that a source has. */
async function ingestAndProject(source: Source, watched: readonly WatchRequest[]): Promise<Database> {
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  await migrate(database);
  await registerStream(database, source, watched, { adopt: false, signal: never });
  const holder = openHolder(database.url);
  closing.push(holder.close);
  const decoder = await loadDecoder();
  const log = createLog("silent");
  const leaseMs = 60_000;
  const lead = async (key: Parameters<typeof acquireLease>[1]) =>
    (await acquireLease(database, key, await holder.current(), leaseMs)) ?? 0n;
  const term = await lead({ kind: "stream", stream: "testnet" });
  const ingest = createIngest({ database, source, decoder, leaseMs, onGap: "stop", log });
  for (let i = 0; (await ingest.step(term, never)) === "progress"; i++) expect(i).toBeLessThan(500);

  const projection = poolsProjection();
  await registerProjection(database, projection, { stream: "testnet", rebuildChanged: false });
  const own = await lead({ kind: "projection", name: projection.name, version: projection.version });
  const context = { database, projection, decoder, leaseMs, log };
  for (let i = 0; (await projectStep(context, own)) === "progress"; i++) expect(i).toBeLessThan(500);
  return database;
}

describe("what was exported", () => {
  test("is ingested from the file as the same bytes, and makes the same rows and messages", async () => {
    await startStored();
    const direct = await ingestAndProject(bench.source, BOTH);
    const { path, ...report } = await exportTo("all.ndjson");
    expect(report).toEqual({ fromLedger: 1, throughLedger: bench.chain.latest, events: 140 + 15 });

    const replayed = await ingestAndProject(recorded(path), BOTH);
    expect(await rowsOf(replayed)).toEqual(await rowsOf(direct));
    expect(await rowsOf(replayed)).toEqual(await rowsOf(bench.database));
    for (const sql of [
      "SELECT * FROM pools.pools ORDER BY id",
      `SELECT m.event_id, m.token, m.type, m.content_hash, m.occurred_at, b.body
       FROM fencepost.messages m JOIN fencepost.message_bodies b USING (event_id) ORDER BY event_id`,
    ]) {
      expect((await replayed.query(sql)).rows, sql).toEqual((await direct.query(sql)).rows);
    }
    const again = await exportTo("again.ndjson", replayed);
    expect(await readFile(again.path)).toEqual(await readFile(path));
  });

  test("in another order of arrival is the same file", async () => {
    await startStored();
    const inOrder = await exportTo("in order.ndjson");
    await bench.close();

    bench = await openIngest(bench.chain);
    bench.rpc.node.hides = losesRows({ seed: 4, rate: 0.3 });
    await bench.watch(BOTH);
    await bench.catchUp(await bench.lead());
    bench.rpc.node.hides = () => false;
    const range = { fromLedger: 1, throughLedger: bench.chain.latest };
    await backfill(bench.context(), { ...range, signal: never });
    const late = (await bench.stored()).filter((row) => row.late);
    expect(late.length).toBeGreaterThan(10);
    const { path } = await exportTo("late.ndjson");
    expect(await readFile(path)).toEqual(await readFile(inOrder.path));
  });

  test("is the part that was asked for: ledgers and contracts", async () => {
    await startStored();
    const options = { fromLedger: 15, throughLedger: 30, contracts: [OTHER] };
    const { path, ...report } = await exportTo("part.ndjson", bench.database, options);
    expect(report).toEqual({ fromLedger: 15, throughLedger: 30, events: 8 });
    const lines = (await readFile(path, "utf8")).trim().split("\n");
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({
      stream: "testnet",
      epoch: "20251217",
      passphrase: "Test SDF Network ; September 2015",
      contracts: [{ id: OTHER, startLedger: 12 }],
      gaps: [],
    });
    expect(lines.slice(1, -1).map((line) => JSON.parse(line).ledger)).toEqual([
      16, 18, 20, 22, 24, 26, 28, 30,
    ]);
    expect(lines.at(-1)).toBe('{"end":true,"events":8}');
  });

  test("fills a hole of a stream as any source does, and heals it", async () => {
    await startStored(BOTH, 15);
    const { path } = await exportTo("whole.ndjson");
    const { chain } = bench;
    const whole = await rowsOf(bench.database);
    await bench.close();
    bench = await openIngest(chain);
    await bench.watch(BOTH);
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 3");
    chain.retain(10);
    await bench.catchUp(await bench.lead(), { onGap: "continue" });
    const range = { fromLedger: 1, throughLedger: chain.latest };
    await exportTo("with a hole.ndjson");
    const report = await backfill(bench.context({ source: recorded(path) }), { ...range, signal: never });
    expect(report).toMatchObject({ healed: 18 });
    expect(await rowsOf(bench.database)).toEqual(whole);

    const gap = { kind: "gap", fromLedger: 3, throughLedger: 20 };
    const request = { fromLedger: 3, contractIds: [POOL_CONTRACT] };
    const holed = recorded(join(folder, "with a hole.ndjson"));
    expect(await holed.window(request, never)).toMatchObject(gap);
    expect(await holed.window({ ...request, fromLedger: 21 }, never)).toMatchObject({ kind: "window" });
  });
});

describe("an export is refused, and writes nothing,", () => {
  test("of ledgers that are not stored yet, of contracts that nobody watches, and of no stream", async () => {
    await startStored();
    const { database } = bench;
    const refused = async (options: Partial<ExportOptions>, why: RegExp): Promise<void> => {
      const exporting = exportTo("refused.ndjson", database, options);
      await expect(exporting).rejects.toThrow(ExportRangeError);
      await expect(exporting).rejects.toThrow(why);
      expect(await readFile(join(folder, "refused.ndjson"), "utf8").catch(() => "")).toBe("");
    };
    await refused({ throughLedger: 41 }, /up to ledger 40 only/);
    await refused({ fromLedger: 9, throughLedger: 8 }, /no ledgers from 9 to 8/);
    await refused({ contracts: [scv.contractId("nobody")] }, /does not watch/);
    await refused({ stream: "pubnet" }, /no stream pubnet/);
  });

  test("of ledgers before any contract was watched", async () => {
    await startStored([{ contractId: POOL_CONTRACT, startLedger: 5 }]);
    const before = exportTo("before.ndjson", bench.database, { fromLedger: 1, throughLedger: 4 });
    await expect(before).rejects.toThrow(ExportRangeError);
    await expect(before).rejects.toThrow(
      "watches nothing up to ledger 4: the first contract from ledger 5 on",
    );
    expect(
      await exportTo("across.ndjson", bench.database, { fromLedger: 1, throughLedger: 5 }),
    ).toMatchObject({
      fromLedger: 1,
      throughLedger: 5,
    });
  });

  test("while a contract still reads its past", async () => {
    await startStored([{ contractId: POOL_CONTRACT, startLedger: 1 }]);
    await bench.watch(
      [
        { contractId: POOL_CONTRACT, startLedger: 1 },
        { contractId: OTHER, startLedger: 5 },
      ],
      {
        adopt: true,
      },
    );
    await expect(exportTo("lagging.ndjson")).rejects.toThrow(/still reads the past/);
    await exportTo("without it.ndjson", bench.database, { contracts: [POOL_CONTRACT] });
  });
});

test("an export of a stream that goes to a writable which fails throws what it threw", async () => {
  await startStored();
  const file = createWriteStream(join(folder, "not", "there"));
  await expect(exportEvents(bench.database, { stream: "testnet" }, file)).rejects.toThrow(/ENOENT/);
});
