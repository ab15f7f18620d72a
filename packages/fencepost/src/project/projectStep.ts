import { contractsToRead, type Projection } from "../config/projection.ts";
import { leaseName } from "../lease/holder.ts";
import { type CommitDecision, decideCommit, StaleTermError } from "../lease/term.ts";
import type { Log } from "../observe/log.ts";
import type { StepResult } from "../runner/runner.ts";
import type { Database } from "../store/postgres/database.ts";
import { ConnectionLostError } from "../store/postgres/errors.ts";
import {
  lockProjection,
  lockVersions,
  moveProjection,
  type ProjectionRow,
  readEventsAfter,
  readLiveCursor,
  readProjection,
  recordStop,
} from "../store/postgres/projections.ts";
import { useVersionSchema } from "../store/postgres/projectionTables.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import type { Decoder } from "../xdr/decode.ts";
import { type Applied, applyEvents, EventFailed } from "./applyEvents.ts";
import { ProjectionStoppedError, stacksOf } from "./errors.ts";
import { switchTo } from "./registerProjection.ts";

export interface ProjectContext {
  readonly database: Database;
  readonly projection: Projection;
  readonly decoder: Decoder;
  readonly leaseMs: number;
  readonly log: Log;
  /** Called after each commit with what it did. */
  readonly onProjected?: (done: {
    readonly events: number;
    readonly messages: number;
    /** Events set aside because they do not fit their declared shape. */
    readonly misfits: number;
    readonly seq: bigint;
  }) => void;
}

/** Events of one transaction, at the most. */
const BATCH_EVENTS = 500;
/** How long a version that is retired waits before it looks again, in milliseconds. */
const RETIRED_WAIT_MS = 60_000;

/**
 * Applies the next batch of events in one transaction with the cursor and the messages, under `term`. A handler
 * that throws has the events before it committed, and stops the projection there with
 * {@link ProjectionStoppedError}. A version that is being built follows the live one in silence, and takes its
 * place once it has caught up. Throws {@link StaleTermError} when another process leads.
 */
export async function projectStep(context: ProjectContext, term: bigint): Promise<StepResult> {
  const { database, projection } = context;
  const row = await readProjection(database, projection.name, projection.version);
  if (row?.term !== term) throw staleTerm(projection, term, "stale_term");
  if (row.state === "retired") return { waitMs: RETIRED_WAIT_MS };
  // A rule that is new has not looked at every stored event: whose events these are is not known yet.
  if (!row.discovered && contractsToRead(projection).rules.length > 0) return "idle";

  let batch: Batch = { through: row.newestSeq, overtake: false };
  if (row.state === "building") {
    const through = (await readLiveCursor(database, row.name)) ?? row.cursor;
    // The last stretch holds the live version up, so that it cannot run away; it is one batch long at the most.
    batch = { through, overtake: through >= row.cursor && through - row.cursor <= BigInt(BATCH_EVENTS) };
  }
  if (batch.through <= row.cursor && !batch.overtake) return "idle";

  const failure = await attempt(context, row, batch);
  if (!failure) return "progress";
  // Commit what came before the failure: from then on it is the first of every batch.
  const through = failure.event.seq - 1n;
  const earlier = through > row.cursor && (await attempt(context, row, { through, overtake: false }));
  const { event, handler, cause } = earlier || failure;
  await recordStop(database, row, { token: event.token, event: handler, error: stacksOf(cause) });
  throw new ProjectionStoppedError(row.name, event.token, handler, cause);
}

interface Batch {
  /** Not beyond this seq. */
  readonly through: bigint;
  /** Whether this version is to take the place of the live one, under the locks of both. */
  readonly overtake: boolean;
}

/** One transaction over a batch. Returns where it failed, with everything rolled back. */
async function attempt(
  context: ProjectContext,
  row: ProjectionRow,
  batch: Batch,
): Promise<EventFailed | undefined> {
  try {
    await commitBatch(context, row, batch);
    return undefined;
  } catch (error) {
    if (error instanceof EventFailed) return error;
    // A handler that keeps its transaction idle for too long is cut off by the database: a failure of its own.
    if (
      error instanceof ConnectionLostError &&
      error.code === "25P03" &&
      error.cause instanceof EventFailed
    ) {
      return new EventFailed(error.cause.event, error.cause.handler, error);
    }
    throw error;
  }
}

async function commitBatch(context: ProjectContext, row: ProjectionRow, batch: Batch): Promise<void> {
  const { database, projection, leaseMs, log } = context;
  const { name, version } = row;
  const done = await stageTransaction(database, leaseMs, async (client) => {
    const versions = batch.overtake ? await lockVersions(client, name) : [];
    const locked = batch.overtake
      ? versions.find((other) => other.version === version)
      : await lockProjection(client, name, version);
    const decision = decideCommit(locked, row);
    if (decision !== "commit" || !locked) throw staleTerm(projection, row.term, decision);

    const live = versions.find((other) => other.state === "live");
    const through = batch.overtake ? (live?.cursor ?? locked.cursor) : batch.through;
    const { events, lookedThrough } = await readEventsAfter(client, {
      stream: locked.stream,
      projection: name,
      after: locked.cursor,
      through,
      ...contractsToRead(projection),
      limit: BATCH_EVENTS,
    });
    await useVersionSchema(client, name, version);
    const applied: Applied = await applyEvents(client, context, locked, events);
    if (!(await moveProjection(client, row, { cursor: lookedThrough, leaseMs }))) {
      throw staleTerm(projection, row.term, "moved_cursor");
    }
    const switched = batch.overtake && lookedThrough === through;
    if (switched) await switchTo(client, projection, versions, lookedThrough);
    return { ...applied, events: events.length, seq: lookedThrough, switched };
  });
  for (const { token, reason } of done.misfits) {
    log.warn({ token, reason, projection: name }, "event set aside: it does not fit its shape");
  }
  if (done.switched) log.info({ projection: name, version, seq: done.seq }, "version is live");
  context.onProjected?.({ ...done, misfits: done.misfits.length });
}

function staleTerm({ name, version }: Projection, term: bigint, why: CommitDecision): StaleTermError {
  const stage = leaseName({ kind: "projection", name, version });
  return new StaleTermError(stage, term, why === "commit" ? "moved_cursor" : why);
}
