import type { EventId, FencingToken } from "@fencepost/token";
import { decideLatest, decideQuery, type ReceiptStatus, type TokenOrder } from "./decide.ts";
import {
  CommitBecameRollbackError,
  InboxBusyError,
  InboxTableMissingError,
  NotInTransactionError,
} from "./errors.ts";
import {
  type FoundEntry,
  fencedUntil,
  type Inbox,
  type InboxEntry,
  type InboxQuery,
  type LatestEntry,
} from "./inbox.ts";
import { positiveInteger } from "./options.ts";
import { type InboxTables, inboxTables } from "./postgresTables.ts";
import type { AskedEvent } from "./receiptQuery.ts";
import { inTransaction, type SqlClient, type SqlPool, type SqlPoolClient, sqlState } from "./sqlClient.ts";

/** Events of a query whose keys are held in one transaction: each key is a slot in the server's table of locks. */
const ASKED_AT_ONCE = 100;

/**
 * An inbox in the customer's PostgreSQL: the inbox row and the handler's effects are one transaction, so the
 * effects happen once for each event, whatever crashes when. `pool` is a `Pool` of `pg`; `once` takes any client
 * that is in a transaction, and `fromDrizzle` and `fromPrisma` make one.
 *
 * The tables (`fencepost_inbox` and those that begin so, unless another `table` or `schema.table` is given) are made
 * by `inboxMigration` or `ensureInbox`. In transactions that this inbox opens, waiting for a lock ends after `waitMs`
 * (10 000 unless given); keep it below the sender's time-out, so that a duplicate of a slow handler is told to come
 * again. In a transaction of your own, your own `lock_timeout` counts. Where that is REPEATABLE READ or SERIALIZABLE,
 * an event or a fence that came after its snapshot is the serialization failure 40001.
 *
 * Throws, from `handle` and `once`: CommitBecameRollbackError, NotInTransactionError, InboxTableMissingError,
 * InboxBusyError, and the errors of `pg`. After any of them nothing of the event is written.
 */
export function postgresInbox<Client extends SqlPoolClient>(options: {
  readonly pool: SqlPool<Client>;
  readonly table?: string;
  readonly waitMs?: number;
}): Inbox<Client, SqlClient> {
  const { pool } = options;
  const tables = inboxTables(options.table);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);

  function transaction<R>(work: (client: Client) => Promise<R>, isolation = ""): Promise<R> {
    const rolledBack = () => new CommitBecameRollbackError();
    return inTransaction(pool, `BEGIN ${isolation}; SET LOCAL lock_timeout = ${waitMs}`, work, rolledBack);
  }

  // Each of its statements must see what was committed before, whatever the default of the database is.
  async function ownTransaction<R>(work: (client: Client) => Promise<R>): Promise<R> {
    try {
      return await transaction(work, "ISOLATION LEVEL READ COMMITTED");
    } catch (error) {
      throw sqlState(error) === "42P01" ? new InboxTableMissingError(tables.inbox) : error;
    }
  }

  return {
    transactional: true,

    transaction: (work) => transaction(work),

    async record(tx, entry, work) {
      await beginSavepoint(tx, entry);
      try {
        const found = await insert(tx, tables, entry);
        const result = await work(found);
        await releaseSavepoint(tx, entry);
        return result;
      } catch (error) {
        // They fail only where the transaction is over; then there is nothing left to undo.
        await tx.query("ROLLBACK TO SAVEPOINT fencepost_inbox").catch(ignore);
        await tx.query("RELEASE SAVEPOINT fencepost_inbox").catch(ignore);
        throw error;
      }
    },

    async ask(query) {
      const statuses = new Map<EventId, ReceiptStatus>();
      let retainedSince: Date | null = null;
      for (let from = 0; from < query.events.length; from += ASKED_AT_ONCE) {
        const events = query.events.slice(from, from + ASKED_AT_ONCE);
        retainedSince = await ownTransaction(async (client) => {
          for (const [id, status] of await fenceOff(client, tables, { ...query, events })) {
            statuses.set(id, status);
          }
          await removeOldFences(client, tables, query.now);
          return readRetainedSince(client, tables, query.consumer); // after the rows: it may have grown
        });
      }
      return { statuses, retainedSince };
    },

    async prune(consumer, attemptedBefore, limit) {
      return ownTransaction(async (client) => {
        await client.query(
          `INSERT INTO ${tables.retained} AS retained VALUES ($1, $2::timestamptz) ON CONFLICT (consumer) DO UPDATE
           SET retained_since = greatest(retained.retained_since, excluded.retained_since)`,
          [consumer, attemptedBefore.toISOString()],
        );
        const { rowCount } = await client.query(
          `DELETE FROM ${tables.inbox} WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM ${tables.inbox} WHERE consumer = $1 AND attempted_at < $2::timestamptz
             ORDER BY attempted_at LIMIT $3 FOR UPDATE SKIP LOCKED))`,
          [consumer, attemptedBefore.toISOString(), limit],
        );
        return rowCount ?? 0;
      });
    },

    latest: (tx, entry) => rememberLatest(tx, tables, entry),
  };
}

/**
 * The lock that a transaction holds from the moment it records an event until it ends, or undoes it. By the number
 * of the table, as a table may have several names. Two events with one hash wait for each other, nothing more.
 */
function lockKey({ inbox }: InboxTables, consumer: string, eventId: string): string {
  return `hashtextextended(${consumer} || ' ' || ${eventId}, '${inbox}'::regclass::oid::bigint)`;
}

/**
 * Records an event, whether it is new or only has a fence. Events and fences are rows under one unique key: so a
 * transaction whose snapshot is older than the other row fails, where a look at a second table would miss it.
 */
async function insert(tx: SqlClient, tables: InboxTables, entry: InboxEntry): Promise<FoundEntry> {
  const { consumer, eventId, type, fencingToken = null, attemptTimestamp } = entry;
  try {
    const { rows } = await tx.query(
      `INSERT INTO ${tables.inbox} AS inbox (consumer, event_id, type, fencing_token, attempted_at, received_at)
       SELECT $1::text, $2::text, $3::text, $4::text, to_timestamp($5::text::bigint), clock_timestamp()
       FROM pg_advisory_xact_lock(${lockKey(tables, "$1::text", "$2::text")})
       ON CONFLICT (consumer, event_id) DO UPDATE
       SET type = excluded.type, fencing_token = excluded.fencing_token,
           attempted_at = excluded.attempted_at, received_at = excluded.received_at
       WHERE inbox.received_at IS NULL
       RETURNING fenced_before::text`,
      [consumer, eventId, type, fencingToken, String(attemptTimestamp)],
    );
    if (rows.length > 0) return { state: "absent", ...fenceIn(rows) };
    const { rows: found } = await tx.query(
      `SELECT fenced_before::text FROM ${tables.inbox} WHERE consumer = $1 AND event_id = $2`,
      [consumer, eventId],
    );
    return { state: "present", ...fenceIn(found) };
  } catch (error) {
    const state = sqlState(error);
    if (state === "42P01") throw new InboxTableMissingError(tables.inbox, eventId);
    if (state === "55P03") throw new InboxBusyError(eventId);
    throw error;
  }
}

function fenceIn(rows: readonly unknown[]): Pick<FoundEntry, "fencedBefore"> {
  const [row] = rows as { fenced_before: string | null }[];
  return row && row.fenced_before !== null ? { fencedBefore: Number(row.fenced_before) } : {};
}

/** What is to be said of each event, with the fences stored in `tx`. */
async function fenceOff(
  tx: SqlClient,
  tables: InboxTables,
  query: InboxQuery,
): Promise<Map<EventId, ReceiptStatus>> {
  const { consumer, events } = query;
  const ids = events.map(({ eventId }) => eventId);
  const held = await eventIds(
    tx,
    `SELECT event_id FROM unnest($2::text[]) AS asked (event_id)
     WHERE pg_try_advisory_xact_lock(${lockKey(tables, "$1::text", "event_id")})`,
    [consumer, ids],
  );
  // In a statement of its own: what was committed before the keys were taken is seen.
  const received = await eventIds(
    tx,
    `SELECT event_id FROM ${tables.inbox} WHERE consumer = $1 AND event_id = ANY ($2::text[]) AND received_at IS NOT NULL`,
    [consumer, ids],
  );
  const statuses = new Map(
    ids.map((id) => [id, decideQuery(received.has(id) ? "present" : held.has(id) ? "absent" : "running")]),
  );
  const fenced = events.filter(({ eventId }) => statuses.get(eventId) === "fenced");
  await storeFences(tx, tables, fenced, query);
  return statuses;
}

async function storeFences(
  tx: SqlClient,
  { inbox }: InboxTables,
  events: readonly AskedEvent[],
  query: InboxQuery,
): Promise<void> {
  await tx.query(
    `INSERT INTO ${inbox} AS inbox (consumer, event_id, fenced_before, fenced_until)
     SELECT $1, event_id, before, to_timestamp(until)
     FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS asked (event_id, before, until)
     ON CONFLICT (consumer, event_id) DO UPDATE
     SET fenced_before = greatest(inbox.fenced_before, excluded.fenced_before),
         fenced_until = greatest(inbox.fenced_until, excluded.fenced_until)`,
    [
      query.consumer,
      events.map(({ eventId }) => eventId),
      events.map(({ before }) => before),
      events.map(({ before }) => fencedUntil(before, query)),
    ],
  );
}

/** Removes fences whose time is over, twice as many as a query can make, so that they never pile up. */
async function removeOldFences(tx: SqlClient, { inbox }: InboxTables, now: Date): Promise<void> {
  await tx.query(
    `DELETE FROM ${inbox} WHERE ctid = ANY (ARRAY(
       SELECT ctid FROM ${inbox} WHERE received_at IS NULL AND fenced_until < $1::timestamptz
       LIMIT ${2 * ASKED_AT_ONCE} FOR UPDATE SKIP LOCKED))`,
    [now.toISOString()],
  );
}

async function rememberLatest(
  tx: SqlClient,
  { latest }: InboxTables,
  { consumer, key, token }: LatestEntry,
): Promise<TokenOrder> {
  try {
    // Holds the row, new or not, until the transaction ends.
    const { rows } = await tx.query(
      `INSERT INTO ${latest} AS latest (consumer, key) VALUES ($1::text, $2::text)
       ON CONFLICT (consumer, key) DO UPDATE SET token = latest.token
       RETURNING token, txid_current()::text AS transaction`,
      [consumer, key],
    );
    const [row] = rows as { token: FencingToken | null; transaction: string }[];
    const order = decideLatest(row?.token ?? null, token);
    if (order === "stale") return order;
    const { rows: updated } = await tx.query(
      `UPDATE ${latest} SET token = $3::text
       WHERE consumer = $1::text AND key = $2::text AND txid_current()::text = $4::text RETURNING 1 AS one`,
      [consumer, key, token, row?.transaction ?? ""],
    );
    if (updated.length === 1) return order;
    throw new NotInTransactionError("latest() was called on a client without BEGIN, or on a pool");
  } catch (error) {
    throw sqlState(error) === "42P01" ? new InboxTableMissingError(latest) : error;
  }
}

async function readRetainedSince(
  tx: SqlClient,
  { retained }: InboxTables,
  consumer: string,
): Promise<Date | null> {
  const { rows } = await tx.query(
    `SELECT extract(epoch FROM retained_since)::text AS seconds FROM ${retained} WHERE consumer = $1`,
    [consumer],
  );
  const [row] = rows as { seconds: string }[];
  return row === undefined ? null : new Date(Number(row.seconds) * 1_000);
}

async function eventIds(tx: SqlClient, text: string, values: unknown[]): Promise<Set<EventId>> {
  const { rows } = await tx.query(text, values);
  return new Set((rows as { event_id: EventId }[]).map(({ event_id }) => event_id));
}

// The savepoint undoes the row when the handler fails and the caller goes on. Its release proves that the
// transaction is still the one that the row was written in, and that PostgreSQL has not given it up.
async function beginSavepoint(tx: SqlClient, { eventId }: InboxEntry): Promise<void> {
  try {
    await tx.query("SAVEPOINT fencepost_inbox");
  } catch (error) {
    if (sqlState(error) === "25P01") {
      throw new NotInTransactionError("once() was called on a client without BEGIN, or on a pool", eventId);
    }
    throw error;
  }
}

async function releaseSavepoint(tx: SqlClient, { eventId }: InboxEntry): Promise<void> {
  try {
    await tx.query("RELEASE SAVEPOINT fencepost_inbox");
  } catch (error) {
    const state = sqlState(error);
    if (state === "25P02") throw new CommitBecameRollbackError(eventId);
    if (state === "25P01" || state === "3B001") {
      throw new NotInTransactionError("The handler ended the transaction that it was given", eventId);
    }
    throw error;
  }
}

function ignore(): void {}
