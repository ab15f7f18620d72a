import type { ConformingStore, CreateStore, StoredAttempt } from "../../store/conformance/conformingStore.ts";
import type { DeliveryId } from "../../store/deliveryStore.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { insertMessages } from "../../store/postgres/messages.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";
import { emptyDeliveryTables } from "./deliveryTables.ts";
import { createTestDatabase } from "./testDatabase.ts";

export interface ConformingPostgres {
  readonly url: string;
  readonly database: Database;
  readonly create: CreateStore;
  close(): Promise<void>;
}

/** A database of its own for one test file, for the suites that every store must pass. */
export async function openConformingPostgres(): Promise<ConformingPostgres> {
  const { url, drop } = await createTestDatabase();
  const open = (): Database => openDatabase(url, { maxConnections: 5 });
  const database = open();
  /** As of three more processes. */
  const others = [open(), open(), open()] as const;
  await migrate(database);
  return {
    url,
    database,
    async create(options): Promise<ConformingStore> {
      await emptyDeliveryTables(database);
      let opened = 0;
      return {
        store: postgresStore(database, options),
        open: async () => postgresStore(others[opened++ % 3] ?? database, options),
        async emit(messages, origin = "emitted") {
          await database.transaction((client) => insertMessages(client, messages, origin, "orders"));
        },
        async makeDue(id) {
          // The wait has passed for the delivery too, or who gives its claim back would begin it anew.
          await database.query(
            `WITH due AS (UPDATE fencepost.delivery_queue SET next_at = now() WHERE delivery_id = $1)
             UPDATE fencepost.deliveries SET next_at = now() WHERE id = $1 AND next_at > now()`,
            [rowId(id)],
          );
        },
        async deliveries() {
          const { rows } = await database.query<Awaited<ReturnType<ConformingStore["deliveries"]>>[number]>(
            `SELECT 'dlv_' || id AS id, event_id AS "eventId", webhook_id AS "webhookId", state, attempts
             FROM fencepost.deliveries ORDER BY id`,
          );
          return rows;
        },
        async attempts(id) {
          const { rows } = await database.query<StoredAttempt>(
            `SELECT number, fence, "timestamp", outcome, status, late_outcome AS "lateOutcome"
             FROM fencepost.attempts WHERE delivery_id = $1 ORDER BY number`,
            [rowId(id)],
          );
          return rows;
        },
      };
    },
    async close() {
      for (const one of [database, ...others]) await one.close();
      await drop();
    },
  };
}

function rowId(id: DeliveryId): string {
  return id.slice("dlv_".length);
}
