import { afterAll, beforeAll, describe } from "vitest";
import { emptyDeliveryTables } from "../../__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import type { DeliveryId } from "../deliveryStore.ts";
import { type Database, openDatabase } from "../postgres/database.ts";
import { insertMessages } from "../postgres/messages.ts";
import { migrate } from "../postgres/migrate.ts";
import { postgresStore } from "../postgres/postgresStore.ts";
import { claimsConformance } from "./claims.conformance.ts";
import type { ConformingStore, CreateStore, StoredAttempt } from "./conformingStore.ts";

let testDatabase: TestDatabase;
/** As of four processes. */
let databases: readonly Database[] = [];
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  databases = [1, 2, 3, 4].map(() => openDatabase(testDatabase.url, { maxConnections: 5 }));
  await migrate(databases[0]!);
});
afterAll(async () => {
  for (const database of databases) await database.close();
  await testDatabase.drop();
});

const createStore: CreateStore = async (options): Promise<ConformingStore> => {
  const [database, ...others] = databases as [Database, ...Database[]];
  await emptyDeliveryTables(database);
  let opened = 0;
  return {
    store: postgresStore(database, options),
    open: async () => postgresStore(others[opened++ % others.length]!, options),
    async emit(messages, origin = "emitted") {
      await database.transaction((client) => insertMessages(client, messages, origin, "orders"));
    },
    async makeDue(id) {
      await database.query("UPDATE fencepost.delivery_queue SET next_at = now() WHERE delivery_id = $1", [
        rowId(id),
      ]);
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
};

describe("claims", () => claimsConformance(createStore));

function rowId(id: DeliveryId): string {
  return id.slice("dlv_".length);
}
