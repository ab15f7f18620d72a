// The deliver stage's statements: claim, attempt, outcome, doubt. Each write after a claim names its fence.
import type { FencingToken } from "@fencepost/token";
import type {
  ClaimedDelivery,
  ClaimOptions,
  Delivery,
  DeliveryId,
  FinishedAttempt,
  FinishReport,
  RecordedAttempt,
} from "../deliveryStore.ts";
import type { DatabaseClient, Queryable } from "./database.ts";
import { rowId } from "./deliveryRows.ts";

/** Attempts whose signed timestamp ran further ahead of the clock than this wait, in seconds. */
const MAX_TIMESTAMP_LEAD_S = 60;

async function claim(
  db: Queryable,
  { limit, perOrigin, skipOrigins, leaseMs }: ClaimOptions,
): Promise<readonly ClaimedDelivery[]> {
  // Webhooks that have something due, in an order drawn anew each time, then their rows: what is not due, and
  // what waits for a webhook that is not active, is never looked at. ORDER BY and LIMIT in both look-ups keep
  // them on the index whatever the statistics say. now() and not clock_timestamp(): an index serves only what is
  // stable.
  const { rows } = await db.query<ClaimedDelivery>(
    `WITH lanes AS MATERIALIZED (
       SELECT w.id, w.origin, count(*) OVER (PARTITION BY w.origin) AS sharing,
              row_number() OVER (PARTITION BY w.origin ORDER BY random()) AS place
       FROM (SELECT id, substring(url FROM '^[^/]+//[^/]+') AS origin FROM fencepost.webhooks WHERE active) w
       CROSS JOIN LATERAL (
         SELECT FROM fencepost.delivery_queue q
         WHERE q.webhook_id = w.id AND q.next_at <= now() ORDER BY q.next_at LIMIT 1
       ) has_due
       WHERE w.origin <> ALL($3)
     ), due AS MATERIALIZED (
       SELECT q.delivery_id, q.attempted, lane.origin
       FROM (SELECT * FROM lanes WHERE place <= $2 ORDER BY random()) lane
       CROSS JOIN LATERAL (
         SELECT delivery_id, attempted FROM fencepost.delivery_queue q
         WHERE q.webhook_id = lane.id AND q.next_at <= now()
         ORDER BY q.next_at LIMIT greatest(1, $2 / lane.sharing) FOR UPDATE SKIP LOCKED
       ) q
       LIMIT $1
     ), drawn AS MATERIALIZED (
       SELECT nextval('fencepost.delivery_fence') AS fence WHERE EXISTS (SELECT FROM due)
     )
     UPDATE fencepost.delivery_queue q
     SET fence = drawn.fence, next_at = clock_timestamp() + $4 * interval '1 millisecond'
     FROM due, drawn WHERE q.delivery_id = due.delivery_id
     RETURNING 'dlv_' || q.delivery_id AS id, q.webhook_id AS "webhookId", due.origin, drawn.fence,
               due.attempted AS interrupted`,
    [limit, perOrigin, skipOrigins, leaseMs],
  );
  return rows;
}

async function recordAttempts(
  db: Queryable,
  fence: bigint,
  ids: readonly DeliveryId[],
  leaseMs: number,
): Promise<readonly RecordedAttempt[]> {
  const { rows } = await db.query<RecordedAttempt & { token: FencingToken | null }>(
    `WITH mine AS MATERIALIZED (
       SELECT q.delivery_id, w.url, w.secrets
       FROM fencepost.delivery_queue q
       JOIN fencepost.webhooks w ON w.id = q.webhook_id
       JOIN fencepost.deliveries d ON d.id = q.delivery_id
       WHERE q.delivery_id = ANY($1) AND q.fence = $2 AND NOT q.attempted AND w.active
         AND d.state = 'pending' AND d.last_timestamp < extract(epoch FROM clock_timestamp()) + $4
       ORDER BY q.delivery_id FOR UPDATE OF q
     ), marked AS (
       UPDATE fencepost.delivery_queue q
       SET attempted = true, next_at = clock_timestamp() + $3 * interval '1 millisecond'
       FROM mine WHERE q.delivery_id = mine.delivery_id
     ), counted AS (
       UPDATE fencepost.deliveries d
       SET state = 'sending', attempts = attempts + 1, tries = tries + 1,
           last_timestamp = greatest(last_timestamp + 1, floor(extract(epoch FROM clock_timestamp()))::bigint)
       FROM mine WHERE d.id = mine.delivery_id
       RETURNING d.id, d.event_id, d.attempts, d.last_timestamp, mine.url, mine.secrets
     ), recorded AS (
       INSERT INTO fencepost.attempts (delivery_id, number, fence, url, "timestamp")
       SELECT id, attempts, $2, url, last_timestamp FROM counted
       RETURNING delivery_id
     )
     SELECT 'dlv_' || c.id AS id, $2::bigint AS fence, c.event_id AS "eventId", m.token, c.attempts AS number, c.url,
            c.secrets, c.last_timestamp AS "timestamp", b.body
     FROM counted c
     JOIN recorded r ON r.delivery_id = c.id
     JOIN fencepost.messages m ON m.event_id = c.event_id
     JOIN fencepost.message_bodies b ON b.event_id = c.event_id`,
    [ids.map(rowId), fence, leaseMs, MAX_TIMESTAMP_LEAD_S],
  );
  return rows;
}

async function finish(
  client: DatabaseClient,
  fence: bigint,
  attempts: readonly FinishedAttempt[],
  retryScheduleMs: readonly number[],
): Promise<FinishReport> {
  // Both rows are locked, so that what is read is what a record that is still under way leaves behind.
  const { rows } = await client.query<{
    id: DeliveryId;
    fence: bigint | null; // of a claim with an attempt on record
    tries: number;
    onUnknown: OnUnknown;
  }>(
    `SELECT 'dlv_' || q.delivery_id AS id, CASE WHEN q.attempted THEN q.fence END AS fence, d.tries,
            w.on_unknown AS "onUnknown"
     FROM fencepost.delivery_queue q
     JOIN fencepost.deliveries d ON d.id = q.delivery_id
     JOIN fencepost.webhooks w ON w.id = q.webhook_id
     WHERE q.delivery_id = ANY($1) ORDER BY q.delivery_id FOR UPDATE OF q, d`,
    [attempts.map(({ id }) => rowId(id))],
  );
  const claims = new Map(rows.map((row) => [row.id, row]));
  const stale = attempts.filter(({ id }) => !holdsClaim(claims.get(id)?.fence, fence));
  const decided = attempts.flatMap(({ id, result }) => {
    const row = claims.get(id);
    if (!row || !holdsClaim(row.fence, fence)) return [];
    const policy: DeliveryPolicy = { onUnknown: row.onUnknown, retryScheduleMs };
    return [{ id, result, next: decideOutcome(result, row.tries, policy, Math.random()) }];
  });
  const recorded = await writeOutcomes(client, fence, decided);
  const staleIds = stale.map(({ id }) => id);
  if (stale.length > 0) {
    await noteLateOutcomes(client, fence, stale);
    await release(client, fence, staleIds);
  }
  return { recorded, stale: staleIds };
}

type DecidedAttempt = FinishedAttempt & { readonly next: NextStep };

async function writeOutcomes(
  client: DatabaseClient,
  fence: bigint,
  decided: readonly DecidedAttempt[],
): Promise<FinishReport["recorded"]> {
  if (decided.length === 0) return [];
  const { rows } = await client.query<{ id: DeliveryId; state: Delivery["state"] }>(
    `WITH input AS MATERIALIZED (
       SELECT i.*, CASE WHEN i.state = 'pending' THEN clock_timestamp() + i.delay * interval '1 millisecond' END AS next_at
       FROM unnest($1::bigint[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::float8[])
         AS i(id, outcome, status, error, response, state, delay)
     ), mine AS MATERIALIZED (
       SELECT input.* FROM input JOIN fencepost.delivery_queue q ON q.delivery_id = input.id AND q.fence = $2
     ), ended AS (
       UPDATE fencepost.deliveries d
       SET state = mine.state, last_status = mine.status, last_error = mine.error, next_at = mine.next_at,
           finished_at = CASE WHEN mine.state = 'pending' THEN NULL ELSE now() END
       FROM mine WHERE d.id = mine.id
       RETURNING d.id, d.attempts, d.state
     ), noted AS (
       UPDATE fencepost.attempts a
       SET outcome = mine.outcome, status = mine.status, error = mine.error, response = mine.response,
           finished_at = clock_timestamp()
       FROM mine JOIN ended ON ended.id = mine.id
       WHERE a.delivery_id = mine.id AND a.number = ended.attempts
     ), again AS (
       UPDATE fencepost.delivery_queue q SET fence = NULL, attempted = false, next_at = mine.next_at
       FROM mine WHERE q.delivery_id = mine.id AND mine.state = 'pending'
     ), gone AS (
       DELETE FROM fencepost.delivery_queue q USING mine WHERE q.delivery_id = mine.id AND mine.state <> 'pending'
     )
     SELECT 'dlv_' || id AS id, state FROM ended`,
    [
      decided.map(({ id }) => rowId(id)),
      fence,
      decided.map(({ result }) => result.outcome),
      decided.map(({ result }) => result.status),
      decided.map(({ result }) => result.error),
      decided.map(({ result }) => result.response),
      decided.map(({ next }) => next.state),
      decided.map(({ next }) => (next.state === "pending" ? next.delayMs : null)),
    ],
  );
  const gone = decided.filter(({ next }) => next.state === "failed" && next.disableWebhook);
  if (gone.length > 0) {
    await client.query(
      `UPDATE fencepost.webhooks SET active = false, disabled_reason = 'The endpoint answered 410 Gone.'
       WHERE active AND id IN (SELECT webhook_id FROM fencepost.deliveries WHERE id = ANY($1))`,
      [gone.map(({ id }) => rowId(id))],
    );
  }
  return rows;
}

/** A worker that lost its claim changes no state; what it saw, if it is news, is kept beside its own attempt. */
async function noteLateOutcomes(
  client: DatabaseClient,
  fence: bigint,
  stale: readonly FinishedAttempt[],
): Promise<void> {
  await client.query(
    `UPDATE fencepost.attempts a SET late_outcome = concat_ws(' ', i.outcome, i.status)
     FROM unnest($2::bigint[], $3::text[], $4::int[]) AS i(id, outcome, status)
     WHERE a.delivery_id = i.id AND a.fence = $1 AND a.late_outcome IS NULL
       AND (a.outcome, a.status) IS DISTINCT FROM (i.outcome, i.status)`,
    [
      fence,
      stale.map(({ id }) => rowId(id)),
      stale.map(({ result }) => result.outcome),
      stale.map(({ result }) => result.status),
    ],
  );
}

async function release(db: Queryable, fence: bigint, ids: readonly DeliveryId[]): Promise<void> {
  // A row whose delivery has ended was offered by mistake: it goes, or it would be claimed for ever.
  await db.query(
    `WITH mine AS MATERIALIZED (
       SELECT q.delivery_id, d.state, d.last_timestamp
       FROM fencepost.delivery_queue q JOIN fencepost.deliveries d ON d.id = q.delivery_id
       WHERE q.delivery_id = ANY($1) AND q.fence = $2 AND NOT q.attempted
       ORDER BY q.delivery_id FOR UPDATE OF q, d
     ), gone AS (
       DELETE FROM fencepost.delivery_queue q USING mine
       WHERE q.delivery_id = mine.delivery_id AND mine.state <> 'pending'
     )
     UPDATE fencepost.delivery_queue q
     SET fence = NULL, next_at = greatest(now(), to_timestamp(mine.last_timestamp - $3))
     FROM mine WHERE q.delivery_id = mine.delivery_id AND mine.state = 'pending'`,
    [ids.map(rowId), fence, MAX_TIMESTAMP_LEAD_S],
  );
}
