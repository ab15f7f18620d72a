// A simulated chain as a data lake (SEP-54): what Galexie writes.
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { constants, zstdCompress } from "node:zlib";
import type { Chain } from "./chain.ts";
import { batchXdr, type LedgerForm } from "./ledgerXdr.ts";

export interface LakeLayout {
  /** Default 1. */
  readonly ledgersPerBatch?: number;
  /** Default 1: no partitions. */
  readonly batchesPerPartition?: number;
  /** Default `xdr.zst`. */
  readonly extension?: "xdr.zst" | "xdr.zstd";
}

const compress = promisify(zstdCompress);
/** As Galexie does. */
const WITH_CHECKSUM = { params: { [constants.ZSTD_c_checksumFlag]: 1 } };

/** Ledger 1 is made, not closed, so the object that begins with 0 begins with ledger 2. */
const FIRST_LEDGER = 2;

/** The key of the object that holds a ledger. */
export function lakeKey(sequence: number, layout: LakeLayout = {}): string {
  const { ledgersPerBatch = 1, batchesPerPartition = 1, extension = "xdr.zst" } = layout;
  const perPartition = ledgersPerBatch * batchesPerPartition;
  const name = (size: number, alwaysWithEnd: boolean): string => {
    const start = Math.floor(sequence / size) * size;
    const hex = (2 ** 32 - 1 - start).toString(16).toUpperCase().padStart(8, "0");
    return `${hex}--${start}${size > 1 || alwaysWithEnd ? `-${start + size - 1}` : ""}`;
  };
  const partition = batchesPerPartition > 1 ? `${name(perPartition, true)}/` : "";
  return `${partition}${name(ledgersPerBatch, false)}.${extension}`;
}

/**
 * Writes a chain's ledgers `from` to `through` (default: all) as a lake into a folder: `.config.json`, and an
 * object for each whole batch. What the folder already holds stays, or is replaced.
 */
export async function writeLake(
  folder: string,
  chain: Chain,
  options: LakeLayout & LedgerForm & { readonly from?: number; readonly through?: number } = {},
): Promise<void> {
  const {
    ledgersPerBatch = 1,
    batchesPerPartition = 1,
    from = chain.first,
    through = chain.latest,
  } = options;
  const config = {
    networkPassphrase: chain.passphrase,
    version: "1.0",
    compression: "zstd",
    ledgersPerBatch,
    batchesPerPartition,
  };
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, ".config.json"), JSON.stringify(config));
  for (let start = Math.floor(from / ledgersPerBatch) * ledgersPerBatch; ; start += ledgersPerBatch) {
    const end = start + ledgersPerBatch - 1;
    if (end > through) return;
    const first = Math.max(start, FIRST_LEDGER);
    if (first < from || first > end) continue;
    const path = join(folder, lakeKey(start, options));
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, await compress(batchXdr(chain, first, end, options), WITH_CHECKSUM));
  }
}
