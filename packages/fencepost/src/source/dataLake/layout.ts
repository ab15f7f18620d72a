// Which object holds which ledgers (SEP-54).
import { LakeConfigError } from "./errors.ts";

export interface LakeLayout {
  readonly ledgersPerBatch: number;
  readonly batchesPerPartition: number;
}

/** Ledgers that stand together, both inclusive, under one name: a batch, or a partition. */
export interface LedgerSpan {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

export const CONFIG_KEY = ".config.json";
/** Written by Galexie now, and by its first versions. */
export const EXTENSIONS = [".xdr.zst", ".xdr.zstd"] as const;

/** Ledger 1 is made, not closed: the batch that begins with 0 begins with ledger 2. */
export const FIRST_LEDGER = 2;
export const MAX_LEDGER = 2 ** 31 - 1;

/** Versions of the config that are known: what a later minor one adds can be left out. Drafts had none. */
const KNOWN_VERSION = /^1(\.\d+){0,2}$/;

const MAX_UINT32 = 2 ** 32 - 1;
/** The largest batch or partition that is believed, in ledgers. */
const MAX_SPAN = 10_000_000;

/** The batch of a ledger; its name is without the extension and the partition. */
export function batchOf(ledger: number, { ledgersPerBatch }: LakeLayout): LedgerSpan {
  const start = ledger - (ledger % ledgersPerBatch);
  const end = start + ledgersPerBatch - 1;
  return { name: `${newestFirst(start)}--${start}${ledgersPerBatch > 1 ? `-${end}` : ""}`, start, end };
}

/** The partition of a ledger; null in a lake without partitions. */
export function partitionOf(ledger: number, layout: LakeLayout): LedgerSpan | null {
  if (layout.batchesPerPartition === 1) return null;
  const size = layout.ledgersPerBatch * layout.batchesPerPartition;
  const start = ledger - (ledger % size);
  const end = start + size - 1;
  return { name: `${newestFirst(start)}--${start}-${end}`, start, end };
}

/** The key of the object that holds a ledger, without the extension. */
export function keyOf(ledger: number, layout: LakeLayout): string {
  const partition = partitionOf(ledger, layout);
  return `${partition ? `${partition.name}/` : ""}${batchOf(ledger, layout).name}`;
}

/** The first ledger of the batch or partition with this name, as it stands in a listing; null for other names. */
export function startOfName(
  name: string,
  spanOf: (ledger: number) => LedgerSpan | null,
  extensions: readonly string[],
): number | null {
  const start = Number(/^[0-9A-F]{8}--(\d{1,10})(?=\D)/.exec(`${name} `)?.[1] ?? Number.NaN);
  if (!(start <= MAX_UINT32)) return null;
  const span = spanOf(start);
  return span && extensions.some((extension) => `${span.name}${extension}` === name) ? start : null;
}

/**
 * Reads `.config.json`. SEP-54 has it beside the ledgers; a draft of it had a `ledgersPath` to them, which is held
 * against the place of the lake. Throws {@link LakeConfigError}.
 */
export function parseConfig(text: string, where: string): { layout: LakeLayout; passphrase: string } {
  let config: Readonly<Record<string, unknown>>;
  try {
    config = Object(JSON.parse(text));
  } catch {
    throw new LakeConfigError(where, `its ${CONFIG_KEY} is not JSON.`);
  }
  const { networkPassphrase, version = "1.0", compression = "zstd", ledgersPath = "" } = config;
  if (typeof networkPassphrase !== "string") {
    throw new LakeConfigError(where, `its ${CONFIG_KEY} names no networkPassphrase.`);
  }
  if (typeof version !== "string" || !KNOWN_VERSION.test(version)) {
    const detail = `the version is ${JSON.stringify(version)}, not "1.0": a later Fencepost may know it.`;
    throw new LakeConfigError(where, detail);
  }
  if (typeof ledgersPath !== "string") {
    throw new LakeConfigError(where, `its ledgersPath is ${JSON.stringify(ledgersPath)}.`);
  }
  const path = withoutSlashes(ledgersPath);
  if (path !== "" && !`/${withoutSlashes(where)}`.endsWith(`/${path}`)) {
    const detail = `it says that its ledgers are in ${JSON.stringify(ledgersPath)}: give that folder as source.url.`;
    throw new LakeConfigError(where, detail);
  }
  if (compression !== "zstd") {
    throw new LakeConfigError(where, `its compression is ${JSON.stringify(compression)}, not "zstd".`);
  }
  return {
    passphrase: networkPassphrase,
    layout: checkLayout(config, where),
  };
}

/** Throws {@link LakeConfigError} for sizes that no lake has. */
export function checkLayout(
  layout: { readonly [size in keyof LakeLayout]?: unknown },
  where: string,
): LakeLayout {
  const { ledgersPerBatch, batchesPerPartition } = layout;
  for (const [name, size] of Object.entries({ ledgersPerBatch, batchesPerPartition })) {
    if (!Number.isSafeInteger(size) || Number(size) < 1 || Number(size) > MAX_SPAN) {
      throw new LakeConfigError(where, `${name} is ${JSON.stringify(size)}.`);
    }
  }
  return { ledgersPerBatch: Number(ledgersPerBatch), batchesPerPartition: Number(batchesPerPartition) };
}

const withoutSlashes = (path: string): string => path.replace(/^\/+|\/+$/g, "");

/** Names sort newest first. */
function newestFirst(start: number): string {
  return (MAX_UINT32 - start).toString(16).toUpperCase().padStart(8, "0");
}
