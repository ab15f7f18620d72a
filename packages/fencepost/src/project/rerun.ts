import { contractsToRead } from "../config/projection.ts";
import type { DatabaseClient } from "../store/postgres/database.ts";
import { readEventsAfter } from "../store/postgres/projections.ts";
import type { Scratch } from "../store/postgres/scratch.ts";
import { type ApplyContext, type EmittedMessage, runHandlers } from "./applyEvents.ts";

interface Rerun extends ApplyContext {
  readonly scratch: Scratch;
  readonly stream: string;
  /** The seq of the last event. */
  readonly through: bigint;
  readonly signal: AbortSignal;
  /** What handlers emitted, some at a time, in the transaction of the batch. */
  keep(client: DatabaseClient, emitted: readonly EmittedMessage[]): Promise<void>;
  /** Called after each batch with the seq it came to. */
  onBatch?(seq: bigint): void;
}

/** Events of one transaction, at the most. */
const BATCH_EVENTS = 500;
/** Tables are vacuumed when so many events were handled since, or a fifth of all, whatever is more. */
const VACUUM_EVENTS = 10_000;

/**
 * Runs the handlers of a projection over its events from the first one on, as a rebuild does, in scratch tables: its own
 * are not touched, and nothing is sent. Throws `EventFailed` at the first event that fails.
 */
export async function rerunHandlers(rerun: Rerun): Promise<void> {
  const { scratch, projection, stream, through, signal, keep, onBatch } = rerun;
  let cursor = 0n;
  let handled = 0;
  let vacuumed = 0;
  while (cursor < through) {
    signal.throwIfAborted();
    const batch = await scratch.transaction(async (client) => {
      const { events, lookedThrough } = await readEventsAfter(client, {
        stream,
        projection: projection.name,
        after: cursor,
        through,
        ...contractsToRead(projection),
        limit: BATCH_EVENTS,
      });
      await runHandlers(client, rerun, events, (emitted) => keep(client, emitted));
      return { events: events.length, lookedThrough };
    });
    if (batch.lookedThrough <= cursor) throw new Error(`${stream} has no events from seq ${cursor} on.`);
    cursor = batch.lookedThrough;
    handled += batch.events;
    onBatch?.(cursor);
    if (handled - vacuumed > Math.max(VACUUM_EVENTS, vacuumed / 5)) {
      await scratch.vacuum();
      vacuumed = handled;
    }
  }
}
