import type { EventId, FencingToken } from "@fencepost/token";
import { decideLatest, decideQuery, type ReceiptStatus, type TokenOrder } from "./decide.ts";
import { deferred } from "./deferred.ts";
import { InboxBusyError, NotInTransactionError, SqliteMissingError } from "./errors.ts";
import {
  type FoundEntry,
  fencedUntil,
  type Inbox,
  type InboxEntry,
  type InboxQuery,
  type LatestEntry,
} from "./inbox.ts";
import { positiveInteger } from "./options.ts";
import { type TimeLimit, timeLimit } from "./timeLimit.ts";

/** What this package needs of a SQLite connection; `DatabaseSync` of `node:sqlite` has it. */
export interface SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): SqliteStatement;
}

/** A prepared statement. */
export interface SqliteStatement {
  run(...values: SqliteValue[]): unknown;
  get(...values: SqliteValue[]): unknown;
  all(...values: SqliteValue[]): unknown[];
}

/** What a statement takes. */
export type SqliteValue = null | number | bigint | string | Uint8Array;

/** Time between two tries for the write lock of the file. */
const POLL_MS = 10;
const SQLITE_BUSY = 5;
/** Fences whose time is over that one query removes: twice as many as it can make. */
const REMOVED_FENCES = 1_000;

/**
 * An inbox in a SQLite file, by the SQLite of Node (22.13 and later): the inbox row and the handler's effects are one
 * transaction, so the effects happen once for each event, whatever crashes when.
 *
 * It opens one connection of its own to the file, on which transactions run one after another: SQLite has one writer
 * anyway, in all processes together. Whatever waits for the writer waits `waitMs` (10 000 unless given), then throws
 * InboxBusyError; a receipt query is answered with `in_progress`. `once` takes any connection to the file that is in
 * a transaction. The tables, which begin with `fencepost_inbox`, are made where they are missing.
 *
 * Throws SqliteMissingError where Node has no SQLite, and from `once` and `latest` NotInTransactionError.
 */
export function sqliteInbox(options: {
  readonly path: string;
  readonly waitMs?: number;
}): Inbox<SqliteDatabase> & {
  /** Closes the connection, when the running transaction has ended. The inbox cannot be used after it. */
  close(): Promise<void>;
} {
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);
  let connection: OpenDatabase | undefined;
  let last: Promise<void> = Promise.resolve(); // the end of the transaction that is the last in the queue

  const newLimit = () => timeLimit(waitMs, () => new InboxBusyError());

  /** Runs `work` alone on the connection; what it still waits for itself, it waits for within `limit`. */
  async function inTurn<R>(work: (db: OpenDatabase, limit: TimeLimit) => Promise<R>): Promise<R> {
    const limit = newLimit();
    const mine = deferred();
    const before = last;
    last = before.then(() => mine.promise);
    try {
      await limit.wait(before);
      connection ??= await open(options.path);
      return await work(connection, limit);
    } finally {
      limit.clear();
      mine.resolve();
    }
  }

  async function commit(db: SqliteDatabase): Promise<void> {
    const limit = newLimit();
    try {
      await whenFree(db, "COMMIT", limit); // a reader may be in the way
    } finally {
      limit.clear();
    }
  }

  function transaction<R>(work: (db: SqliteDatabase) => Promise<R>): Promise<R> {
    return inTurn(async (db, limit) => {
      await whenFree(db, "BEGIN IMMEDIATE", limit);
      try {
        const result = await work(db);
        await commit(db);
        return result;
      } catch (error) {
        quietly(db, "ROLLBACK"); // it fails only where the transaction is over
        throw error;
      }
    });
  }

  return {
    transactional: true,
    transaction,

    async record(tx, entry, work) {
      beginSavepoint(tx, entry);
      try {
        const found = insert(tx, entry);
        const result = await work(found);
        releaseSavepoint(tx, entry);
        return result;
      } catch (error) {
        quietly(tx, "ROLLBACK TO fencepost_inbox");
        quietly(tx, "RELEASE fencepost_inbox");
        throw error;
      }
    },

    async ask(query) {
      try {
        return await transaction(async (db) => {
          db.exec(MIGRATION);
          const statuses = new Map(
            query.events.map(({ eventId, before }) => [eventId, fenceOff(db, eventId, before, query)]),
          );
          removeOldFences(db, query.now);
          return { statuses, retainedSince: readRetainedSince(db, query.consumer) };
        });
      } catch (error) {
        if (!(error instanceof InboxBusyError)) throw error;
        // Whoever writes may be handling any of them.
        const statuses = new Map(query.events.map(({ eventId }) => [eventId, decideQuery("running")]));
        return { statuses, retainedSince: query.now };
      }
    },

    async prune(consumer, attemptedBefore, limit) {
      const until = Math.ceil(attemptedBefore.getTime() / 1_000);
      return transaction(async (db) => {
        db.exec(MIGRATION);
        db.prepare(
          `INSERT INTO fencepost_inbox_retained VALUES (?, ?) ON CONFLICT (consumer) DO UPDATE
           SET retained_since = max(retained_since, excluded.retained_since)`,
        ).run(consumer, until);
        return db
          .prepare(
            `DELETE FROM fencepost_inbox WHERE (consumer, event_id) IN (
               SELECT consumer, event_id FROM fencepost_inbox WHERE consumer = ? AND attempted_at < ? LIMIT ?)
             RETURNING 1`,
          )
          .all(consumer, until, limit).length;
      });
    },

    async latest(tx, entry) {
      assertTransaction(tx, "latest");
      return rememberLatest(tx, entry);
    },

    close: () => inTurn(async (db) => db.close()),
  };
}

type OpenDatabase = SqliteDatabase & { close(): void };

async function open(path: string): Promise<OpenDatabase> {
  const sqlite = await import("node:sqlite").catch((cause: unknown) => {
    throw new SqliteMissingError(cause);
  });
  return new sqlite.DatabaseSync(path);
}

// Rows as in PostgreSQL; times are in Unix seconds.
const MIGRATION = `
CREATE TABLE IF NOT EXISTS fencepost_inbox (
  consumer      TEXT NOT NULL,
  event_id      TEXT NOT NULL,
  type          TEXT,
  fencing_token TEXT,
  attempted_at  INTEGER,
  received_at   INTEGER,
  fenced_before INTEGER,
  fenced_until  INTEGER,
  PRIMARY KEY (consumer, event_id),
  CHECK (received_at IS NOT NULL OR fenced_until IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS fencepost_inbox_attempted ON fencepost_inbox (consumer, attempted_at);
CREATE INDEX IF NOT EXISTS fencepost_inbox_fenced ON fencepost_inbox (fenced_until) WHERE received_at IS NULL;
CREATE TABLE IF NOT EXISTS fencepost_inbox_retained (
  consumer       TEXT NOT NULL PRIMARY KEY,
  retained_since INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS fencepost_inbox_latest (
  consumer TEXT NOT NULL,
  key      TEXT NOT NULL,
  token    TEXT NOT NULL,
  PRIMARY KEY (consumer, key)
) STRICT, WITHOUT ROWID;
`;

/** Records an event, whether it is new or only has a fence. */
function insert(tx: SqliteDatabase, entry: InboxEntry): FoundEntry {
  const { consumer, eventId, type, fencingToken = null, attemptTimestamp } = entry;
  try {
    tx.exec(MIGRATION); // harmless, and undone with the transaction
    const row = tx
      .prepare(
        `INSERT INTO fencepost_inbox (consumer, event_id, type, fencing_token, attempted_at, received_at)
         VALUES (?, ?, ?, ?, ?, unixepoch())
         ON CONFLICT (consumer, event_id) DO UPDATE
         SET type = excluded.type, fencing_token = excluded.fencing_token,
             attempted_at = excluded.attempted_at, received_at = excluded.received_at
         WHERE received_at IS NULL
         RETURNING fenced_before`,
      )
      .get(consumer, eventId, type, fencingToken, attemptTimestamp);
    if (row !== undefined) return { state: "absent", ...fenceIn(row) };
    const found = tx
      .prepare("SELECT fenced_before FROM fencepost_inbox WHERE consumer = ? AND event_id = ?")
      .get(consumer, eventId);
    return { state: "present", ...fenceIn(found) };
  } catch (error) {
    throw isBusy(error) ? new InboxBusyError(eventId) : error;
  }
}

function fenceIn(row: unknown): Pick<FoundEntry, "fencedBefore"> {
  const { fenced_before: before } = row as { fenced_before: number | bigint | null };
  return before === null ? {} : { fencedBefore: Number(before) };
}

/** What is to be said of an event, with the fence stored. No other transaction is open: there is one writer. */
function fenceOff(tx: SqliteDatabase, eventId: EventId, before: number, query: InboxQuery): ReceiptStatus {
  const { consumer } = query;
  const received = tx
    .prepare("SELECT 1 FROM fencepost_inbox WHERE consumer = ? AND event_id = ? AND received_at IS NOT NULL")
    .get(consumer, eventId);
  const status = decideQuery(received === undefined ? "absent" : "present");
  if (status === "fenced") {
    tx.prepare(
      `INSERT INTO fencepost_inbox (consumer, event_id, fenced_before, fenced_until) VALUES (?, ?, ?, ?)
       ON CONFLICT (consumer, event_id) DO UPDATE
       SET fenced_before = max(fenced_before, excluded.fenced_before),
           fenced_until = max(fenced_until, excluded.fenced_until)`,
    ).run(consumer, eventId, before, fencedUntil(before, query));
  }
  return status;
}

function removeOldFences(tx: SqliteDatabase, now: Date): void {
  tx.prepare(
    `DELETE FROM fencepost_inbox WHERE (consumer, event_id) IN (
       SELECT consumer, event_id FROM fencepost_inbox WHERE received_at IS NULL AND fenced_until < ?
       LIMIT ${REMOVED_FENCES})`,
  ).run(now.getTime() / 1_000);
}

function readRetainedSince(tx: SqliteDatabase, consumer: string): Date | null {
  const row = tx
    .prepare("SELECT retained_since FROM fencepost_inbox_retained WHERE consumer = ?")
    .get(consumer) as { retained_since: number } | undefined;
  return row === undefined ? null : new Date(row.retained_since * 1_000);
}

function rememberLatest(tx: SqliteDatabase, { consumer, key, token }: LatestEntry): TokenOrder {
  try {
    tx.exec(MIGRATION);
    const row = tx
      .prepare("SELECT token FROM fencepost_inbox_latest WHERE consumer = ? AND key = ?")
      .get(consumer, key) as { token: FencingToken } | undefined;
    const order = decideLatest(row?.token ?? null, token);
    if (order === "newer") {
      tx.prepare(
        `INSERT INTO fencepost_inbox_latest VALUES (?, ?, ?)
         ON CONFLICT (consumer, key) DO UPDATE SET token = excluded.token`,
      ).run(consumer, key, token);
    }
    return order;
  } catch (error) {
    throw isBusy(error) ? new InboxBusyError() : error;
  }
}

function assertTransaction(tx: SqliteDatabase, method: string, eventId?: EventId): void {
  if (!quietly(tx, "BEGIN")) return; // there is one already
  quietly(tx, "ROLLBACK");
  throw new NotInTransactionError(`${method}() was called on a connection without BEGIN`, eventId);
}

// The savepoint undoes the row when the handler fails and the caller goes on. Its release proves that the
// transaction is still the one that the row was written in.
function beginSavepoint(tx: SqliteDatabase, { eventId }: InboxEntry): void {
  // Alone, a savepoint would begin a transaction of its own, and its release would commit it.
  assertTransaction(tx, "once", eventId);
  tx.exec("SAVEPOINT fencepost_inbox");
}

function releaseSavepoint(tx: SqliteDatabase, { eventId }: InboxEntry): void {
  if (quietly(tx, "RELEASE fencepost_inbox")) return;
  throw new NotInTransactionError("The handler, or a fatal error in it, ended the transaction", eventId);
}

/** True if the statement did what it says. */
function quietly(tx: SqliteDatabase, statement: string): boolean {
  try {
    tx.exec(statement);
    return true;
  } catch {
    return false;
  }
}

/**
 * Runs a statement as soon as no other connection stands in its way. Not by SQLite's own waiting, which would stop
 * this process, and with it the transaction that is waited for, if it is one of this process.
 */
async function whenFree(db: SqliteDatabase, statement: string, limit: TimeLimit): Promise<void> {
  for (;;) {
    try {
      db.exec(statement);
      return;
    } catch (error) {
      if (!isBusy(error)) throw error;
    }
    await limit.wait(new Promise((resolve) => setTimeout(resolve, POLL_MS)));
  }
}

function isBusy(error: unknown): boolean {
  const code = typeof error === "object" && error !== null && "errcode" in error ? Number(error.errcode) : 0;
  return (code & 0xff) === SQLITE_BUSY; // the rest says why
}
