// The lake's half of the ingest benchmark: a lake of real ledgers, and how long it takes to decode them and nothing else.
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { constants, gunzipSync, zstdCompress, zstdDecompressSync } from "node:zlib";
import { loadLedgerReader } from "../packages/fencepost/src/xdr/ledger.ts";

const RECORDED = fileURLToPath(new URL("../../shared/data/", import.meta.url));
const RECORDED_LEDGERS = [63092988, 63092990];
const FIRST_LEDGER = 100_000_000;
const PASSPHRASE = "Public Global Stellar Network ; September 2015";

const compress = promisify(zstdCompress);
/** As Galexie does. */
const WITH_CHECKSUM = { params: { [constants.ZSTD_c_checksumFlag]: 1 } };
/** The one that is fastest here, as in the source. */
const UNPACKING = { chunkSize: 512 * 1024 };

export interface LakeOfLedgers {
  readonly folder: string;
  readonly fromLedger: number;
  readonly throughLedger: number;
  /** Of every event in it, the one with the most events first. */
  readonly contractIds: readonly string[];
}

/** Whether the recorded ledgers are there, of which {@link writeRecordedLake} makes a lake. */
export function hasRecordedLedgers(): boolean {
  return RECORDED_LEDGERS.every((ledger) => existsSync(join(RECORDED, `ledger-${ledger}.xdr.gz`)));
}

/**
 * Writes a lake of so many ledgers, one an object: two recorded ones of the public network in turn, about 1 MB and
 * 600 events each, with sequences and hashes that follow each other.
 */
export async function writeRecordedLake(folder: string, ledgers: number): Promise<LakeOfLedgers> {
  const recorded = await Promise.all(RECORDED_LEDGERS.map(readRecorded));
  const layout = { ledgersPerBatch: 1, batchesPerPartition: 64_000 };
  const config = { networkPassphrase: PASSPHRASE, version: "1.0", compression: "zstd", ...layout };
  const partitionStart = FIRST_LEDGER - (FIRST_LEDGER % layout.batchesPerPartition);
  const partition = join(
    folder,
    `${newestFirst(partitionStart)}--${partitionStart}-${partitionStart + layout.batchesPerPartition - 1}`,
  );
  await mkdir(partition, { recursive: true });
  await writeFile(join(folder, ".config.json"), JSON.stringify(config));
  for (let i = 0; i < ledgers; i++) {
    const { meta, hashAt, sequenceAt } = recorded[i % recorded.length] as Recorded;
    const sequence = FIRST_LEDGER + i;
    const batch = Buffer.concat([Buffer.alloc(12), meta]);
    batch.writeUInt32BE(sequence, 0);
    batch.writeUInt32BE(sequence, 4);
    batch.writeUInt32BE(1, 8);
    hashOf(sequence).copy(batch, 12 + hashAt);
    hashOf(sequence - 1).copy(batch, 12 + hashAt + PREVIOUS_HASH_AFTER);
    batch.writeUInt32BE(sequence, 12 + sequenceAt);
    await writeFile(
      join(partition, `${newestFirst(sequence)}--${sequence}.xdr.zst`),
      await compress(batch, WITH_CHECKSUM),
    );
  }
  const counts = new Map<string, number>();
  for (const contractId of recorded.flatMap((each) => each.contractIds)) {
    counts.set(contractId, (counts.get(contractId) ?? 0) + 1);
  }
  const contractIds = [...counts].sort(([, a], [, b]) => b - a).map(([contractId]) => contractId);
  return { folder, fromLedger: FIRST_LEDGER, throughLedger: FIRST_LEDGER + ledgers - 1, contractIds };
}

/** Reads and unpacks objects of the lake one after the other, and decodes them as a hand would: with the SDK. */
export async function decodeBySdk(lake: LakeOfLedgers, ledgers: number): Promise<number> {
  const { xdr } = await import("@stellar/stellar-sdk/base");
  const objects = (await objectsOf(lake)).slice(0, ledgers);
  const began = performance.now();
  for (const path of objects) {
    xdr.LedgerCloseMetaBatch.fromXdr(zstdDecompressSync(await readFile(path), UNPACKING));
  }
  return (performance.now() - began) / 1_000 / objects.length;
}

/** The same with the reader of the source, which moves over everything but the events of these contracts. */
export async function decodeByReader(lake: LakeOfLedgers, contractIds: readonly string[]): Promise<number> {
  const read = (await loadLedgerReader()).forContracts(contractIds);
  const objects = await objectsOf(lake);
  const began = performance.now();
  for (const path of objects) read(zstdDecompressSync(await readFile(path), UNPACKING));
  return (performance.now() - began) / 1_000 / objects.length;
}

/** The paths of its objects, the oldest first. */
async function objectsOf({ folder }: LakeOfLedgers): Promise<readonly string[]> {
  const names = await readdir(folder, { recursive: true });
  const objects = names.filter((name) => name.endsWith(".xdr.zst")).sort();
  return objects.reverse().map((name) => join(folder, name));
}

interface Recorded {
  readonly meta: Buffer;
  /** Where the ledger's hash and its sequence stand. */
  readonly hashAt: number;
  readonly sequenceAt: number;
  readonly contractIds: readonly string[];
}

/** In a header entry the hash is followed by the version and the hash of the ledger before. */
const PREVIOUS_HASH_AFTER = 32 + 4;

async function readRecorded(ledger: number): Promise<Recorded> {
  const meta = gunzipSync(await readFile(join(RECORDED, `ledger-${ledger}.xdr.gz`)));
  const rows = JSON.parse(
    gunzipSync(await readFile(join(RECORDED, `getEvents-${ledger}.json.gz`))).toString(),
  );
  const hashAt = meta.indexOf(rows.hash, 0, "hex");
  const number = Buffer.alloc(4);
  number.writeUInt32BE(ledger);
  const sequenceAt = meta.indexOf(number, hashAt + PREVIOUS_HASH_AFTER + 32);
  return {
    meta,
    hashAt,
    sequenceAt,
    contractIds: rows.events.map((row: { contractId: string }) => row.contractId),
  };
}

function newestFirst(start: number): string {
  return (2 ** 32 - 1 - start).toString(16).toUpperCase().padStart(8, "0");
}

function hashOf(sequence: number): Buffer {
  return createHash("sha256").update(`ledger ${sequence}`).digest();
}
