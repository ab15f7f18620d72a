import type { Queryable } from "../../store/postgres/database.ts";

/** Takes everything out of the tables from the messages on, for the next test of a file. */
export async function emptyDeliveryTables(db: Queryable): Promise<void> {
  const tables = "delivery_queue attempts deliveries catch_ups webhook_pace webhooks outbox messages".split(
    " ",
  );
  for (const table of tables) await db.query(`DELETE FROM fencepost.${table}`);
}
