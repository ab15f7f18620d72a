import type { DeliveryCounts, DeliveryHealth, DeliveryState } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import type { Queryable } from "./database.ts";

export async function countDeliveries(db: Queryable): Promise<DeliveryCounts> {
  const { rows } = await db.query<{ state: DeliveryState; n: number }>(
    "SELECT state, count(*)::int AS n FROM fencepost.deliveries GROUP BY state",
  );
  const none = { pending: 0, sending: 0, success: 0, failed: 0, in_doubt: 0 };
  return { ...none, ...Object.fromEntries(rows.map(({ state, n }) => [state, n])) };
}

export async function countWaiting(
  db: Queryable,
  ids: readonly WebhookId[],
): Promise<ReadonlyMap<WebhookId, number>> {
  const { rows } = await db.query<{ id: WebhookId; n: number }>(
    `SELECT webhook_id AS id, count(*)::int AS n FROM fencepost.delivery_queue WHERE webhook_id = ANY($1)
     GROUP BY webhook_id`,
    [ids],
  );
  return new Map(rows.map(({ id, n }) => [id, n]));
}

export async function readHealth(db: Queryable): Promise<DeliveryHealth> {
  const { rows } = await db.query<DeliveryHealth>(
    `SELECT
       (SELECT coalesce(extract(epoch FROM greatest(now() - min(due.next_at), '0')), 0)::float8
        FROM fencepost.webhooks w
        CROSS JOIN LATERAL (
          SELECT q.next_at FROM fencepost.delivery_queue q WHERE q.webhook_id = w.id ORDER BY q.next_at LIMIT 1
        ) due WHERE w.active AND w.ordering <> 'strict') AS "dueLagSeconds",
       (SELECT count(*)::int FROM fencepost.deliveries WHERE doubt_since IS NOT NULL AND next_at IS NULL) AS "inDoubt",
       (SELECT count(*)::int FROM fencepost.webhooks WHERE NOT active AND deleted_at IS NULL) AS "disabledWebhooks"`,
  );
  return rows[0] ?? { dueLagSeconds: 0, inDoubt: 0, disabledWebhooks: 0 };
}
