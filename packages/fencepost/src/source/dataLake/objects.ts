import type { LedgerBatch, ReadBatch } from "../../xdr/ledger.ts";
import { InvalidXdrError } from "../../xdr/skip.ts";
import { LakeObjectError } from "./errors.ts";
import { batchOf, EXTENSIONS, FIRST_LEDGER, keyOf, type LakeLayout } from "./layout.ts";
import { type LakeStorage, TooLargeError } from "./storage.ts";
import { unpackFrames, ZstdError } from "./zstdFrames.ts";

/** An object, unpacked but not yet read. */
export interface LakeObject {
  readonly key: string;
  readonly xdr: Buffer;
}

/** The objects of a lake, by the ledgers in them. */
export interface LakeObjects {
  /** The object that holds a ledger; null where there is none. Throws {@link LakeObjectError}. */
  get(ledger: number, signal: AbortSignal): Promise<LakeObject | null>;
  exists(ledger: number, signal: AbortSignal): Promise<boolean>;
  /** Reads it, and checks that it holds the ledgers of its name. Throws {@link LakeObjectError}. */
  read(ledger: number, object: LakeObject, readBatch: ReadBatch): LedgerBatch;
}

/** The largest object, packed. Those of the public network have 0.1 to 1 MB. */
const MAX_PACKED_BYTES = 128 * 1024 * 1024;
/** The most that one ledger unpacks to; those of the public network have 1 to 4 MB. */
const MAX_LEDGER_BYTES = 32 * 1024 * 1024;
/** The most that a batch unpacks to. */
const MAX_BATCH_BYTES = 512 * 1024 * 1024;

export function openObjects(storage: LakeStorage, layout: LakeLayout): LakeObjects {
  let extensions: readonly [usual: string, other: string] = EXTENSIONS;
  const maxBytes = Math.min(MAX_LEDGER_BYTES * layout.ledgersPerBatch, MAX_BATCH_BYTES);

  /** A lake may have objects of both extensions: the one that was there last is tried first. */
  async function find<T>(ledger: number, ask: (key: string) => Promise<T>): Promise<T> {
    const [usual, other] = extensions; // another search may change them meanwhile
    const key = keyOf(ledger, layout);
    const answer = await ask(`${key}${usual}`);
    if (answer) return answer;
    const second = await ask(`${key}${other}`);
    if (second) extensions = [other, usual];
    return second;
  }

  async function getUnpacked(key: string, signal: AbortSignal): Promise<LakeObject | null> {
    try {
      const packed = await storage.get(key, MAX_PACKED_BYTES, signal);
      return packed && { key, xdr: await unpackFrames(packed, maxBytes) };
    } catch (error) {
      if (!(error instanceof TooLargeError || error instanceof ZstdError)) throw error;
      const fault = error instanceof ZstdError ? error.fault : "too large";
      throw new LakeObjectError(storage.where, key, fault, error.message, error);
    }
  }

  return {
    get: (ledger, signal) => find(ledger, (key) => getUnpacked(key, signal)),
    exists: (ledger, signal) => find(ledger, (key) => storage.exists(key, signal)),
    read(ledger, { key, xdr }, readBatch) {
      let batch: LedgerBatch;
      try {
        batch = readBatch(xdr);
      } catch (error) {
        if (!(error instanceof InvalidXdrError)) throw error;
        const detail = `its XDR is no LedgerCloseMetaBatch. ${error.message}`;
        throw new LakeObjectError(storage.where, key, "garbled", detail, error);
      }
      const { start, end } = batchOf(ledger, layout);
      const first = Math.max(start, Math.min(FIRST_LEDGER, end));
      const found = [
        batch.startSequence,
        batch.endSequence,
        ...batch.ledgers.map(({ sequence }) => sequence),
      ];
      const named = [first, end, ...Array.from({ length: end - first + 1 }, (_, i) => first + i)];
      if (found.join() !== named.join()) {
        const detail = `its name says ${first} to ${end}, its content ${found.slice(2, 5).join(", ") || "none"}${found.length > 5 ? ", …" : ""}.`;
        throw new LakeObjectError(storage.where, key, "other ledgers", detail);
      }
      return batch;
    },
  };
}
