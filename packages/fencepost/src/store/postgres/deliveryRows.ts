// What a delivery is to its readers, and what a person may do about one.
import type { Delivery, DeliveryId } from "../deliveryStore.ts";
import type { DatabaseClient, Queryable } from "./database.ts";

export const DELIVERY_COLUMNS = `'dlv_' || d.id AS id, d.event_id AS "eventId", d.webhook_id AS "webhookId", d.state, d.attempts,
  d.last_status AS "lastStatus", d.last_error AS "lastError", d.next_at AS "nextAt", d.created_at AS "createdAt",
  d.finished_at AS "finishedAt"`;

async function findDelivery(db: Queryable, id: DeliveryId): Promise<Delivery | undefined> {
  const { rows } = await db.query<Delivery>(
    `SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d WHERE d.id = $1`,
    [rowId(id)],
  );
  return rows[0];
}

async function redeliver(client: DatabaseClient, id: DeliveryId): Promise<Delivery | undefined> {
  await client.query(
    `WITH again AS (
       UPDATE fencepost.deliveries SET state = 'pending', tries = 0, next_at = now(), finished_at = NULL
       WHERE id = $1 AND state IN ('success', 'failed', 'in_doubt')
       RETURNING id, webhook_id
     )
     INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM again
     ON CONFLICT (delivery_id) DO NOTHING`,
    [rowId(id)],
  );
  return findDelivery(client, id);
}

/** The number in a delivery id; no row has -1. */
export function rowId(id: DeliveryId): string {
  return /^dlv_(\d{1,18})$/.exec(id)?.[1] ?? "-1";
}
