import type { FencingToken } from "@fencepost/token";
import { leaseName } from "../lease/holder.ts";
import { decideCommit, StaleTermError } from "../lease/term.ts";
import type { Log } from "../observe/log.ts";
import type { StepResult } from "../runner/runner.ts";
import type { Source, SourceEvent } from "../source/source.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import {
  closeGaps,
  insertConflict,
  insertEvents,
  insertGap,
  lockStream,
  moveStream,
  moveWatches,
  readContentHashes,
  readStream,
  readWatches,
  type StreamRow,
  type Watch,
} from "../store/postgres/streams.ts";
import type { Decoder } from "../xdr/decode.ts";
import { decideStored } from "./decideStored.ts";
import { EventConflictError, GapError } from "./errors.ts";
import { type IdentifiedEvent, identifyEvent } from "./identify.ts";

export interface IngestContext {
  readonly database: Database;
  readonly source: Source;
  readonly decoder: Decoder;
  readonly leaseMs: number;
  readonly onGap: "stop" | "continue";
  readonly log: Log;
  /** Called after each commit with what it stored. */
  readonly onStored?: (stored: {
    readonly events: number;
    readonly replayed: number;
    readonly ledger: number;
  }) => void;
}

/** How long a stream that stopped waits before it looks again, in milliseconds. */
const HALTED_WAIT_MS = 5_000;

/**
 * Reads the next window of the stream and commits it with the cursor, under `term`. Then lets contracts that
 * were added later read one window of their past. Throws {@link StaleTermError} when another process leads,
 * {@link EventConflictError}, or {@link GapError}.
 */
export async function ingestStep(
  context: IngestContext,
  term: bigint,
  signal: AbortSignal,
): Promise<StepResult> {
  const stream = await readLedStream(context, term);
  if (stream.halted === "conflict") return { waitMs: HALTED_WAIT_MS };

  const watches = await readWatches(context.database, stream.stream);
  const joined = watches.filter((watch) => watch.nextLedger === null);
  const moved = joined.length > 0 && (await ingestAtCursor(context, stream, joined, signal));
  const lags = joined.length < watches.length;
  const movedPast = lags && (await ingestPast(context, term, watches, signal));
  return moved || movedPast ? "progress" : "idle";
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
  signal: AbortSignal,
): Promise<boolean> {
  const contractIds = joined.map((watch) => watch.contractId);
  const window = await context.source.window({ fromLedger: stream.nextLedger, contractIds }, signal);
  const { latestLedger } = window;
  if (window.kind === "idle") return false;
  if (window.kind === "behind") {
    context.log.debug({ stream: stream.stream, latestLedger }, "source is behind");
    return false;
  }
  const nextLedger = window.throughLedger + 1;
  const move: Move = (client, seq) =>
    moveStream(client, stream, { nextLedger, seq, latestLedger, leaseMs: context.leaseMs });
  if (window.kind === "gap") await commitGap(context, stream, window, move);
  else await commitEvents(context, stream, identify(context, window.events, joined), window, move);
  return true;
}

/** One window of the past of the contracts that are furthest behind. False: the source has nothing to give. */
async function ingestPast(
  context: IngestContext,
  term: bigint,
  watches: readonly Watch[],
  signal: AbortSignal,
): Promise<boolean> {
  const stream = await readLedStream(context, term);
  const from = Math.min(...watches.flatMap((watch) => watch.nextLedger ?? []));
  const behind = watches.filter((watch) => watch.nextLedger === from);
  const contractIds = behind.map((watch) => watch.contractId);
  const joinAt = stream.nextLedger;
  const moveTo =
    (to: number): Move =>
    async (client, seq) =>
      (await moveWatches(client, stream.stream, contractIds, from, to, joinAt)) &&
      (await moveStream(client, stream, {
        nextLedger: joinAt,
        seq,
        latestLedger: stream.latestLedger ?? 0,
        leaseMs: context.leaseMs,
      }));

  // Only where a person set the stream's cursor back.
  if (from >= joinAt) {
    await commitEvents(context, stream, [], { fromLedger: from, throughLedger: joinAt - 1 }, moveTo(joinAt));
    return true;
  }
  const request = { fromLedger: from, throughLedger: joinAt - 1, contractIds };
  const window = await context.source.window(request, signal);
  if (window.kind === "idle" || window.kind === "behind") return false;
  const throughLedger = Math.min(window.throughLedger, joinAt - 1);
  const move = moveTo(throughLedger + 1);
  if (window.kind === "gap") await commitGap(context, stream, { ...window, throughLedger }, move);
  else {
    const range = { fromLedger: from, throughLedger };
    await commitEvents(context, stream, identify(context, window.events, behind), range, move);
  }
  return true;
}

function identify(
  { source, decoder }: IngestContext,
  events: readonly SourceEvent[],
  watches: readonly Watch[],
): readonly IdentifiedEvent[] {
  const startOf = new Map(watches.map((watch) => [watch.contractId, watch.startLedger]));
  return events
    .filter((event) => event.ledger >= (startOf.get(event.contractId ?? "") ?? Number.POSITIVE_INFINITY))
    .map((event) => identifyEvent(source.chain, event, decoder));
}

/** Both inclusive. */
interface LedgerRange {
  readonly fromLedger: number;
  readonly throughLedger: number;
}

/** The compare-and-set that ends a commit. False: the cursor is not where it was. */
type Move = (client: DatabaseClient, seq: bigint) => Promise<boolean>;

/** One transaction: the row's lock, the events, the cursor's compare-and-set. All of it, or nothing. */
async function commitEvents(
  context: IngestContext,
  read: StreamRow,
  events: readonly IdentifiedEvent[],
  { fromLedger, throughLedger }: LedgerRange,
  move: Move,
): Promise<void> {
  const { database, leaseMs, log } = context;
  let conflict: Conflict | undefined;
  try {
    const stored = await stageTransaction(database, leaseMs, async (client) => {
      const locked = await lockLedStream(context, client, read);
      // A source that repeats itself must not leave holes in seq.
      const distinct = new Map(events.map((event) => [event.token, event]));
      const tokens = await insertEvents(client, locked, [...distinct.values()]);
      conflict = await findConflict(client, events, new Set(tokens), distinct);
      if (conflict) throw new EventConflictError(conflict.event.token);
      await closeGaps(client, read.stream, fromLedger, throughLedger);
      await requireMoved(context, read, move(client, locked.seq + BigInt(tokens.length)));
      return tokens.length;
    });
    const ledger = Math.max(throughLedger, read.nextLedger - 1); // a window of the past moves no cursor
    context.onStored?.({ events: stored, replayed: events.length - stored, ledger });
  } catch (error) {
    if (conflict) {
      const { event, storedHash } = conflict;
      const { token, contentHash: seenHash, quarantineReason: _, ...seen } = event;
      await database.transaction((client) =>
        insertConflict(client, read.stream, { token, storedHash, seenHash, seen }),
      );
      log.error({ token, stream: read.stream }, "event conflict: the stream stops");
    }
    throw error;
  }
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

interface Conflict {
  readonly event: IdentifiedEvent;
  readonly storedHash: Buffer;
}

/** The first event that was not stored now and differs from what is stored under its token. */
async function findConflict(
  client: DatabaseClient,
  events: readonly IdentifiedEvent[],
  storedNow: ReadonlySet<FencingToken>,
  distinct: ReadonlyMap<FencingToken, IdentifiedEvent>,
): Promise<Conflict | undefined> {
  const known = events.filter((event) => !storedNow.has(event.token) || distinct.get(event.token) !== event);
  if (known.length === 0) return undefined;
  const tokens = known.map((event) => event.token);
  const hashes = await readContentHashes(client, tokens);
  for (const event of known) {
    const storedHash = hashes.get(event.token);
    if (storedHash && decideStored(storedHash, event.contentHash) === "conflict")
      return { event, storedHash };
  }
  return undefined;
}

/** Names a hole; goes on beyond it only where the owner said so. */
async function commitGap(
  context: IngestContext,
  read: StreamRow,
  { fromLedger, throughLedger }: LedgerRange,
  move: Move,
): Promise<void> {
  const { database, leaseMs, onGap, log } = context;
  const accepted = onGap === "continue";
  const { stream } = read;
  await stageTransaction(database, leaseMs, async (client) => {
    const locked = await lockLedStream(context, client, read);
    await insertGap(client, { stream, fromLedger, throughLedger, accepted });
    if (accepted) await requireMoved(context, read, move(client, locked.seq));
  });
  log.error({ stream, fromLedger, throughLedger, accepted }, "gap in the source");
  if (!accepted) throw new GapError(stream, fromLedger, throughLedger);
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
