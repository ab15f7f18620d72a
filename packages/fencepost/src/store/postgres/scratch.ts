// Where handlers run again: temporary tables of one connection, in transactions that can write nothing else. They are
// gone with the connection, whatever ends it.
import type { FencingToken } from "@fencepost/token";
import pg from "pg";
import type { Message } from "../../message/payload.ts";
import type { NamedMessage, TokenRange } from "./audit.ts";
import { commit, type DatabaseClient, types } from "./database.ts";
import { ConnectionLostError, DatabaseUnreachableError } from "./errors.ts";

/** What is between us and PostgreSQL gives a connection to others as well: its temporary tables would be theirs. */
export class SharedConnectionError extends Error {
  override readonly name = "SharedConnectionError";

  constructor() {
    super(
      "Handlers run again in temporary tables, which need a connection straight to PostgreSQL, and a pooler answers at " +
        "DATABASE_URL. Nothing was made. Set DATABASE_URL to the server itself for this command.",
    );
  }
}

export interface Scratch {
  /**
   * Runs `work` in a transaction in which unqualified names mean the tables of this connection, then `public`.
   * PostgreSQL refuses any write to other tables in it. Throws {@link ConnectionLostError} when the connection, and the
   * tables with it, are gone, and `CommitBecameRollbackError` when `work` swallowed an SQL error.
   */
  transaction<T>(work: (client: DatabaseClient) => Promise<T>): Promise<T>;
  /** What autovacuum does for tables that are not temporary. */
  vacuum(): Promise<void>;
  close(): Promise<void>;
}

/** A transaction in which nothing is done for so long is cut off, in milliseconds. */
const IDLE_MS = 60_000;

/** What handlers emitted, and what a comparison found. No table that a user names begins with a blank. */
const EMITTED = '" emitted"';
const COMPARED = '" compared"';

/**
 * Opens a connection with empty tables, made by `statements` with unqualified names. Throws
 * {@link SharedConnectionError} and `DatabaseUnreachableError`.
 */
export async function openScratch(url: string, statements: readonly string[]): Promise<Scratch> {
  const client = new pg.Client({
    connectionString: url,
    keepAlive: true,
    connectionTimeoutMillis: 10_000,
    application_name: "fencepost audit",
    types,
  });
  let broken: Error | undefined;
  client.on("error", (error) => {
    broken ??= error;
  });
  await client.connect().catch((error: unknown) => {
    throw new DatabaseUnreachableError(url, error);
  });
  try {
    await refuseSharedConnection(client);
    await client.query(`SET idle_in_transaction_session_timeout = ${IDLE_MS}`);
    await client.query("SET datestyle = 'ISO'"); // as `openDatabase` does it
    await client.query("SET search_path = pg_temp, public");
    await client.query("BEGIN");
    for (const statement of statements) await client.query(statement);
    await client.query(
      `CREATE TABLE ${EMITTED} (event_id text COLLATE "C" PRIMARY KEY, token text COLLATE "C" NOT NULL, type text NOT NULL,
         seq bigint NOT NULL, content_hash bytea NOT NULL)`,
    );
    await client.query(
      `CREATE TABLE ${COMPARED} (finding text NOT NULL, token text COLLATE "C" NOT NULL, event_id text COLLATE "C" NOT NULL,
         type text NOT NULL)`,
    );
    await client.query("COMMIT");
    await client.query("SET default_transaction_read_only = on");
  } catch (error) {
    await client.end().catch(() => {});
    throw error;
  }
  return {
    async transaction(work) {
      await client.query("BEGIN READ ONLY");
      try {
        await client.query("SET LOCAL search_path = pg_temp, public");
        const result = await work(client);
        await commit(client);
        return result;
      } catch (error) {
        await client.query("ROLLBACK").catch((rollbackError: Error) => {
          broken ??= rollbackError;
        });
        throw broken ? new ConnectionLostError(url, broken, error) : error;
      }
    },
    async vacuum() {
      const { rows } = await client.query<{ name: string }>(
        `SELECT quote_ident(relname) AS name FROM pg_class
         WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'`,
      );
      await client.query(`VACUUM (ANALYZE) ${rows.map(({ name }) => `pg_temp.${name}`).join(", ")}`);
    },
    close: () => client.end(),
  };
}

/** PostgreSQL names its backend when a connection begins; a pooler gives a number of its own. */
async function refuseSharedConnection(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
  const { processID } = client as unknown as { readonly processID: number };
  if (rows[0]?.pid !== processID) throw new SharedConnectionError();
}

/** Keeps what handlers emitted, to be compared. */
export async function keepEmitted(
  client: DatabaseClient,
  emitted: readonly {
    readonly message: Pick<Message, "eventId" | "type" | "contentHash">;
    readonly event: { readonly token: FencingToken; readonly seq: bigint };
  }[],
): Promise<void> {
  if (emitted.length === 0) return;
  await client.query(
    `INSERT INTO ${EMITTED} (event_id, token, type, seq, content_hash)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bytea[])`,
    [
      emitted.map(({ message }) => message.eventId),
      emitted.map(({ event }) => event.token),
      emitted.map(({ message }) => message.type),
      emitted.map(({ event }) => event.seq),
      emitted.map(({ message }) => message.contentHash),
    ],
  );
}

/**
 * `missing`: emitted, and not on record. `different`: on record with other content. `unexplained`: on record, and not
 * emitted. `earlier`: one of the last two, which another version may have made.
 */
type ComparedFinding = "missing" | "different" | "unexplained" | "earlier";

interface Comparison {
  readonly emitted: number;
  readonly agreed: number;
  readonly findings: Readonly<
    Record<ComparedFinding, { readonly count: number; readonly listed: readonly NamedMessage[] }>
  >;
}

/**
 * Holds what was kept against the messages on record of the projection's events in a range, up to a seq. Another
 * version may have made those of events up to `emitAfter`, and what is on record as suppressed.
 */
export async function compareEmitted(
  client: DatabaseClient,
  projection: {
    readonly name: string;
    readonly stream: string;
    readonly through: bigint;
    readonly emitAfter: bigint;
  },
  tokens: TokenRange,
  limit: number,
): Promise<Comparison> {
  const { name, stream, through, emitAfter } = projection;
  await client.query(
    `INSERT INTO ${COMPARED} (finding, token, event_id, type)
     SELECT CASE WHEN m.event_id IS NULL THEN 'missing'
                 WHEN r.seq <= $1 OR m.state = 'suppressed' THEN 'earlier' ELSE 'different' END,
            r.token, r.event_id, r.type
     FROM ${EMITTED} r LEFT JOIN fencepost.messages m ON m.event_id = r.event_id
     WHERE m.event_id IS NULL OR m.content_hash <> r.content_hash
     UNION ALL
     SELECT CASE WHEN e.seq <= $1 OR m.state = 'suppressed' THEN 'earlier' ELSE 'unexplained' END,
            m.token, m.event_id, m.type
     FROM fencepost.messages m JOIN fencepost.events e ON e.token = m.token
     WHERE m.token >= $2 COLLATE "C" AND m.token <= $3 COLLATE "C" AND m.projection = $4
       AND e.stream = $5 AND e.seq <= $6
       AND NOT EXISTS (SELECT FROM ${EMITTED} r WHERE r.event_id = m.event_id)`,
    [emitAfter, tokens.from, tokens.through, name, stream, through],
  );
  const { rows: counts } = await client.query<{ finding: ComparedFinding; n: number }>(
    `SELECT finding, count(*)::int AS n FROM ${COMPARED} GROUP BY finding`,
  );
  const { rows: totals } = await client.query<{ emitted: number; differ: number }>(
    `SELECT (SELECT count(*)::int FROM ${EMITTED}) AS emitted,
            (SELECT count(*)::int FROM ${COMPARED} JOIN ${EMITTED} USING (event_id)) AS differ`,
  );
  const findingOf = async (finding: ComparedFinding) => {
    const { rows } = await client.query<NamedMessage>(
      `SELECT token, event_id AS "eventId", type FROM ${COMPARED} WHERE finding = $1
       ORDER BY token, event_id LIMIT $2`,
      [finding, limit],
    );
    return { count: counts.find((row) => row.finding === finding)?.n ?? 0, listed: rows };
  };
  const { emitted = 0, differ = 0 } = totals[0] ?? {};
  return {
    emitted,
    agreed: emitted - differ,
    findings: {
      missing: await findingOf("missing"),
      different: await findingOf("different"),
      unexplained: await findingOf("unexplained"),
      earlier: await findingOf("earlier"),
    },
  };
}
