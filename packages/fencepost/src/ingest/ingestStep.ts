import { leaseName } from "../lease/holder.ts";
import { decideCommit, StaleTermError } from "../lease/term.ts";
import type { Log } from "../observe/log.ts";
import type { StepResult } from "../runner/runner.ts";
import type { Source, SourceEvent } from "../source/source.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import {
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
 * were added later read one window of their past. Throws {@link StaleTermError} when another process leads.
 */
export async function ingestStep(
  context: IngestContext,
  term: bigint,
  signal: AbortSignal,
): Promise<StepResult> {
  const { database, source } = context;
  const stream = await readStream(database, source.chain.stream);
  if (stream?.term !== term) throw staleTerm(context, term, "stale_term");
  if (stream.halted === "conflict") return { waitMs: HALTED_WAIT_MS };

  const watches = await readWatches(database, stream.stream);
  const joined = watches.filter((watch) => watch.nextLedger === null);
  const moved = joined.length > 0 && (await ingestAtCursor(context, stream, joined, signal));
  const lagging = watches.some((watch) => watch.nextLedger !== null);
  if (lagging) await ingestPast(context, term, watches, signal);
  return moved || lagging ? "progress" : "idle";
}

async function ingestAtCursor(
  context: IngestContext,
  stream: StreamRow,
  joined: readonly Watch[],
  signal: AbortSignal,
): Promise<boolean> {
  const contractIds = joined.map((watch) => watch.contractId);
  const window = await context.source.window({ fromLedger: stream.nextLedger, contractIds }, signal);
  switch (window.kind) {
    case "idle":
      return false;
    case "behind":
      context.log.debug({ stream: stream.stream, latest: window.latestLedger }, "source is behind");
      return false;
    case "gap":
      await handleGap(context, stream, window);
      return true;
    case "window": {
      const events = identify(context, window.events, joined);
      await commitEvents(context, stream, events, (client, locked, seq) =>
        moveStream(client, locked, {
          nextLedger: window.throughLedger + 1,
          seq,
          latestLedger: window.latestLedger,
          leaseMs: context.leaseMs,
        }),
      );
      return true;
    }
  }
}

/** One window of the past of the contracts that are furthest behind. */
async function ingestPast(
  context: IngestContext,
  term: bigint,
  watches: readonly Watch[],
  signal: AbortSignal,
): Promise<void> {
  const stream = await readStream(context.database, context.source.chain.stream);
  if (stream?.term !== term) throw staleTerm(context, term, "stale_term");
  const from = Math.min(...watches.flatMap((watch) => watch.nextLedger ?? []));
  const behind = watches.filter((watch) => watch.nextLedger === from);
  const contractIds = behind.map((watch) => watch.contractId);

  let to = from;
  let events: readonly IdentifiedEvent[] = [];
  if (from < stream.nextLedger) {
    const request = { fromLedger: from, throughLedger: stream.nextLedger - 1, contractIds };
    const window = await context.source.window(request, signal);
    if (window.kind === "gap") {
      const lost = { ...window, throughLedger: Math.min(window.throughLedger, stream.nextLedger - 1) };
      await context.database.transaction((client) =>
        insertGap(client, { stream: stream.stream, ...lost, accepted: true }),
      );
      context.log.warn({ contractIds, ...lost }, "the past of an added contract has a gap");
      to = lost.throughLedger + 1;
    } else if (window.kind === "window") {
      events = identify(context, window.events, behind);
      to = window.throughLedger + 1;
    } else return;
  }
  await commitEvents(context, stream, events, async (client, locked, seq) => {
    const joinAt = locked.nextLedger;
    return (
      (await moveWatches(client, locked.stream, contractIds, from, to, joinAt)) &&
      (await moveStream(client, locked, {
        ...locked,
        seq,
        latestLedger: locked.latestLedger ?? 0,
        leaseMs: context.leaseMs,
      }))
    );
  });
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

type Move = (client: DatabaseClient, locked: StreamRow, seq: bigint) => Promise<boolean>;

/** One transaction: the row's lock, the events, the cursor's compare-and-set. All of it, or nothing. */
async function commitEvents(
  context: IngestContext,
  read: StreamRow,
  events: readonly IdentifiedEvent[],
  move: Move,
): Promise<void> {
  const { database, leaseMs, log } = context;
  let conflict: { event: IdentifiedEvent; storedHash: Buffer } | undefined;
  const commit = stageTransaction(database, leaseMs, async (client) => {
    const locked = await lockStream(client, read.stream);
    const decision = decideCommit(locked && positionOf(locked), positionOf(read));
    if (decision !== "commit" || !locked) throw staleTerm(context, read.term, decision);

    const stored = await insertEvents(client, locked, events);
    conflict = await findConflict(client, events, new Set<string>(stored));
    if (conflict) throw new EventConflictError(conflict.event.token);
    if (!(await move(client, locked, locked.seq + BigInt(stored.length)))) {
      throw staleTerm(context, read.term, "moved_cursor");
    }
    return stored.length;
  });
  try {
    const stored = await commit;
    context.onStored?.({ events: stored, replayed: events.length - stored, ledger: read.nextLedger });
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

async function findConflict(
  client: DatabaseClient,
  events: readonly IdentifiedEvent[],
  stored: ReadonlySet<string>,
): Promise<{ event: IdentifiedEvent; storedHash: Buffer } | undefined> {
  const known = events.filter((event) => !stored.has(event.token));
  if (known.length === 0) return undefined;
  const hashes = await readContentHashes(
    client,
    known.map((event) => event.token),
  );
  for (const event of known) {
    const storedHash = hashes.get(event.token);
    if (storedHash && decideStored(storedHash, event.contentHash) === "conflict")
      return { event, storedHash };
  }
  return undefined;
}

async function handleGap(
  context: IngestContext,
  stream: StreamRow,
  gap: { fromLedger: number; throughLedger: number; latestLedger: number },
): Promise<void> {
  const { database, leaseMs, onGap, log } = context;
  const accepted = onGap === "continue";
  await stageTransaction(database, leaseMs, async (client) => {
    const locked = await lockStream(client, stream.stream);
    const decision = decideCommit(locked && positionOf(locked), positionOf(stream));
    if (decision !== "commit" || !locked) throw staleTerm(context, stream.term, decision);
    const { fromLedger, throughLedger, latestLedger } = gap;
    await insertGap(client, { stream: stream.stream, fromLedger, throughLedger, accepted });
    if (!accepted) return;
    const to = { nextLedger: throughLedger + 1, seq: locked.seq, latestLedger, leaseMs };
    if (!(await moveStream(client, locked, to))) throw staleTerm(context, stream.term, "moved_cursor");
  });
  log.error({ stream: stream.stream, ...gap, accepted }, "gap in the source");
  if (!accepted) throw new GapError(stream.stream, gap.fromLedger, gap.throughLedger);
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
