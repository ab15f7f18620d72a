import { createReceiver, type SqliteDatabase, sqliteInbox, type WebhookMessage } from "@fencepost/receiver";

const { WEBHOOK_SECRET = "", SQLITE_PATH = "app.db" } = process.env;
export const inbox = sqliteInbox({ path: SQLITE_PATH });
export const receiver = createReceiver({ secrets: WEBHOOK_SECRET, inbox });

export function recordLock(message: WebhookMessage, tx: SqliteDatabase) {
  const { amount } = message.data as { amount: string };
  tx.prepare("INSERT INTO locks VALUES (?, ?)").run(message.fencingToken ?? null, amount);
}
