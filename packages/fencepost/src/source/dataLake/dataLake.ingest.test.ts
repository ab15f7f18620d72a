// The lake as the source of stage ingest: what is stored is what a node's events become.
import { cp, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { zstdCompressSync, zstdDecompressSync } from "node:zlib";
import { lakeKey, scv, startChain, transfers, writeLake } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../../__tests__/support/ingest.ts";
import { never } from "../../__tests__/support/windows.ts";
import { backfill } from "../../ingest/backfill.ts";
import { readGaps } from "../../store/postgres/gaps.ts";
import { opened } from "./__tests__/support/lakes.ts";
import { dataLake } from "./dataLake.ts";

const open = opened();
let bench: IngestBench;
afterEach(async () => {
  await bench.close();
  await open.closeAll();
});

const CONTRACTS = ["a", "b", "c"].map(scv.contractId);
const WATCHED = CONTRACTS.slice(0, 2);
const watches = WATCHED.map((contractId) => ({ contractId, startLedger: 2 }));

/** Ledgers 2 to 301, with 12 events each, and fees before and after them in some. */
function busyChain() {
  const chain = startChain({ firstLedger: 2 });
  const { passphrase } = chain;
  for (let part = 0; part < 10; part++) {
    chain.closeMany(28, transfers({ passphrase, contracts: CONTRACTS, eventsPerLedger: 12, seed: part }));
    const fee = (place: "fee" | "afterAll", tx: number) => ({
      contract: CONTRACTS[0]!,
      topics: [scv.sym("fee")],
      value: scv.i128(100n),
      place,
      tx,
    });
    chain.close({ events: [fee("fee", 1), fee("fee", 2), fee("afterAll", 2)] });
    chain.close({ events: [{ contract: CONTRACTS[1]!, value: scv.nothing(), type: "system" }] });
  }
  return chain;
}

const storedRows = async () =>
  (
    await bench.database.query(
      "SELECT token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash, late " +
        "FROM fencepost.events ORDER BY seq",
    )
  ).rows;

test("from a lake and from a node the same rows are stored, byte for byte", async () => {
  const chain = busyChain();
  const folder = await open.folder();
  await writeLake(folder, chain, { ledgersPerBatch: 2, batchesPerPartition: 16 });
  const lake = dataLake({ network: "testnet", url: folder });

  bench = await openIngest(chain);
  await bench.watch(watches, { source: lake });
  await bench.catchUp(await bench.lead(), { source: lake });
  const fromLake = await storedRows();
  expect(await bench.stream()).toMatchObject({ nextLedger: 302, halted: null });
  await bench.close();

  bench = await openIngest(chain);
  await bench.watch(watches);
  await bench.catchUp(await bench.lead());
  expect(fromLake).toEqual(await storedRows());
  expect(fromLake.map((row) => row["token"])).toEqual(bench.tokensOnChain(WATCHED));
});

test("a stream that began with a lake goes on with a node, and the other way round", async () => {
  const chain = busyChain();
  const folder = await open.folder();
  await writeLake(folder, chain, { ledgersPerBatch: 8 });
  const lake = dataLake({ network: "testnet", url: folder });
  bench = await openIngest(chain);
  await bench.watch(watches, { source: lake });
  const term = await bench.lead();
  await bench.catchUp(term, { source: lake });
  expect((await bench.stream()).nextLedger).toBe(296);
  await bench.catchUp(term);
  chain.closeMany(10);
  await writeLake(folder, chain, { ledgersPerBatch: 8, from: 296 });
  await bench.catchUp(term, { source: lake });
  expect((await bench.stream()).nextLedger).toBe(312);
  expect((await bench.stored()).map((row) => row.token)).toEqual(bench.tokensOnChain(WATCHED));
});

test("a hole that no node can fill any more is filled from a lake", async () => {
  const chain = busyChain();
  const folder = await open.folder();
  await writeLake(folder, chain);
  bench = await openIngest(chain);
  await bench.watch(watches);
  chain.retain(100);
  await bench.catchUp(await bench.lead(), { onGap: "continue" });
  expect(await readGaps(bench.database)).toMatchObject([{ fromLedger: 2, throughLedger: 201 }]);

  const lake = dataLake({ network: "testnet", url: folder });
  const context = bench.context({ source: lake });
  const report = await backfill(context, { fromLedger: 2, throughLedger: 201, signal: never });
  expect(report).toMatchObject({ fromLedger: 2, throughLedger: 201, healed: 200 });
  expect((await bench.stored()).map((row) => row.token).sort()).toEqual(bench.tokensOnChain(WATCHED));
});

const LAYOUT = { ledgersPerBatch: 8, batchesPerPartition: 4 };
/** The first ledger of an object in the middle, which is the first of its partition. */
const BROKEN = 96;

/** A stream that reads a lake whose object of ledger 96 is not as it was written. */
async function startBroken(spoil: (path: string) => Promise<unknown>) {
  const chain = busyChain();
  const folder = await open.folder();
  await writeLake(folder, chain, LAYOUT);
  const path = join(folder, lakeKey(BROKEN, LAYOUT));
  const partition = dirname(path);
  const kept = `${folder}-kept`;
  await cp(partition, kept, { recursive: true });
  await spoil(path);
  const source = dataLake({ network: "testnet", url: folder });
  bench = await openIngest(chain);
  await bench.watch(watches, { source });
  const term = await bench.lead();
  const tokensBelow = (ledger: number) =>
    bench.tokensOnChain(WATCHED).filter((token) => Number(token.split("-")[2]) < ledger);
  return {
    read: () => bench.catchUp(term, { source }),
    mend: async () => {
      await cp(kept, partition, { recursive: true });
      await rm(kept, { recursive: true });
    },
    /** Every event below the ledger is stored once, in order, none beyond it, and the cursor is there. */
    async expectStoredBelow(ledger: number) {
      const stored = await bench.stored();
      expect(stored.map(({ token }) => token)).toEqual(tokensBelow(ledger));
      expect(stored.map(({ seq }) => seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
      expect((await bench.stream()).nextLedger).toBe(ledger);
    },
  };
}

const rewrite = (how: (packed: Buffer) => Buffer) => async (path: string) =>
  writeFile(path, how(await readFile(path)));

test.each([
  ["truncated", rewrite((packed) => packed.subarray(0, -5))],
  ["garbled", rewrite((packed) => zstdCompressSync(zstdDecompressSync(packed).subarray(0, -8)))],
] as const)(
  "nothing of an object that is %s is stored, not of its good ledgers either; mended, it is read on from there",
  async (fault, spoil) => {
    const lake = await startBroken(spoil);
    await expect(lake.read()).rejects.toMatchObject({ name: "LakeObjectError", fault });
    await lake.expectStoredBelow(BROKEN);
    await expect(lake.read()).rejects.toMatchObject({ name: "LakeObjectError", fault });
    await lake.expectStoredBelow(BROKEN);
    await lake.mend();
    await lake.read();
    await lake.expectStoredBelow(296);
  },
);

test("a partition that is missing is a gap at which the stream waits, until it is there", async () => {
  const lake = await startBroken((path) => rm(dirname(path), { recursive: true }));
  await expect(lake.read()).rejects.toThrow(/no longer has ledgers 96 to 127/);
  await lake.expectStoredBelow(BROKEN);
  expect(await readGaps(bench.database)).toMatchObject([{ fromLedger: 96, throughLedger: 127 }]);
  await lake.mend();
  await lake.read();
  await lake.expectStoredBelow(296);
  expect(await readGaps(bench.database)).toMatchObject([{ healedAt: expect.any(Date) }]);
});
