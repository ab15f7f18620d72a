// What a delivery is to its readers, and what a person may do about one.
import type { EventId } from "@fencepost/token";
import type { Attempt, Delivery, DeliveryFilter, DeliveryId, Page, Resolution } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import type { DatabaseClient, Queryable } from "./database.ts";

/** Deliveries of one message, and attempts of one delivery, that are listed at the most. */
const MAX_LISTED = 1_000;

/** Of delivery `d`. */
export const DELIVERY_COLUMNS = `'dlv_' || d.id AS id, d.event_id AS "eventId", d.webhook_id AS "webhookId", d.state, d.attempts,
  d.last_status AS "lastStatus", d.last_error AS "lastError", d.next_at AS "nextAt",
  (SELECT 'dlv_' || b.id FROM fencepost.deliveries b
   WHERE b.webhook_id = d.webhook_id AND b.strict_position < d.strict_position
   ORDER BY b.strict_position LIMIT 1) AS "blockedBy",
  d.created_at AS "createdAt", d.finished_at AS "finishedAt"`;

export async function findDelivery(db: Queryable, id: DeliveryId): Promise<Delivery | undefined> {
  const { rows } = await db.query<Delivery>(
    `SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d WHERE d.id = $1`,
    [rowId(id)],
  );
  return rows[0];
}

/** Of webhook $1: what waits for a person, and the one that blocks it, if it is strict. Few, each found by an index. */
const NEED_PERSON = `(
  SELECT id FROM fencepost.deliveries WHERE webhook_id = $1 AND doubt_since IS NOT NULL AND next_at IS NULL
  UNION ALL
  SELECT id FROM (
    SELECT id, state FROM fencepost.deliveries WHERE webhook_id = $1 AND strict_position IS NOT NULL
    ORDER BY strict_position LIMIT 1
  ) head WHERE state IN ('failed', 'in_doubt')
)`;

export async function listDeliveries(
  db: Queryable,
  id: WebhookId,
  { state, needsPerson = false }: DeliveryFilter,
  { after, limit }: Page,
): Promise<readonly Delivery[]> {
  const { rows } = await db.query<Delivery>(
    `SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d
     WHERE d.webhook_id = $1 AND ($2::bigint IS NULL OR d.id < $2) AND ($3::text IS NULL OR d.state = $3)
       ${state === "in_doubt" ? "AND d.doubt_since IS NOT NULL" : ""}
       ${needsPerson ? `AND d.id IN ${NEED_PERSON}` : ""}
     ORDER BY d.id DESC LIMIT $4`,
    [id, after === undefined ? null : rowId(after as DeliveryId), state ?? null, limit],
  );
  return rows;
}

export async function deliveriesOf(db: Queryable, eventId: EventId): Promise<readonly Delivery[]> {
  const { rows } = await db.query<Delivery>(
    `SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d
     WHERE d.event_id = $1 ORDER BY d.webhook_id LIMIT ${MAX_LISTED}`,
    [eventId],
  );
  return rows;
}

export async function listAttempts(db: Queryable, id: DeliveryId): Promise<readonly Attempt[]> {
  const { rows } = await db.query<Attempt>(
    `SELECT number, url, "timestamp", started_at AS "startedAt", finished_at AS "finishedAt", outcome, status, error,
            response, late_outcome AS "lateOutcome"
     FROM fencepost.attempts WHERE delivery_id = $1 ORDER BY number LIMIT ${MAX_LISTED}`,
    [rowId(id)],
  );
  return rows;
}

export async function redeliver(client: DatabaseClient, id: DeliveryId): Promise<Delivery | undefined> {
  await sendAgain(client, id, ["success", "failed", "in_doubt"]);
  return findDelivery(client, id);
}

export async function resolve(
  client: DatabaseClient,
  id: DeliveryId,
  resolution: Resolution,
): Promise<Delivery | undefined> {
  if (resolution === "resend") {
    await sendAgain(client, id, ["failed", "in_doubt"]);
    return findDelivery(client, id);
  }
  await lockQueueRow(client, id);
  await client.query(
    `WITH settled AS (
       UPDATE fencepost.deliveries
       SET state = $2, next_at = NULL, finished_at = now(), strict_position = NULL, doubt_since = NULL,
           last_error = CASE WHEN $2 = 'failed' THEN last_error END
       WHERE id = $1 AND state IN ('failed', 'in_doubt')
       RETURNING id
     )
     DELETE FROM fencepost.delivery_queue q USING settled WHERE q.delivery_id = settled.id`,
    [rowId(id), resolution === "delivered" ? "success" : "failed"],
  );
  return findDelivery(client, id);
}

/** Makes a delivery in one of these states pending, as if it had never been attempted but for its ids and bytes. */
async function sendAgain(
  client: DatabaseClient,
  id: DeliveryId,
  states: readonly Delivery["state"][],
): Promise<void> {
  await lockQueueRow(client, id);
  await client.query(
    `WITH again AS (
       UPDATE fencepost.deliveries d
       SET state = 'pending', tries = 0, asks = 0, next_at = now(), finished_at = NULL, doubt_since = NULL,
           strict_position = CASE WHEN w.ordering = 'strict' THEN m.position END
       FROM fencepost.webhooks w, fencepost.messages m
       WHERE d.id = $1 AND d.state = ANY($2) AND w.id = d.webhook_id AND w.deleted_at IS NULL AND m.event_id = d.event_id
       RETURNING d.id, d.webhook_id
     )
     INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM again
     ON CONFLICT (delivery_id) DO UPDATE
     SET next_at = excluded.next_at, fence = NULL, attempted = false, asking = false, capped = false`,
    [rowId(id), states],
  );
}

/** Before its delivery, as every outcome does it: two that wait for both cannot deadlock. Who asks loses the claim. */
async function lockQueueRow(client: DatabaseClient, id: DeliveryId): Promise<void> {
  await client.query("SELECT FROM fencepost.delivery_queue WHERE delivery_id = $1 FOR UPDATE", [rowId(id)]);
}

/** The number in a delivery id; no row has -1. */
export function rowId(id: DeliveryId): string {
  return /^dlv_(\d{1,18})$/.exec(id)?.[1] ?? "-1";
}
