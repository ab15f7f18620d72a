import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { type Chain, ChainError, type ChainOptions, type EventRow, startChain } from "./chain.ts";

/** A ledger as it was recorded: its events as `getEvents` rows, and its place in the chain. */
export interface RecordedLedger {
  readonly ledger: number;
  readonly hash: string;
  readonly previousLedgerHash: string;
  readonly events: readonly EventRow[];
}

/** Reads a gzipped JSON file `{ ledger, hash, previousLedgerHash, events }`. */
export function readRecordedLedger(path: string): RecordedLedger {
  return JSON.parse(gunzipSync(readFileSync(path)).toString("utf8")) as RecordedLedger;
}

/**
 * A chain of recorded ledgers, given in order, served unchanged. Ledgers missing between two of them close empty;
 * the last of those has the hash that its successor names as its previous one.
 */
export function chainFromRecorded(
  recorded: readonly RecordedLedger[],
  options: Omit<ChainOptions, "firstLedger"> = {},
): Chain {
  const [firstRecorded] = recorded;
  if (!firstRecorded) throw new ChainError("A chain of recorded ledgers needs at least one.");
  const chain = startChain({ ...options, firstLedger: firstRecorded.ledger });
  for (const { ledger, hash, previousLedgerHash, events } of recorded) {
    if (ledger <= chain.latest) throw new ChainError(`Recorded ledger ${ledger} is not in order.`);
    const gap = ledger - 1 - chain.latest;
    if (gap > 0) {
      chain.closeMany(gap - 1);
      chain.closeRecorded({ rows: [], hash: previousLedgerHash });
    }
    const closedAt = events[0] && Date.parse(events[0].ledgerClosedAt) / 1000;
    chain.closeRecorded({ rows: events, hash, ...(closedAt === undefined ? {} : { closedAt }) });
  }
  return chain;
}
