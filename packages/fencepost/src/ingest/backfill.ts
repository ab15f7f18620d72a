import { ChainResetError } from "../source/errors.ts";
import { type ReadAhead, readAhead } from "../source/readAhead.ts";
import type { SourceWindow } from "../source/source.ts";
import { healGaps, type LedgerRange } from "../store/postgres/gaps.ts";
import {
  lockStream,
  moveBackfilled,
  readStream,
  readWatches,
  type StreamRow,
  type Watch,
} from "../store/postgres/streams.ts";
import { commitBatch, prepareBatch, startsOf, type WriteContext } from "./commit.ts";
import { BackfillRangeError, GapError, StreamMismatchError } from "./errors.ts";
import { type IdentifiedEvent, identifying } from "./identify.ts";

export interface BackfillOptions extends LedgerRange {
  readonly signal: AbortSignal;
  /** Called after each commit. */
  readonly onProgress?: (progress: BackfillProgress) => void;
  /** Milliseconds on a steady clock, for the rate. */
  readonly now?: () => number;
}

export interface BackfillProgress extends LedgerRange {
  /** The last ledger that is filled; the range is `fromLedger` to `throughLedger`. */
  readonly ledger: number;
  /** Events seen, and those of them that were stored now. */
  readonly events: number;
  readonly stored: number;
  /** Missing ledgers of gaps that are missing no more. */
  readonly healed: number;
  readonly ledgersPerSecond: number;
  /** Time left at this rate, in milliseconds. */
  readonly msLeft: number;
}

export type BackfillReport = Omit<BackfillProgress, "ledger" | "ledgersPerSecond" | "msLeft">;

/** How often one window is read anew because the watched contracts changed meanwhile. */
const MAX_CHANGES = 10;

/**
 * Reads a range from any source of the stream's chain, and stores what the stream does not have, beside its leader:
 * every commit goes through the lock of the stream's row and takes its seq there. Events below the stream's cursor
 * are late. Beyond the cursor it moves the cursor along: so a stream that waits at a gap goes on. Gaps that lie in
 * the range are healed. Ledgers before the first start of a contract are passed over. Windows are read as many at
 * once as the source allows, and committed in order: what was committed stays when it ends early. Throws
 * {@link BackfillRangeError}, {@link StreamMismatchError}, {@link GapError} where the source does not have the
 * range either, `EventConflictError`, `ChainResetError`, and what the source throws.
 */
export async function backfill(
  context: WriteContext,
  { fromLedger, throughLedger, signal, onProgress, now = () => performance.now() }: BackfillOptions,
): Promise<BackfillReport> {
  const { database, source } = context;
  const by = source.name ?? source.chain.stream;
  const stream = await readOwnStream(context);
  let watches = await readWatches(database, stream.stream);
  const from = Math.max(fromLedger, Math.min(...watches.map((watch) => watch.startLedger)));
  const { latestLedger } = await source.check(signal, stream.anchor ?? undefined);
  const through = Math.min(throughLedger, latestLedger);
  checkRange(stream, { fromLedger: from, throughLedger: through });

  const startedAt = now();
  const reader = identifying(source, context.decoder);
  const open = (ledger: number): ReadAhead<IdentifiedEvent> =>
    readAhead(
      reader,
      {
        fromLedger: ledger,
        throughLedger: through,
        contractIds: idsOf(watches),
        startLedgers: startsOf(watches),
        ...anchorOf(stream),
      },
      signal,
    );
  let windows = open(from);
  const report = { fromLedger: from, throughLedger: through, events: 0, stored: 0, healed: 0 };
  let changes = 0;
  try {
    while (windows.hasNext) {
      signal.throwIfAborted();
      const position = windows.position;
      const window = requireWindow(context, await windows.next(), position);
      const batch = await prepareBatch(context, window.events, watches);
      let changed: readonly Watch[] | undefined;
      let healed = 0;
      const stored = await commitBatch(context, batch, {
        async lock(client) {
          const locked = await lockStream(client, stream.stream);
          if (locked?.epoch !== stream.epoch) throw mismatch(stream.stream, locked, source.chain.epoch);
          return locked;
        },
        async finish(client, locked, seq) {
          const present = await readWatches(client, locked.stream);
          if (!sameFilters(present, watches)) changed = present;
          else healed = await healGaps(client, locked, window, { by, accepted: true });
          const isNext = !changed && window.fromLedger <= locked.nextLedger;
          const nextLedger = isNext
            ? Math.max(locked.nextLedger, window.throughLedger + 1)
            : locked.nextLedger;
          await moveBackfilled(client, locked.stream, { nextLedger, seq });
        },
      });
      report.events += batch.events.length;
      report.stored += stored;
      report.healed += healed;
      if (changed) {
        // What is watched now was not all read: the window is read again. What was stored stays.
        if (++changes > MAX_CHANGES) {
          throw new BackfillRangeError("The watched contracts keep changing: try again later.");
        }
        watches = changed;
        windows.stop();
        windows = open(position);
        continue;
      }
      changes = 0;
      const done = window.throughLedger - from + 1;
      const ledgersPerSecond = (done * 1000) / Math.max(1, now() - startedAt);
      const msLeft = Math.round(((through - window.throughLedger) * 1000) / ledgersPerSecond);
      onProgress?.({ ...report, ledger: window.throughLedger, ledgersPerSecond, msLeft });
    }
  } finally {
    windows.stop();
  }
  return report;
}

async function readOwnStream({ database, source }: WriteContext): Promise<StreamRow> {
  const { stream, epoch } = source.chain;
  const row = await readStream(database, stream);
  if (!row || row.passphrase !== source.passphrase || row.epoch !== epoch) throw mismatch(stream, row, epoch);
  return row;
}

function mismatch(stream: string, row: StreamRow | undefined, epoch: string): StreamMismatchError {
  return new StreamMismatchError(
    stream,
    row ? `${row.passphrase} (epoch ${row.epoch})` : "no network yet",
    `epoch ${epoch}`,
  );
}

function checkRange({ stream, nextLedger }: StreamRow, { fromLedger, throughLedger }: LedgerRange): void {
  if (fromLedger > throughLedger) {
    throw new BackfillRangeError(
      `${stream}: no watched contract has ledgers to fill up to ${throughLedger}.`,
    );
  }
  if (fromLedger > nextLedger) {
    throw new BackfillRangeError(
      `${stream} has not come to ledger ${nextLedger} yet: a backfill from ${fromLedger} would leave a hole before it. ` +
        `Begin at ${nextLedger} or below.`,
    );
  }
}

function requireWindow(
  { source }: WriteContext,
  answer: SourceWindow<IdentifiedEvent>,
  position: number,
): Extract<SourceWindow<IdentifiedEvent>, { kind: "window" }> {
  const { stream } = source.chain;
  switch (answer.kind) {
    case "window":
      return answer;
    case "gap":
      throw new GapError(stream, answer.fromLedger, answer.throughLedger);
    case "reset":
      throw new ChainResetError(source.chain, answer.anchor, answer.found);
    default:
      throw new BackfillRangeError(
        `${stream}: the source's newest ledger is ${answer.latestLedger}, so ledger ${position} cannot be filled.`,
      );
  }
}

function idsOf(watches: readonly Watch[]): readonly string[] {
  return watches.map((watch) => watch.contractId);
}

function sameFilters(a: readonly Watch[], b: readonly Watch[]): boolean {
  const same = ({ contractId, startLedger }: Watch, other: Watch | undefined): boolean =>
    contractId === other?.contractId && startLedger === other.startLedger;
  return a.length === b.length && a.every((watch, i) => same(watch, b[i]));
}

function anchorOf({ anchor }: StreamRow): Pick<Parameters<typeof readAhead>[1], "anchor"> {
  return anchor ? { anchor } : {};
}
