import { createReceiver, ensureInbox, postgresInbox, type WebhookMessage } from "@fencepost/receiver";
import pg from "pg";

const { DATABASE_URL, WEBHOOK_SECRET = "" } = process.env;
export const pool = new pg.Pool({ connectionString: DATABASE_URL });
await ensureInbox(pool); // or put inboxMigration() into your migrations

export const receiver = createReceiver({ secrets: WEBHOOK_SECRET, inbox: postgresInbox({ pool }) });

export async function recordLock(message: WebhookMessage, tx: pg.PoolClient) {
  if (message.type !== "pool.assets_locked") return;
  const { amount } = message.data as { amount: string };
  await tx.query("INSERT INTO locks (token, amount) VALUES ($1, $2)", [message.fencingToken, amount]);
}
