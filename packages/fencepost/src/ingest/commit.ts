import type { Log } from "../observe/log.ts";
import type { Source } from "../source/source.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import {
  insertConflict,
  insertEvents,
  insertFoundWatches,
  insertUnnamed,
  readContentHashes,
  type StreamRow,
  type Watch,
} from "../store/postgres/streams.ts";
import type { Decoder } from "../xdr/decode.ts";
import { type Conflict, decideBatch } from "./decideStored.ts";
import { type Discovery, type Found, findContracts } from "./discovery.ts";
import { EventConflictError } from "./errors.ts";
import type { IdentifiedEvent } from "./identify.ts";

/** What every writer of a stream's events needs. */
export interface WriteContext {
  readonly database: Database;
  readonly source: Source;
  readonly decoder: Decoder;
  /** How long a writer that is paused inside a transaction may hold up the others, in milliseconds; half of it. */
  readonly leaseMs: number;
  readonly log: Log;
  /** Finds contracts that events of others name. */
  readonly discovery?: Discovery;
}

/** Events of a window, and the contracts that they name. */
export interface Batch {
  readonly events: readonly IdentifiedEvent[];
  readonly found: Found;
}

/** Leaves out events before the start of their contract, and finds the contracts that the others name. */
export async function prepareBatch(
  { discovery }: WriteContext,
  events: readonly IdentifiedEvent[],
  watches: readonly Watch[],
): Promise<Batch> {
  const startOf = startsOf(watches);
  const wanted = events.filter(
    (event) => event.ledger >= (startOf.get(event.contractId ?? "") ?? Number.POSITIVE_INFINITY),
  );
  return { events: wanted, found: await findContracts(discovery, wanted) };
}

/** From which ledger on the contracts are wanted. */
export function startsOf(watches: readonly Watch[]): ReadonlyMap<string, number> {
  return new Map(watches.map((watch) => [watch.contractId, watch.startLedger]));
}

/** One transaction of a writer: locks the stream's row, and ends with what moves its cursor. */
export interface Commit {
  lock(client: DatabaseClient): Promise<StreamRow>;
  /** `seq`: the last one given out. Called under the lock, when the events are stored. */
  finish(client: DatabaseClient, locked: StreamRow, seq: bigint): Promise<void>;
}

/**
 * The row's lock, the events, the contracts they name, the cursor: all of it, or nothing. Returns how many events
 * were new. Throws {@link EventConflictError}, which stops the stream, and what `lock` and `finish` throw.
 */
export async function commitBatch(
  { database, leaseMs, log, source }: WriteContext,
  { events, found }: Batch,
  { lock, finish }: Commit,
): Promise<number> {
  let conflict: Conflict<IdentifiedEvent> | undefined;
  try {
    return await stageTransaction(database, leaseMs, async (client) => {
      const locked = await lock(client);
      const stored = await readContentHashes(client, [...new Set(events.map(({ token }) => token))]);
      const decided = decideBatch(events, stored);
      conflict = decided.conflict;
      if (conflict) throw new EventConflictError(conflict.event.token);
      const inChainOrder = [...decided.fresh].sort((a, b) => (a.token < b.token ? -1 : 1));
      await insertEvents(client, locked, inChainOrder);
      await insertFoundWatches(client, locked.stream, found.watches);
      await insertUnnamed(client, found.unnamed);
      await finish(client, locked, locked.seq + BigInt(decided.fresh.length));
      return decided.fresh.length;
    });
  } catch (error) {
    if (conflict) {
      const { event, storedHash } = conflict;
      const { token, contentHash: seenHash, quarantineReason: _, ...seen } = event;
      const { stream } = source.chain;
      await database.transaction((client) =>
        insertConflict(client, stream, { token, storedHash, seenHash, seen }),
      );
      log.error({ token, stream }, "event conflict: the stream stops");
    }
    throw error;
  }
}
