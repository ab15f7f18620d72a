import { emittedMessage } from "../../store/conformance/conformingStore.ts";
import type { Database } from "../../store/postgres/database.ts";
import { insertMessages } from "../../store/postgres/messages.ts";

/** Stores messages of one type, of this very moment, as a projection does. */
export async function emitMessages(database: Database, type: string, count: number): Promise<void> {
  const occurredAt = new Date().toISOString();
  const messages = Array.from({ length: count }, (_, n) => emittedMessage(n, { type, occurredAt }));
  await database.transaction((client) => insertMessages(client, messages, "emitted", "test"));
}
