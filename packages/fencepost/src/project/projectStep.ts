import { drizzle } from "drizzle-orm/node-postgres";
import type pg from "pg";
import type { Projection, ProjectionDb } from "../config/projection.ts";
import { leaseName } from "../lease/holder.ts";
import { type CommitDecision, decideCommit, StaleTermError } from "../lease/term.ts";
import { EventContentMismatchError, type Message } from "../message/payload.ts";
import type { Log } from "../observe/log.ts";
import type { StepResult } from "../runner/runner.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import { insertMessages } from "../store/postgres/messages.ts";
import {
  currentTransaction,
  lockProjection,
  moveProjection,
  type ProjectionRow,
  readEventsAfter,
  readProjection,
  recordStop,
  type StoredEvent,
} from "../store/postgres/projections.ts";
import { useVersionSchema } from "../store/postgres/projectionTables.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import { insertQuarantine } from "../store/postgres/streams.ts";
import type { Decoder } from "../xdr/decode.ts";
import { decodeEvent, projectedEvent, readData } from "./decodeEvent.ts";
import { type Emission, emittedMessages } from "./emitted.ts";
import { ProjectionStoppedError, TransactionEndedError } from "./errors.ts";
import { switchWhenCaughtUp } from "./registerProjection.ts";

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
    readonly seq: bigint;
  }) => void;
}

/** Events of one transaction, at the most. */
const BATCH_EVENTS = 500;

/**
 * Applies the next batch of events in one transaction with the cursor and the messages, under `term`. A handler
 * that throws has the events before it committed, and stops the projection there with
 * {@link ProjectionStoppedError}. Throws {@link StaleTermError} when another process leads.
 */
export async function projectStep(context: ProjectContext, term: bigint): Promise<StepResult> {
  const { database, projection } = context;
  const row = await readProjection(database, projection.name, projection.version);
  if (row?.term !== term) throw staleTerm(projection, term, "stale_term");
  if (row.state === "retired") return { waitMs: 60_000 };

  const building = row.state === "building" ? await switchWhenCaughtUp(database, row, projection) : null;
  if (building === "switched") return "progress";
  const { events, lookedThrough } = await readEventsAfter(database, {
    stream: row.stream,
    projection: row.name,
    after: row.cursor,
    through: building?.liveCursor ?? null,
    contractIds: contractIdsOf(projection),
    limit: BATCH_EVENTS,
  });
  if (lookedThrough === row.cursor) return "idle";

  const failure = await apply(context, row, events, lookedThrough);
  if (!failure) return "progress";
  // Run what came before the failure again, in a transaction of its own; its last seq becomes the cursor.
  const before = events.slice(0, failure.index);
  const last = before.at(-1);
  const again = last && (await apply(context, row, before, last.seq));
  const stop = again ?? failure;
  const { event, name, cause } = stop;
  const stack = cause instanceof Error ? (cause.stack ?? cause.message) : String(cause);
  await recordStop(database, row, { token: event.token, event: name, error: stack.slice(0, 8_000) });
  throw new ProjectionStoppedError(row.name, event.token, name, cause);
}

interface Failure {
  readonly index: number;
  readonly event: StoredEvent;
  readonly name: string;
  readonly cause: unknown;
}

/** One transaction over a batch. Returns where a handler failed, with everything rolled back. */
async function apply(
  context: ProjectContext,
  row: ProjectionRow,
  events: readonly StoredEvent[],
  cursor: bigint,
): Promise<Failure | undefined> {
  const { database, projection, leaseMs } = context;
  let failure: Failure | undefined;
  try {
    const messages = await stageTransaction(database, leaseMs, async (client) => {
      const locked = await lockProjection(client, row.name, row.version);
      const decision = decideCommit(locked, row);
      if (decision !== "commit" || !locked) throw staleTerm(projection, row.term, decision);
      const transaction = await currentTransaction(client);
      await useVersionSchema(client, row.name, row.version);

      const handled = await handleEvents(context, client, events, (stop) => {
        failure = stop;
      });
      const mismatch = await storeMessages(client, locked, handled);
      if (mismatch) {
        const index = events.findIndex((event) => event.token === mismatch.token);
        const event = events[index];
        const cause = new EventContentMismatchError(mismatch.eventId, mismatch.token);
        if (event) failure = { index, event, name: mismatch.type, cause };
        throw cause;
      }
      if (!(await moveProjection(client, locked, { cursor, transaction, leaseMs }))) {
        if ((await currentTransaction(client)) !== transaction) throw new TransactionEndedError(row.name);
        throw staleTerm(projection, row.term, "moved_cursor");
      }
      return handled.length;
    });
    context.onProjected?.({ events: events.length, messages, seq: cursor });
    return undefined;
  } catch (error) {
    if (failure && (failure.cause === error || error instanceof HandlerFailed)) return failure;
    throw error;
  }
}

/** Ends the transaction of a batch; what failed is in the failure beside it. */
class HandlerFailed extends Error {}

interface HandledMessage {
  readonly seq: bigint;
  readonly message: Message;
}

async function handleEvents(
  context: ProjectContext,
  client: DatabaseClient,
  events: readonly StoredEvent[],
  onFailure: (failure: Failure) => void,
): Promise<readonly HandledMessage[]> {
  const { projection, decoder, log } = context;
  const db: ProjectionDb = handlerDatabase(client);
  const contracts = Object.entries(projection.contracts);
  const handled: HandledMessage[] = [];
  for (const [index, stored] of events.entries()) {
    if (stored.skipped) continue;
    const decoded = decodeEvent(stored, decoder);
    const name = decoded.name ?? "";
    for (const [alias, contract] of contracts) {
      if (contract.id !== stored.contractId || !Object.hasOwn(contract.events, name)) continue;
      const shape = contract.events[name];
      const handler = projection.on[`${alias}:${name}`];
      if (!shape || !handler) continue;
      const read = await readData(shape, decoded);
      if ("misfit" in read) {
        log.warn(
          { token: stored.token, event: name, reason: read.misfit },
          "event set aside: it does not fit its shape",
        );
        await insertQuarantine(client, projection.name, [{ token: stored.token, reason: read.misfit }]);
        continue;
      }
      try {
        const emissions: Emission[] = [];
        await handler({
          event: projectedEvent(stored, decoded, name, read.data),
          db,
          emit: (type, data, options) => {
            emissions.push({ type, data, key: options?.key ?? "" });
          },
        });
        const network = stored.token.slice(0, stored.token.indexOf("-"));
        const messages = await emittedMessages(emissions, stored, projection.messages, network);
        handled.push(...messages.map((message) => ({ seq: stored.seq, message })));
      } catch (cause) {
        onFailure({ index, event: stored, name: `${alias}:${name}`, cause });
        throw new HandlerFailed();
      }
    }
  }
  return handled;
}

/** Drizzle on the client of the transaction, without what would begin or end one. */
function handlerDatabase(client: DatabaseClient): ProjectionDb {
  return new Proxy(drizzle(client as pg.Client), {
    get(target, property) {
      if (property === "transaction") {
        throw new TypeError("A handler is inside a transaction already: use db as it is.");
      }
      return Reflect.get(target, property, target) as unknown;
    },
  });
}

/** Emits, or keeps silent what a rebuild makes for events that the version before it handled. */
async function storeMessages(
  client: DatabaseClient,
  row: ProjectionRow,
  handled: readonly HandledMessage[],
): Promise<Message | undefined> {
  const isSilent = ({ seq }: HandledMessage): boolean => row.emitAfter === null || seq <= row.emitAfter;
  const silent = handled.filter(isSilent).map(({ message }) => message);
  const emitted = handled.filter((message) => !isSilent(message)).map(({ message }) => message);
  // A silent message that is on record with other content was sent as it was then: it stays.
  await insertMessages(client, silent, "suppressed", row.name);
  const { mismatched } = await insertMessages(client, emitted, "emitted", row.name);
  return mismatched[0];
}

function contractIdsOf(projection: Projection): readonly string[] {
  return [...new Set(Object.values(projection.contracts).map((contract) => contract.id))];
}

function staleTerm({ name, version }: Projection, term: bigint, why: CommitDecision): StaleTermError {
  const stage = leaseName({ kind: "projection", name, version });
  return new StaleTermError(stage, term, why === "commit" ? "moved_cursor" : why);
}
