// The life of a webhook.
import type { NewWebhook, Webhook, WebhookId } from "../webhook.ts";
import type { Database, Queryable } from "./database.ts";

const WEBHOOK_COLUMNS = `id, url, types, secrets, description, active, disabled_reason AS "disabledReason",
  on_unknown AS "onUnknown", deliver_from AS "deliverFrom", created_at AS "createdAt"`;

async function addWebhook(database: Database, webhook: NewWebhook): Promise<Webhook> {
  return database.transaction(async (client) => {
    const { rows } = await client.query<Webhook>(
      `INSERT INTO fencepost.webhooks (id, url, types, secrets, description, on_unknown)
       VALUES ($1, $2, $3, $4, $5, $6) RETURNING ${WEBHOOK_COLUMNS}`,
      [webhook.id, webhook.url, webhook.types, webhook.secrets, webhook.description, webhook.onUnknown],
    );
    // A fan-out that runs now cannot see this webhook: it looks back once it is committed.
    await client.query(
      "INSERT INTO fencepost.catch_ups (webhook_id, after_time) SELECT id, deliver_from FROM fencepost.webhooks WHERE id = $1",
      [webhook.id],
    );
    const row = rows[0];
    if (!row) throw new Error("The database returned no row for the new webhook.");
    return row;
  });
}
