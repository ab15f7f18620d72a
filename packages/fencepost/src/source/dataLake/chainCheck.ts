import type { LedgerFacts } from "../../xdr/ledger.ts";
import { LedgerChainError } from "./errors.ts";

/** Takes the ledgers of a batch, or throws {@link LedgerChainError}: then nothing of them is remembered. */
export type ChainCheck = (ledgers: readonly LedgerFacts[]) => void;

/** Ends of batches that are remembered, more than what windows that are read at once are apart. */
const MAX_ENDS = 2_048;

/** Compares each ledger with the one before it, also across batches, in whatever order these are read. */
export function openChainCheck(where: string): ChainCheck {
  /** Of the last ledger of a batch, by its sequence: its hash, and the hash that the ledger after it says it has. */
  const hashes = new Map<number, string>();
  const namedByNext = new Map<number, string>();

  return (ledgers) => {
    const [first, last] = [ledgers[0], ledgers.at(-1)];
    if (!first || !last) return;
    let previous = hashes.get(first.sequence - 1);
    for (const { sequence, previousHash, hash } of ledgers) {
      if (previous !== undefined && previous !== previousHash) {
        throw new LedgerChainError(where, sequence, previousHash, previous);
      }
      previous = hash;
    }
    const named = namedByNext.get(last.sequence);
    if (named !== undefined && named !== last.hash) {
      // The next one may be the wrong one: it is judged when it is read again, after this one.
      namedByNext.delete(last.sequence);
      throw new LedgerChainError(where, last.sequence + 1, named, last.hash);
    }
    remember(hashes, last.sequence, last.hash);
    remember(namedByNext, first.sequence - 1, first.previousHash);
  };
}

function remember(map: Map<number, string>, sequence: number, hash: string): void {
  map.delete(sequence);
  map.set(sequence, hash);
  for (const oldest of map.keys()) if (map.size > MAX_ENDS) map.delete(oldest);
}
