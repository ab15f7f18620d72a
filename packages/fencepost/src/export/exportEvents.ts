import type { Writable } from "node:stream";
import { tokensWithin } from "../ingest/coverage.ts";
import { endLine, eventLine, headerLine } from "../source/replayFile/fileFormat.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import { type LedgerRange, readMissingLedgers } from "../store/postgres/gaps.ts";
import { readStoredEvents } from "../store/postgres/storedEvents.ts";
import { readStream, readWatches, type StreamRow, type Watch } from "../store/postgres/streams.ts";

export interface ExportOptions extends Partial<LedgerRange> {
  readonly stream: string;
  /** All that are watched, unless given. */
  readonly contracts?: readonly string[];
  readonly signal?: AbortSignal;
}

export interface ExportReport extends LedgerRange {
  readonly events: number;
}

/** What was asked for is not all stored, so a file of it could not say what it is complete for. Nothing was written. */
export class ExportRangeError extends Error {
  override readonly name = "ExportRangeError";
}

const PAGE = 1_000;

/**
 * Writes the stored events of a range as a file for `replay()`: of the watched contracts, in chain order, from one
 * snapshot of the database. The same events give the same bytes. Without a range it is all that is stored. Holes that
 * are on record are named in the header. The writable is not ended. Throws {@link ExportRangeError} before a byte is
 * written, and what the database and the writable do.
 */
export async function exportEvents(
  database: Database,
  { stream: name, signal, ...wanted }: ExportOptions,
  writable: Writable,
): Promise<ExportReport> {
  // What fails is told to the write that waits for it.
  const ignore = (): void => {};
  writable.on("error", ignore);
  const exporting = database.transaction(async (client) => {
    await client.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY");
    const stream = await readStream(client, name);
    if (!stream) throw new ExportRangeError(`There is no stream ${name} in this database.`);
    const watches = chooseWatches(stream, await readWatches(client, name), wanted.contracts);
    const range = rangeOf(stream, watches, wanted);
    checkRead(stream, watches, range);
    const { epoch, passphrase } = stream;
    const gaps = await readMissingLedgers(client, stream, range);
    const contracts = watches.map(({ contractId, startLedger }) => ({ id: contractId, startLedger }));
    await write(writable, headerLine({ stream: name, epoch, passphrase, ...range, contracts, gaps }), signal);
    const events = await writeEvents(client, stream, range, watches, writable, signal);
    await write(writable, endLine(events), signal);
    return { ...range, events };
  });
  return exporting.finally(() => writable.off("error", ignore));
}

async function writeEvents(
  client: DatabaseClient,
  chain: StreamRow,
  range: LedgerRange,
  watches: readonly Watch[],
  writable: Writable,
  signal: AbortSignal | undefined,
): Promise<number> {
  const startOf = new Map(watches.map(({ contractId, startLedger }) => [contractId, startLedger]));
  const { from, through } = tokensWithin({ stream: chain.stream, epoch: chain.epoch }, range);
  // A prefix of the first token is before it.
  let after: string = from.slice(0, -1);
  let written = 0;
  for (;;) {
    const page = await readStoredEvents(client, { after, through }, [...startOf.keys()], PAGE);
    const due = page.filter(({ contractId, ledger }) => ledger >= (startOf.get(contractId ?? "") ?? 0));
    if (due.length > 0) await write(writable, due.map(eventLine).join(""), signal);
    written += due.length;
    const last = page.at(-1);
    if (!last || page.length < PAGE) return written;
    after = last.token;
  }
}

/** Waits until the writable has taken it, so that what failed is told, and no more than one page is held. */
async function write(writable: Writable, text: string, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    writable.write(text, (error) => (error ? reject(writable.errored ?? error) : resolve()));
  });
}

function chooseWatches(
  { stream }: StreamRow,
  watches: readonly Watch[],
  contracts: readonly string[] | undefined,
): readonly Watch[] {
  const unknown = contracts?.find((id) => !watches.some(({ contractId }) => contractId === id));
  if (unknown !== undefined) throw new ExportRangeError(`${stream} does not watch the contract ${unknown}.`);
  return contracts ? watches.filter(({ contractId }) => contracts.includes(contractId)) : watches;
}

function rangeOf(
  { stream, nextLedger }: StreamRow,
  watches: readonly Watch[],
  wanted: Partial<LedgerRange>,
): LedgerRange {
  const first = Math.min(...watches.map(({ startLedger }) => startLedger));
  const { fromLedger = first, throughLedger = nextLedger - 1 } = wanted;
  if (throughLedger >= nextLedger) {
    throw new ExportRangeError(
      `${stream} is stored up to ledger ${nextLedger - 1} only, and ${throughLedger} was asked for.`,
    );
  }
  if (throughLedger < first) {
    throw new ExportRangeError(
      `${stream} watches nothing up to ledger ${throughLedger}: the first contract from ledger ${first} on.`,
    );
  }
  if (!(fromLedger <= throughLedger)) {
    throw new ExportRangeError(`${stream} has no ledgers from ${fromLedger} to ${throughLedger}.`);
  }
  return { fromLedger, throughLedger };
}

/** A contract whose past is still being read is not complete. */
function checkRead({ stream }: StreamRow, watches: readonly Watch[], range: LedgerRange): void {
  for (const { contractId, nextLedger, earlier } of watches) {
    const isLagging = nextLedger !== null && nextLedger <= range.throughLedger;
    const isUnread =
      earlier && earlier.nextLedger <= range.throughLedger && earlier.endLedger > range.fromLedger;
    if (isLagging || isUnread) {
      throw new ExportRangeError(
        `${stream} still reads the past of ${contractId}, from ledger ${nextLedger ?? earlier?.nextLedger} on. Wait ` +
          "until it has, or leave the contract out.",
      );
    }
  }
}
