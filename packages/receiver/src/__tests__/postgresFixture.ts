import pg from "pg";
import { createTestDatabase } from "../../../fencepost/src/__tests__/support/testDatabase.ts";
import { waitUntil } from "../../../fencepost/src/__tests__/support/waitUntil.ts";

export interface PostgresFixture {
  readonly url: string;
  readonly pool: pg.Pool;
  /** A name for a table that no other test of the file has. */
  newTable(): string;
  /** Resolves when `count` connections of the database wait for a lock. */
  untilWaiting(count: number): Promise<void>;
  close(): Promise<void>;
}

/** A database of one test file's own, with a pool. */
export async function postgresFixture(): Promise<PostgresFixture> {
  const database = await createTestDatabase();
  const pool = new pg.Pool({ connectionString: database.url, max: 16 });
  pool.on("error", () => {}); // a test cuts connections on purpose
  let tables = 0;
  return {
    url: database.url,
    pool,
    newTable: () => `inbox_${++tables}`,
    untilWaiting: (count) =>
      waitUntil(async () => (await waiting(pool)) === count, {
        what: `${count} connections wait for a lock`,
      }),
    close: async () => {
      await pool.end();
      await database.drop();
    },
  };
}

async function waiting(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ count: number }>(
    "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
  );
  return rows[0]?.count ?? 0;
}
