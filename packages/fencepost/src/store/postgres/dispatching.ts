// The dispatch stage's statements: which webhooks get a message.
import type { Message } from "../../message/payload.ts";
import type { Delivery, DispatchReport, FanOutReport, ReplayPage, ReplayReport } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import type { Database, DatabaseClient, Queryable } from "./database.ts";
import { DELIVERY_COLUMNS } from "./deliveryRows.ts";
import { insertMessages, refuseMismatch } from "./messages.ts";

/** Webhooks with nothing to catch up on that one transaction passes over. */
const MAX_CATCH_UPS = 100;

async function dispatch(
  db: Queryable,
  message: Message,
  only: WebhookId | undefined,
): Promise<readonly Delivery[]> {
  const { mismatched } = await insertMessages(db, [message], only ? "test" : "dispatched", null);
  refuseMismatch(mismatched);
  await db.query(
    `WITH new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at)
       SELECT $1, w.id, now() FROM fencepost.webhooks w
       WHERE CASE WHEN $3::text IS NULL THEN w.active AND w.types && ARRAY['*', $2] ELSE w.id = $3 END
       ORDER BY w.id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, webhook_id
     )
     INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM new`,
    [message.eventId, message.type, only ?? null],
  );
  // A statement of its own: the one above cannot see the pairs that another caller made first.
  const { rows } = await db.query<Delivery>(
    `SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d WHERE d.event_id = $1 ORDER BY d.webhook_id`,
    [message.eventId],
  );
  return rows;
}

async function fanOut(
  db: Queryable,
  { messages, webhooks }: { readonly messages: number; readonly webhooks: number },
): Promise<FanOutReport> {
  // Pairs are made in the order of their key here and in catchUp: two that make the same ones cannot deadlock.
  const { rows } = await db.query<{ messages: bigint; deliveries: bigint }>(
    `WITH offered AS MATERIALIZED (
       SELECT id, event_id, after_webhook FROM fencepost.outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
     ), pairs AS MATERIALIZED (
       SELECT o.id AS outbox_id, o.event_id, w.id AS webhook_id
       FROM offered o
       JOIN fencepost.messages m ON m.event_id = o.event_id
       CROSS JOIN LATERAL (
         SELECT w.id FROM fencepost.webhooks w
         WHERE w.id > o.after_webhook AND w.active AND w.deliver_from <= m.occurred_at AND w.types && ARRAY['*', m.type]
         ORDER BY w.id LIMIT $2
       ) w
     ), new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at)
       SELECT event_id, webhook_id, now() FROM pairs ORDER BY event_id, webhook_id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, event_id, webhook_id
     ), queued AS (
       INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
       SELECT new.id, new.webhook_id, now() FROM new JOIN pairs USING (event_id, webhook_id) ORDER BY pairs.outbox_id
     ), unfinished AS (
       SELECT outbox_id, max(webhook_id) AS after_webhook FROM pairs GROUP BY outbox_id HAVING count(*) = $2
     ), moved AS (
       UPDATE fencepost.outbox o SET after_webhook = u.after_webhook FROM unfinished u WHERE o.id = u.outbox_id
     ), done AS (
       DELETE FROM fencepost.outbox o USING offered
       WHERE o.id = offered.id AND NOT EXISTS (SELECT FROM unfinished u WHERE u.outbox_id = o.id)
     )
     SELECT (SELECT count(*) FROM offered) AS messages, (SELECT count(*) FROM new) AS deliveries`,
    [messages, webhooks],
  );
  return { messages: Number(rows[0]?.messages ?? 0n), deliveries: Number(rows[0]?.deliveries ?? 0n) };
}

/** One batch of one webhook, of the first that has something to catch up on. */
async function catchUp(client: DatabaseClient, limit: number): Promise<FanOutReport> {
  for (let webhook = 0; webhook < MAX_CATCH_UPS; webhook++) {
    const report = await catchUpNext(client, limit);
    if (!report) break;
    if (report.messages > 0) return report;
  }
  return { messages: 0, deliveries: 0 };
}

async function catchUpNext(client: DatabaseClient, limit: number): Promise<FanOutReport | undefined> {
  const { rows: waiting } = await client.query<{
    webhook_id: string;
    after_time: string;
    after_event_id: string;
  }>(
    `SELECT webhook_id, after_time::text, after_event_id FROM fencepost.catch_ups
     ORDER BY webhook_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
  );
  const next = waiting[0];
  if (!next) return undefined;
  const { rows } = await client.query<{
    messages: bigint;
    deliveries: bigint;
    last: string | null;
    last_id: string | null;
  }>(
    `WITH batch AS MATERIALIZED (
       SELECT event_id, type, state, occurred_at FROM fencepost.messages
       WHERE (occurred_at, event_id) > ($2::timestamptz, $3) ORDER BY occurred_at, event_id LIMIT $4
     ), new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at)
       SELECT b.event_id, w.id, now() FROM batch b JOIN fencepost.webhooks w ON w.id = $1
       WHERE b.state = 'emitted' AND w.active AND w.types && ARRAY['*', b.type]
       ORDER BY b.event_id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, webhook_id
     ), queued AS (
       INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM new
     )
     SELECT (SELECT count(*) FROM batch) AS messages, (SELECT count(*) FROM new) AS deliveries, l.occurred_at::text AS last, l.event_id AS last_id
     FROM (SELECT 1) one LEFT JOIN (SELECT occurred_at, event_id FROM batch ORDER BY occurred_at DESC, event_id DESC LIMIT 1) l ON true`,
    [next.webhook_id, next.after_time, next.after_event_id, limit],
  );
  const { messages = 0n, deliveries = 0n, last = null, last_id = null } = rows[0] ?? {};
  if (Number(messages) < limit) {
    await client.query("DELETE FROM fencepost.catch_ups WHERE webhook_id = $1", [next.webhook_id]);
  } else {
    await client.query(
      "UPDATE fencepost.catch_ups SET after_time = $2::timestamptz, after_event_id = $3 WHERE webhook_id = $1",
      [next.webhook_id, last, last_id],
    );
  }
  return { messages: Number(messages), deliveries: Number(deliveries) };
}
