/** What this package needs of a PostgreSQL client; `Client` and `PoolClient` of `pg` have it. */
export interface SqlClient {
  query(text: string, values?: unknown[]): Promise<{ readonly rows: readonly unknown[] }>;
}

/** A client lent by a pool; the `PoolClient` of `pg` is one. */
export interface SqlPoolClient extends SqlClient {
  query(
    text: string,
    values?: unknown[],
  ): Promise<{
    readonly rows: readonly unknown[];
    readonly rowCount: number | null;
    readonly command: string;
  }>;
  release(destroy?: boolean): void;
  on(event: "error", listener: (error: Error) => void): unknown;
  removeListener(event: "error", listener: (error: Error) => void): unknown;
}

/** What this package needs of a pool; the `Pool` of `pg` has it. The second form of `connect` is never called. */
export interface SqlPool<Client extends SqlPoolClient> {
  readonly connect: { (): Promise<Client>; (callback: never): unknown };
}

/** Where `pg`, Drizzle, and Prisma with each of its engines have the SQLSTATE of an error. */
const SQLSTATE_PATHS = ["meta.driverAdapterError.cause.originalCode", "meta.code", "cause.code", "code"];

/** The SQLSTATE of an error of PostgreSQL. */
export function sqlState(error: unknown): unknown {
  for (const path of SQLSTATE_PATHS) {
    const found = path.split(".").reduce((at: unknown, key) => Object(at)[key], error);
    if (found !== undefined) return found;
  }
  return undefined;
}

/**
 * Runs `work` between `begin` and COMMIT on a client of the pool, or rolls back. `rolledBack` makes the error for a
 * COMMIT that PostgreSQL turned into a ROLLBACK.
 */
export async function inTransaction<Client extends SqlPoolClient, R>(
  pool: SqlPool<Client>,
  begin: string,
  work: (client: Client) => Promise<R>,
  rolledBack: () => Error,
): Promise<R> {
  const client = await pool.connect();
  // Without a listener a connection that breaks between two queries ends the process; with one, the next
  // query fails.
  client.on("error", ignore);
  let broken = false;
  try {
    await client.query(begin);
    const result = await work(client);
    const { command } = await client.query("COMMIT");
    if (command !== "COMMIT") throw rolledBack();
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
}

function ignore(): void {}
