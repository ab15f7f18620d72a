import type { Database, DatabaseClient } from "./database.ts";

/**
 * A transaction of a leader. A leader that is paused inside one (SIGSTOP, a long stall) is cut off by the
 * database before its lease ends, so that it cannot block its successor by the lock of the cursor row.
 */
export function stageTransaction<T>(
  database: Database,
  leaseMs: number,
  work: (client: DatabaseClient) => Promise<T>,
): Promise<T> {
  return database.transaction(async (client) => {
    await client.query(
      `SET LOCAL idle_in_transaction_session_timeout = ${Math.max(1, Math.floor(leaseMs / 2))}`,
    );
    return work(client);
  });
}
