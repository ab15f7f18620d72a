// What the store does for itself, in small steps: what has ended long ago goes, and what a deleted webhook left ends.
import type { EventId } from "@fencepost/token";
import type { PruneOptions, PruneReport } from "../deliveryStore.ts";
import type { DisabledWebhook } from "../webhook.ts";
import type { DatabaseClient, Queryable } from "./database.ts";
import { type MessageRound, moveMessageRound } from "./messageRound.ts";
import { DELETED } from "./webhooks.ts";

export async function prune(client: DatabaseClient, options: PruneOptions): Promise<PruneReport> {
  // One process prunes at a time; the others have nothing to do.
  const { rows } = await client.query<{ what: string; after: bigint; kept: bigint | null }>(
    "SELECT what, after, kept FROM fencepost.prune_rounds ORDER BY what FOR UPDATE SKIP LOCKED",
  );
  const rounds = new Map(rows.map((row) => [row.what, row]));
  const [deliveries, messages] = [rounds.get("deliveries"), rounds.get("messages")];
  if (!deliveries || !messages) return { deliveries: 0, messages: 0, done: true };
  const gone = await pruneDeliveries(client, deliveries.after, options);
  if (!gone.done) return { deliveries: gone.count, messages: 0, done: false };
  // Deliveries begin anew with the messages: rounds of their own could end in turns for ever, and never both.
  const freed = await pruneMessages(client, messages, options);
  if (freed.done) await moveDeliveries(client, 0n);
  return { deliveries: gone.count, messages: freed.count, done: freed.done };
}

async function moveDeliveries(client: DatabaseClient, after: bigint | null): Promise<void> {
  await client.query("UPDATE fencepost.prune_rounds SET after = $1 WHERE what = 'deliveries'", [after]);
}

interface PruneStep {
  readonly count: number;
  readonly done: boolean;
}

/** The next deliveries by their ids. One that blocks a strict webhook stays, unless that was deleted. */
async function pruneDeliveries(
  client: DatabaseClient,
  after: bigint,
  { before, limit }: PruneOptions,
): Promise<PruneStep> {
  // The horizon of a webhook moves with the rows that fall behind it: what is missing is seen to be forgotten.
  const { rows } = await client.query<{ seen: bigint; young: bigint; last: bigint | null; gone: bigint }>(
    `WITH batch AS MATERIALIZED (
       SELECT id, created_at FROM fencepost.deliveries WHERE id > $1 ORDER BY id LIMIT $3
     ), ended AS MATERIALIZED (
       SELECT d.id FROM batch
       JOIN fencepost.deliveries d ON d.id = batch.id
       JOIN fencepost.webhooks w ON w.id = d.webhook_id
       WHERE d.state IN ('success', 'failed') AND d.finished_at < $2
           AND (d.strict_position IS NULL OR w.deleted_at IS NOT NULL)
         OR d.state = 'in_doubt' AND d.next_at IS NULL AND d.created_at < $2 AND w.deleted_at < $2
       ORDER BY d.id FOR UPDATE OF d SKIP LOCKED
     ), gone AS (
       DELETE FROM fencepost.deliveries d USING ended WHERE d.id = ended.id
       RETURNING d.id, d.webhook_id, d.created_at
     ), attempts AS (
       DELETE FROM fencepost.attempts a USING gone WHERE a.delivery_id = gone.id
     ), horizons AS (
       SELECT w.id, g.created_at
       FROM (SELECT webhook_id, max(created_at) AS created_at FROM gone GROUP BY webhook_id) g
       JOIN fencepost.webhooks w ON w.id = g.webhook_id
       ORDER BY w.id FOR NO KEY UPDATE OF w
     ), moved AS (
       UPDATE fencepost.webhooks w SET pruned_until = greatest(w.pruned_until, horizons.created_at)
       FROM horizons WHERE w.id = horizons.id
     )
     SELECT count(*) AS seen, count(*) FILTER (WHERE created_at >= $2) AS young, max(id) AS last,
            (SELECT count(*) FROM gone) AS gone
     FROM batch`,
    [after, before, limit],
  );
  const { seen = 0n, young = 0n, last = null, gone = 0n } = rows[0] ?? {};
  const done = Number(seen) < limit || young > 0n;
  if (!done) await moveDeliveries(client, last);
  return { count: Number(gone), done };
}

/** The next messages by their positions: bodies that nothing refers to, and the rows of those that have no token. */
async function pruneMessages(
  client: DatabaseClient,
  round: MessageRound,
  { before, limit }: PruneOptions,
): Promise<PruneStep> {
  const { rows } = await client.query<{
    seen: bigint;
    young: bigint;
    last: bigint | null;
    old: readonly EventId[];
  }>(
    `WITH batch AS MATERIALIZED (
       SELECT event_id, position, created_at FROM fencepost.messages WHERE position > $1 ORDER BY position LIMIT $3
     ), old AS MATERIALIZED (
       SELECT m.event_id FROM batch
       JOIN fencepost.messages m ON m.event_id = batch.event_id
       JOIN fencepost.message_bodies b ON b.event_id = batch.event_id
       WHERE batch.created_at < $2
       ORDER BY m.event_id FOR UPDATE OF m, b SKIP LOCKED
     )
     SELECT count(*) AS seen, count(*) FILTER (WHERE created_at >= $2) AS young, max(position) AS last,
            (SELECT coalesce(array_agg(event_id), '{}') FROM old) AS old
     FROM batch`,
    [round.after, before, limit],
  );
  const { seen = 0n, young = 0n, last = null, old = [] } = rows[0] ?? {};
  // A statement of its own: it sees the deliveries of those that held a message until they were locked here.
  const { rows: freed } = await client.query(
    `WITH free AS MATERIALIZED (
       SELECT m.event_id, m.token FROM fencepost.messages m
       WHERE m.event_id = ANY($1)
         AND NOT EXISTS (SELECT FROM fencepost.deliveries d WHERE d.event_id = m.event_id)
         AND NOT EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = m.event_id)
     ), bodies AS (
       DELETE FROM fencepost.message_bodies b USING free WHERE b.event_id = free.event_id AND free.token IS NOT NULL
     ), rows AS (
       DELETE FROM fencepost.messages m USING free WHERE m.event_id = free.event_id AND free.token IS NULL
     )
     SELECT FROM free`,
    [old],
  );
  const done = Number(seen) < limit || young > 0n;
  const { rows: left } = await client.query<{ kept: bigint | null }>(
    `SELECT min(m.position) AS kept FROM fencepost.messages m
     LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id
     WHERE m.position > $1 AND m.position <= $2 AND (b.event_id IS NOT NULL OR m.created_at >= $3)`,
    [round.after, last, before],
  );
  await moveMessageRound(client, round, { last, kept: left[0]?.kept ?? null, done }, before);
  return { count: freed.length, done };
}

export async function endDeleted(client: DatabaseClient, limit: number): Promise<number> {
  // An attempt that is under way is left to its worker, until its lease has ended.
  const { rows } = await client.query(
    `WITH mine AS MATERIALIZED (
       SELECT q.delivery_id
       FROM fencepost.webhooks w
       CROSS JOIN LATERAL (
         SELECT q.delivery_id FROM fencepost.delivery_queue q
         WHERE q.webhook_id = w.id AND NOT (q.attempted AND q.next_at > now())
         ORDER BY q.next_at LIMIT $1 FOR UPDATE SKIP LOCKED
       ) q
       WHERE w.deleted_at IS NOT NULL
       LIMIT $1
     ), gone AS (
       DELETE FROM fencepost.delivery_queue q USING mine WHERE q.delivery_id = mine.delivery_id
     )
     UPDATE fencepost.deliveries d
     SET state = 'failed', last_error = $2, next_at = NULL, finished_at = now(), strict_position = NULL,
         doubt_since = NULL
     FROM mine WHERE d.id = mine.delivery_id AND d.state NOT IN ('success', 'failed')
     RETURNING d.id`,
    [limit, DELETED],
  );
  return rows.length;
}

export async function listUntold(db: Queryable): Promise<readonly DisabledWebhook[]> {
  const { rows } = await db.query<DisabledWebhook>(
    `SELECT id, disabled_reason AS reason, disabled_at AS "disabledAt" FROM fencepost.webhooks
     WHERE NOT told AND deleted_at IS NULL ORDER BY id LIMIT 100`,
  );
  return rows;
}

export async function markTold(db: Queryable, { id, disabledAt }: DisabledWebhook): Promise<void> {
  // A Date has no microseconds.
  await db.query(
    `UPDATE fencepost.webhooks SET told = true
     WHERE id = $1 AND NOT told AND date_trunc('milliseconds', disabled_at) = $2`,
    [id, disabledAt],
  );
}
