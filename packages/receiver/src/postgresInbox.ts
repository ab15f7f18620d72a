import type { InboxState } from "./decide.ts";
import {
  CommitBecameRollbackError,
  InboxBusyError,
  InboxTableMissingError,
  InvalidOptionError,
  NotInTransactionError,
} from "./errors.ts";
import type { Inbox, InboxEntry } from "./inbox.ts";
import { positiveInteger } from "./options.ts";

/** What this package needs of a PostgreSQL client; `Client` and `PoolClient` of `pg` have it. */
export interface SqlClient {
  query(
    text: string,
    values?: unknown[],
  ): Promise<{
    readonly rows: readonly unknown[];
    readonly rowCount: number | null;
    readonly command?: string;
  }>;
}

/** A client lent by a pool; the `PoolClient` of `pg` is one. */
export interface SqlPoolClient extends SqlClient {
  release(destroy?: boolean): void;
  on(event: "error", listener: (error: Error) => void): unknown;
  removeListener(event: "error", listener: (error: Error) => void): unknown;
}

/** What this package needs of a pool; the `Pool` of `pg` has it. The second form of `connect` is never called. */
export interface SqlPool<Client extends SqlPoolClient> {
  readonly connect: { (): Promise<Client>; (callback: never): unknown };
}

const DEFAULT_TABLE = "fencepost_inbox";
// Any number, the same in all processes.
const ENSURE_LOCK = 5_720_116_341;

/**
 * An inbox in the customer's PostgreSQL: the inbox row and the handler's effects are one transaction, so the
 * effects happen once for each event, whatever crashes when. `pool` is a `Pool` of `pg`.
 *
 * The table (`fencepost_inbox` unless given, or `schema.table`) is made by {@link inboxMigration} or
 * {@link ensureInbox}. In transactions that this inbox opens, waiting for a lock ends after `waitMs` (10 000
 * unless given); keep it below the sender's time-out, so that a duplicate of a slow handler is told to come again.
 * In a transaction of your own, your own `lock_timeout` counts.
 *
 * Throws, from `handle` and `once`: CommitBecameRollbackError, NotInTransactionError, InboxTableMissingError,
 * InboxBusyError, and the errors of `pg`. After any of them nothing of the event is written.
 */
export function postgresInbox<Client extends SqlPoolClient>(options: {
  readonly pool: SqlPool<Client>;
  readonly table?: string;
  readonly waitMs?: number;
}): Inbox<Client> {
  const { pool } = options;
  const table = quoteTable(options.table ?? DEFAULT_TABLE);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);

  return {
    transactional: true,

    async transaction(work) {
      const client = await pool.connect();
      // Without a listener a connection that breaks between two queries ends the process; with one, the next
      // query fails.
      client.on("error", ignore);
      let broken = false;
      try {
        await client.query(`BEGIN; SET LOCAL lock_timeout = ${waitMs}`);
        const result = await work(client);
        const { command } = await client.query("COMMIT");
        if (command !== "COMMIT") throw new CommitBecameRollbackError();
        return result;
      } catch (error) {
        await client.query("ROLLBACK").catch(() => {
          broken = true;
        });
        throw error;
      } finally {
        client.removeListener("error", ignore);
        client.release(broken);
      }
    },

    async record(tx, entry, work) {
      await beginSavepoint(tx, entry);
      try {
        const found = await insert(tx, table, entry);
        const result = await work(found);
        await releaseSavepoint(tx, entry);
        return result;
      } catch (error) {
        // It fails only where the transaction is over; then there is nothing left to undo.
        await tx
          .query("ROLLBACK TO SAVEPOINT fencepost_inbox; RELEASE SAVEPOINT fencepost_inbox")
          .catch(ignore);
        throw error;
      }
    },
  };
}

/** The statement that creates the inbox table; goes into the customer's own migrations. Harmless when repeated. */
export function inboxMigration(table: string = DEFAULT_TABLE): string {
  return `CREATE TABLE IF NOT EXISTS ${quoteTable(table)} (
  consumer      text        NOT NULL,
  event_id      text        NOT NULL,
  fencing_token text        COLLATE "C",
  type          text        NOT NULL,
  received_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, event_id)
)`;
}

/** Creates the inbox table if it is not there; several processes may do so at once. */
export async function ensureInbox(client: SqlClient, table: string = DEFAULT_TABLE): Promise<void> {
  // Two statements in one query are one transaction. CREATE TABLE IF NOT EXISTS alone fails when it races.
  await client.query(`SELECT pg_advisory_xact_lock(${ENSURE_LOCK}); ${inboxMigration(table)}`);
}

async function insert(tx: SqlClient, table: string, entry: InboxEntry): Promise<InboxState> {
  const { consumer, eventId, fencingToken = null, type } = entry;
  try {
    const { rowCount } = await tx.query(
      `INSERT INTO ${table} (consumer, event_id, fencing_token, type) VALUES ($1, $2, $3, $4) ON CONFLICT (consumer, event_id) DO NOTHING`,
      [consumer, eventId, fencingToken, type],
    );
    return rowCount === 1 ? "absent" : "present";
  } catch (error) {
    const state = sqlState(error);
    if (state === "42P01") throw new InboxTableMissingError(table, eventId);
    if (state === "55P03") throw new InboxBusyError(eventId);
    throw error;
  }
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

function quoteTable(table: string): string {
  if (!/^(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$/.test(table)) {
    throw new InvalidOptionError("table", "a table or schema.table of letters, digits and _", table);
  }
  return table
    .split(".")
    .map((part) => `"${part}"`)
    .join(".");
}

function sqlState(error: unknown): unknown {
  return typeof error === "object" && error !== null && "code" in error ? error.code : undefined;
}

function ignore(): void {}
