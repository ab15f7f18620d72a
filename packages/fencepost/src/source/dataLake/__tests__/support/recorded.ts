import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gunzipSync, zstdDecompressSync } from "node:zlib";
import { type EventRow, type RecordedLedger, readRecordedLedger } from "@fencepost/simulator";
import type { SourceEvent } from "../../../source.ts";

/** A folder beside the repository: real ledgers, which are no part of it. */
const FOLDER = fileURLToPath(new URL("../../../../../../../../shared/data/", import.meta.url));

/** Real ledgers; null, with one line that says so, where they are not at hand. */
export const recorded = existsSync(FOLDER) ? openRecorded() : null;
if (!recorded) console.warn(`The recorded ledgers are not in ${FOLDER}: tests with them are skipped.`);

function openRecorded() {
  return {
    folder: FOLDER,
    /** Key of the recorded object of a lake, without its extension. */
    oldKey: "FCD285FF--53312000",
    /** `LedgerCloseMetaBatch` of one recorded ledger: 63092988 or 63092990. */
    batch(sequence: number): Buffer {
      const meta = gunzipSync(readFileSync(`${FOLDER}ledger-${sequence}.xdr.gz`));
      const head = Buffer.alloc(12);
      head.writeUInt32BE(sequence, 0);
      head.writeUInt32BE(sequence, 4);
      head.writeUInt32BE(1, 8);
      return Buffer.concat([head, meta]);
    },
    rows: (sequence: number): RecordedLedger => readRecordedLedger(`${FOLDER}getEvents-${sequence}.json.gz`),
    oldBatch: (): Buffer => zstdDecompressSync(readFileSync(`${FOLDER}FCD285FF--53312000.xdr.zstd`)),
  };
}

/** The event that a source gives for a row of `getEvents`. */
export function eventOf({
  id,
  type,
  ledger,
  ledgerClosedAt,
  contractId,
  txHash,
  topic,
  value,
}: EventRow): SourceEvent {
  return {
    id,
    type,
    ledger,
    closedAt: ledgerClosedAt,
    contractId: contractId || null,
    txHash,
    topics: topic ?? [],
    value,
  };
}
