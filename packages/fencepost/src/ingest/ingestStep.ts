import { leaseName } from "../lease/holder.ts";
import { decideCommit, StaleTermError } from "../lease/term.ts";
import type { StepResult } from "../runner/runner.ts";
import { ChainResetError, RpcResponseError, SourceUnavailableError } from "../source/errors.ts";
import type { LedgerRef, SourceWindow } from "../source/source.ts";
import type { DatabaseClient } from "../store/postgres/database.ts";
import { healGaps, insertGap, type LedgerRange } from "../store/postgres/gaps.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import {
  haltForReset,
  insertFoundWatches,
  insertUnnamed,
  lockStream,
  moveDiscovered,
  moveStream,
  readEventsBetween,
  readStream,
  readWatches,
  type StreamRow,
  type Watch,
  writeAnchor,
} from "../store/postgres/streams.ts";
import { type Batch, commitBatch, prepareBatch, startsOf, type WriteContext } from "./commit.ts";
import { factoryIds, findContracts, NOTHING_FOUND } from "./discovery.ts";
import { GapError } from "./errors.ts";
import { type IdentifiedEvent, identifying } from "./identify.ts";
import { decidePast, type Past } from "./past.ts";
import { openWindows, type Windows } from "./windows.ts";

export interface IngestContext extends WriteContext {
  readonly onGap: "stop" | "continue";
  /** Called after each commit with what it stored. */
  readonly onStored?: (stored: {
    readonly events: number;
    readonly replayed: number;
    readonly ledger: number;
  }) => void;
  /** Called when a hole is found, and when it grows. */
  readonly onGapFound?: (gap: LedgerRange & { readonly accepted: boolean }) => void;
}

/** Stage ingest of one stream. */
export interface Ingest {
  /**
   * Reads the next window of the stream and commits it with the cursor, under `term`. Then lets contracts that were
   * added later read one window of their past. Throws {@link StaleTermError} when another process leads,
   * {@link EventConflictError}, {@link GapError}, or {@link ChainResetError}.
   */
  step(term: bigint, signal: AbortSignal): Promise<StepResult>;
}

/** How long a stream that stopped waits before it looks again, in milliseconds. */
const HALTED_WAIT_MS = 5_000;
/** The anchor is taken anew after so many ledgers, an hour or so: before a node forgets it. */
const ANCHOR_LEDGERS = 720;
/** Stored events that are looked at for contracts in one step. */
const DISCOVERED_AT_ONCE = 10_000n;

/** Keeps what it has read ahead from one step to the next. */
export function createIngest(context: IngestContext): Ingest {
  const [windows, pastWindows] = [openOwn(context), openOwn(context)];
  return { step: (term, signal) => ingestStep(context, term, signal, windows, pastWindows) };
}

/** One step, with nothing read ahead unless windows are given. */
export async function ingestStep(
  context: IngestContext,
  term: bigint,
  signal: AbortSignal,
  windows: Windows = openOwn(context),
  pastWindows: Windows = openOwn(context),
): Promise<StepResult> {
  const stream = await readLedStream(context, term);
  if (stream.halted === "conflict") return { waitMs: HALTED_WAIT_MS };

  const discovered = await discoverStored(context, stream);
  const watches = await readWatches(context.database, stream.stream);
  const joined = watches.filter((watch) => watch.nextLedger === null);
  const moved = joined.length > 0 && (await ingestAtCursor(context, stream, joined, windows, signal));
  const movedPast = await ingestPast(context, term, watches, pastWindows, signal);
  return discovered || moved || movedPast ? "progress" : "idle";
}

function openOwn({ source, decoder }: IngestContext): Windows {
  return openWindows(identifying(source, decoder));
}

async function readLedStream(context: IngestContext, term: bigint): Promise<StreamRow> {
  const stream = await readStream(context.database, context.source.chain.stream);
  if (stream?.term !== term) throw staleTerm(context, term, "stale_term");
  return stream;
}

/** The next window of the stream. False: nothing to do. */
async function ingestAtCursor(
  context: IngestContext,
  stream: StreamRow,
  joined: readonly Watch[],
  windows: Windows,
  signal: AbortSignal,
): Promise<boolean> {
  const contractIds = joined.map((watch) => watch.contractId);
  const startLedgers = startsOf(joined);
  const request = { fromLedger: stream.nextLedger, contractIds, startLedgers, ...anchorOf(stream) };
  const window = await windows.next(request, stream.latestLedger ?? 0, signal);
  if (window.kind === "reset") return await commitReset(context, stream, window);
  const { latestLedger } = window;
  if (window.kind === "idle") return false;
  if (window.kind === "behind") {
    context.log.debug({ stream: stream.stream, latestLedger }, "source is behind");
    return false;
  }
  const nextLedger = window.throughLedger + 1;
  const move: Move = (client, seq) =>
    moveStream(client, stream, { nextLedger, seq, latestLedger, leaseMs: context.leaseMs });
  if (window.kind === "gap") await commitGap(context, stream, window, move, signal);
  else {
    const batch = await prepareBatch(context, window.events, joined);
    const anchor = await nextAnchor(context, stream, window, signal);
    await commitWindow(context, stream, batch, window, move, anchor);
  }
  return true;
}

/** One window of the past of contracts that lag, those furthest behind first. False: nothing to read, or to give. */
async function ingestPast(
  context: IngestContext,
  term: bigint,
  watches: readonly Watch[],
  windows: Windows,
  signal: AbortSignal,
): Promise<boolean> {
  if (watches.every(({ nextLedger, earlier }) => nextLedger === null && earlier === null)) return false;
  const stream = await readLedStream(context, term);
  const past = decidePast(watches, stream.nextLedger);
  if (!past) return false;
  const moveTo =
    (to: number): Move =>
    async (client, seq) =>
      (await past.move(client, stream.stream, to)) &&
      (await moveStream(client, stream, {
        nextLedger: stream.nextLedger,
        seq,
        latestLedger: stream.latestLedger ?? 0,
        leaseMs: context.leaseMs,
      }));
  const { fromLedger, throughLedger } = past;

  // Only where a person set the stream's cursor back.
  if (fromLedger > throughLedger) {
    await commitWindow(
      context,
      stream,
      { events: [], found: NOTHING_FOUND },
      past,
      moveTo(throughLedger + 1),
    );
    return true;
  }
  const window = await readPast(stream, past, windows, signal);
  if (window.kind === "idle" || window.kind === "behind") return false;
  if (window.kind === "reset") return await commitReset(context, stream, window);
  const range = { fromLedger, throughLedger: Math.min(window.throughLedger, throughLedger) };
  const move = moveTo(range.throughLedger + 1);
  if (window.kind === "gap") await commitGap(context, stream, range, move, signal);
  else
    await commitWindow(
      context,
      stream,
      await prepareBatch(context, window.events, past.watches),
      range,
      move,
    );
  return true;
}

function readPast(
  stream: StreamRow,
  past: Past,
  windows: Windows,
  signal: AbortSignal,
): Promise<SourceWindow<IdentifiedEvent>> {
  const { fromLedger, throughLedger } = past;
  const contractIds = past.watches.map((watch) => watch.contractId);
  const startLedgers = startsOf(past.watches);
  const request = { fromLedger, throughLedger, contractIds, startLedgers, ...anchorOf(stream) };
  return windows.next(request, throughLedger, signal);
}

/** Looks at stored events for contracts that they name, where a rule is newer than they are. False: none is left. */
async function discoverStored(context: IngestContext, stream: StreamRow): Promise<boolean> {
  const { database, discovery, leaseMs } = context;
  if (!discovery || stream.discoveredSeq >= stream.seq) return false;
  const after = stream.discoveredSeq;
  const through = after + DISCOVERED_AT_ONCE < stream.seq ? after + DISCOVERED_AT_ONCE : stream.seq;
  const events = await readEventsBetween(database, stream, { after, through }, factoryIds(discovery));
  const found = await findContracts(discovery, events);
  await stageTransaction(database, leaseMs, async (client) => {
    await lockLedStream(context, client, stream);
    await insertFoundWatches(client, stream.stream, found.watches);
    await insertUnnamed(client, found.unnamed);
    await requireMoved(context, stream, moveDiscovered(client, stream.stream, after, through));
  });
  return true;
}

function anchorOf({ anchor }: StreamRow): { readonly anchor?: LedgerRef } {
  return anchor ? { anchor } : {};
}

/**
 * A newer anchor where it is time for one: the source's newest ledger, where it tells what that is, otherwise the
 * ledger of the last event. Never what a page says of its range: one odd answer would stop the stream later.
 */
async function nextAnchor(
  { source }: IngestContext,
  { anchor }: StreamRow,
  { latestLedger, events }: Extract<SourceWindow, { kind: "window" }>,
  signal: AbortSignal,
): Promise<LedgerRef | undefined> {
  if (anchor && latestLedger < anchor.ledger + ANCHOR_LEDGERS) return undefined;
  try {
    const ref = await source.ledger?.(latestLedger, signal);
    if (ref) return ref;
  } catch (error) {
    if (!(error instanceof SourceUnavailableError || error instanceof RpcResponseError)) throw error;
  }
  const last = events.at(-1);
  if (!last || last.ledger <= (anchor?.ledger ?? 0)) return undefined;
  return { ledger: last.ledger, hash: null, closedAt: Math.floor(Date.parse(last.closedAt) / 1000) };
}

/** The compare-and-set that ends a commit. False: the cursor is not where it was. */
type Move = (client: DatabaseClient, seq: bigint) => Promise<boolean>;

/** One transaction: the row's lock, the events, the cursor's compare-and-set. All of it, or nothing. */
async function commitWindow(
  context: IngestContext,
  read: StreamRow,
  batch: Batch,
  range: LedgerRange,
  move: Move,
  anchor?: LedgerRef,
): Promise<void> {
  const by = context.source.name ?? context.source.chain.stream;
  const stored = await commitBatch(context, batch, {
    lock: (client) => lockLedStream(context, client, read),
    async finish(client, _, seq) {
      await healGaps(client, read, range, { by, accepted: false });
      if (anchor) await writeAnchor(client, read.stream, anchor);
      await requireMoved(context, read, move(client, seq));
    },
  });
  const ledger = Math.max(range.throughLedger, read.nextLedger - 1); // a window of the past moves no cursor
  context.onStored?.({ events: stored, replayed: batch.events.length - stored, ledger });
}

async function lockLedStream(
  context: IngestContext,
  client: DatabaseClient,
  read: StreamRow,
): Promise<StreamRow> {
  const locked = await lockStream(client, read.stream);
  const decision = decideCommit(locked && positionOf(locked), positionOf(read));
  if (decision !== "commit" || !locked) throw staleTerm(context, read.term, decision);
  return locked;
}

async function requireMoved(context: IngestContext, read: StreamRow, moved: Promise<boolean>): Promise<void> {
  if (!(await moved)) throw staleTerm(context, read.term, "moved_cursor");
}

/** Names a hole; goes on beyond it only where the owner said so. */
async function commitGap(
  context: IngestContext,
  read: StreamRow,
  { fromLedger, throughLedger }: LedgerRange,
  move: Move,
  signal: AbortSignal,
): Promise<void> {
  const { database, leaseMs, onGap, log, source } = context;
  const accepted = onGap === "continue";
  const { stream } = read;
  // The ledger of the anchor may be in the hole: what is beyond it must at least be a chain of this epoch.
  if (accepted) await source.check(signal, read.anchor ?? undefined);
  const isNew = await stageTransaction(database, leaseMs, async (client) => {
    const locked = await lockLedStream(context, client, read);
    const named = await insertGap(client, read, { fromLedger, throughLedger }, accepted);
    if (accepted) await requireMoved(context, read, move(client, locked.seq));
    return named;
  });
  if (isNew) {
    log.error({ stream, fromLedger, throughLedger, accepted }, "gap in the source");
    context.onGapFound?.({ fromLedger, throughLedger, accepted });
  }
  if (!accepted) throw new GapError(stream, fromLedger, throughLedger);
}

/** The source has another chain: nothing of it is stored, and the stream stops until its node is right, or a person acts. */
async function commitReset(
  context: IngestContext,
  read: StreamRow,
  { anchor, found }: Extract<SourceWindow, { kind: "reset" }>,
): Promise<never> {
  const { database, leaseMs, source, log } = context;
  await stageTransaction(database, leaseMs, async (client) => {
    await lockLedStream(context, client, read);
    await haltForReset(client, read.stream);
  });
  const error = new ChainResetError(source.chain, anchor, found);
  if (read.halted !== "reset")
    log.error({ stream: read.stream, anchor, found }, "the chain is another one: the stream stops");
  throw error;
}

function positionOf(row: StreamRow): { term: bigint; cursor: bigint } {
  return { term: row.term, cursor: BigInt(row.nextLedger) };
}

function staleTerm(
  { source }: IngestContext,
  term: bigint,
  why: ReturnType<typeof decideCommit>,
): StaleTermError {
  const stage = leaseName({ kind: "stream", stream: source.chain.stream });
  return new StaleTermError(stage, term, why === "commit" ? "moved_cursor" : why);
}
