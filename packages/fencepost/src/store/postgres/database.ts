import { createHash } from "node:crypto";
import pg from "pg";
import {
  CommitBecameRollbackError,
  ConnectionLostError,
  DatabaseFullError,
  DatabaseUnreachableError,
  diskFullCause,
} from "./errors.ts";

/** What runs a statement: a pool, a client inside a transaction, or a caller's own client. */
export interface Queryable {
  query<Row extends pg.QueryResultRow = pg.QueryResultRow>(
    text: string,
    values?: readonly unknown[],
  ): Promise<{ rows: Row[]; rowCount: number | null }>;
}

export type DatabaseClient = pg.ClientBase;

/** The pool of one process. */
export interface Database extends Queryable {
  readonly url: string;
  /** {@link Queryable.query} for a statement that runs often: each connection plans it once. */
  hot: Queryable["query"];
  /**
   * Runs `work` in one transaction; commits, or rolls back when it throws. Throws {@link DatabaseFullError} when that
   * is why, {@link ConnectionLostError} when the connection broke in it, and {@link CommitBecameRollbackError} when
   * `work` swallowed an SQL error.
   */
  transaction<T>(work: (client: DatabaseClient) => Promise<T>): Promise<T>;
  /**
   * {@link transaction} of statements that run often. `work` runs again where a pooler did not know what was prepared:
   * nothing of the first time is left then.
   */
  hotTransaction<T>(work: (db: Queryable) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

/** int8 comes as bigint: seq, fence and counts do not fit a JavaScript number for ever. */
export const types = {
  getTypeParser(oid: number, format?: "text" | "binary") {
    if (oid === pg.types.builtins.INT8 && format !== "binary") return BigInt;
    return pg.types.getTypeParser(oid, format);
  },
} as pg.CustomTypesConfig;

export interface DatabaseOptions {
  /** Connections at the most; 10 unless given. */
  readonly maxConnections?: number;
}

/** Opens a pool on `url`. Nothing is connected until the first statement. */
export function openDatabase(url: string, { maxConnections = 10 }: DatabaseOptions = {}): Database {
  const pool = new pg.Pool({
    connectionString: url,
    max: maxConnections,
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
    application_name: "fencepost",
    types,
    // pg reads dates in no other style: a server's own would make them null.
    onConnect: async (client) => {
      await client.query("SET datestyle = 'ISO'");
    },
  });
  pool.on("error", () => {}); // an idle connection that broke; the next statement opens another
  const query: Queryable["query"] = async (text, values) => {
    try {
      return await pool.query(text, values === undefined ? undefined : [...values]);
    } catch (error) {
      throw named(error, url);
    }
  };
  let canPrepare = true;
  /** A pooler between us gives each statement another connection, and does not know what was prepared where. */
  const isUnprepared = (error: unknown): boolean => {
    const is = UNPREPARED_CODES.has((error as { code?: string }).code ?? "");
    if (is) canPrepare = false;
    return is;
  };
  const database: Database = {
    url,
    query,
    async hot(text, values = []) {
      if (!canPrepare) return query(text, values);
      try {
        return await pool.query({ name: preparedName(text), text, values: [...values] });
      } catch (error) {
        if (!isUnprepared(error)) throw named(error, url);
        return query(text, values);
      }
    },
    async hotTransaction(work) {
      if (canPrepare) {
        try {
          return await database.transaction((client) => work(preparing(client)));
        } catch (error) {
          if (!isUnprepared(error)) throw error;
        }
      }
      return database.transaction(work);
    },
    async transaction(work) {
      const client = await pool.connect().catch((error: unknown) => {
        throw named(error, url);
      });
      let broken: Error | undefined;
      // The first error is the reason; that the connection ended is told after it.
      const onError = (error: Error): void => {
        broken ??= error;
      };
      client.on("error", onError);
      try {
        // A statement of its own sees what was committed before it, whatever the server's own default is.
        await client.query("BEGIN ISOLATION LEVEL READ COMMITTED");
        const result = await work(client);
        await commit(client);
        return result;
      } catch (error) {
        await client.query("ROLLBACK").catch((rollbackError: Error) => {
          broken ??= rollbackError;
        });
        throw fullOrSame(broken ? new ConnectionLostError(url, broken, error) : error, url);
      } finally {
        client.off("error", onError);
        client.release(broken);
      }
    },
    close: () => pool.end(),
  };
  return database;
}

function preparing(client: DatabaseClient): Queryable {
  return {
    query: (text, values = []) => client.query({ name: preparedName(text), text, values: [...values] }),
  };
}

/** No such prepared statement, or one of that name is there already: neither has run anything. */
const UNPREPARED_CODES = new Set(["26000", "42P05"]);
const preparedNames = new Map<string, string>();

/** Two versions of a statement have two names, also behind a pooler. There are as many as hot statements. */
function preparedName(text: string): string {
  const known = preparedNames.get(text);
  if (known !== undefined) return known;
  const name = `fencepost_${createHash("sha256").update(text).digest("hex").slice(0, 16)}`;
  preparedNames.set(text, name);
  return name;
}

/** A COMMIT of a transaction in which an SQL error was swallowed is answered with ROLLBACK, without an error. */
export async function commit(client: DatabaseClient): Promise<void> {
  const { command } = await client.query("COMMIT");
  if (command !== "COMMIT") throw new CommitBecameRollbackError();
}

// Refused, not found, cut off; a login or a database that is not there; a server that starts, stops or is full.
const CONNECTION_CODES = new Set(
  "ECONNREFUSED ECONNRESET EPIPE ENOTFOUND ETIMEDOUT EHOSTUNREACH 28P01 3D000 53300 57P01 57P02 57P03".split(
    " ",
  ),
);
// pg gives these no code.
const CONNECTION_TEXTS =
  /^(?:Connection terminated|Client has encountered a connection error|timeout exceeded)/;

/** A server that cannot write its log says so and ends, so a lost connection may have a full disk as its cause. */
function fullOrSame(error: unknown, url: string): unknown {
  const full = error instanceof DatabaseFullError ? undefined : diskFullCause(error);
  return full ? new DatabaseFullError(url, full, error) : error;
}

function named(error: unknown, url: string): unknown {
  const { code, message } = error as { code?: string; message?: string };
  const unreachable = CONNECTION_CODES.has(code ?? "") || CONNECTION_TEXTS.test(message ?? "");
  return unreachable ? new DatabaseUnreachableError(url, error) : fullOrSame(error, url);
}

/** PostgreSQL's text cannot hold NUL, which what comes from a chain may have. */
export function storableText(text: string): string {
  return text.replaceAll("\0", "\\0");
}
