import type { FencingToken } from "@fencepost/token";
import type { Message } from "../../message/payload.ts";
import {
  type DeliveryPolicy,
  decideOutcome,
  holdsClaim,
  type NextStep,
  RETRY_SCHEDULE_MS,
} from "../decideDelivery.ts";
import type {
  ClaimedDelivery,
  ClaimOptions,
  Delivery,
  DeliveryId,
  DeliveryStore,
  FanOutReport,
  FinishedAttempt,
  FinishReport,
  NewWebhook,
  OnUnknown,
  RecordedAttempt,
  Webhook,
  WebhookId,
} from "../deliveryStore.ts";
import type { Database, DatabaseClient, Queryable } from "./database.ts";
import { insertMessages, refuseMismatch } from "./messages.ts";

export interface PostgresStoreOptions {
  /** Delays between attempts, in milliseconds; the schedule of Standard Webhooks unless given. */
  readonly retryScheduleMs?: readonly number[];
}

/** Attempts whose signed timestamp ran further ahead of the clock than this wait, in seconds. */
const MAX_TIMESTAMP_LEAD_S = 60;
/** Webhooks with nothing to catch up on that one transaction passes over. */
const MAX_CATCH_UPS = 100;

const WEBHOOK_COLUMNS = `id, url, types, secrets, description, active, disabled_reason AS "disabledReason",
  on_unknown AS "onUnknown", deliver_from AS "deliverFrom", created_at AS "createdAt"`;

const DELIVERY_COLUMNS = `'dlv_' || d.id AS id, d.event_id AS "eventId", d.webhook_id AS "webhookId", d.state, d.attempts,
  d.last_status AS "lastStatus", d.last_error AS "lastError", d.next_at AS "nextAt", d.created_at AS "createdAt",
  d.finished_at AS "finishedAt"`;

/** The delivery store in PostgreSQL. `tx` of `dispatch` is a client of the caller's, inside its transaction. */
export function postgresStore(
  database: Database,
  { retryScheduleMs = RETRY_SCHEDULE_MS }: PostgresStoreOptions = {},
): DeliveryStore<Queryable> {
  return {
    addWebhook: (webhook) => addWebhook(database, webhook),
    async findWebhook(id) {
      const { rows } = await database.query<Webhook>(
        `SELECT ${WEBHOOK_COLUMNS} FROM fencepost.webhooks WHERE id = $1`,
        [id],
      );
      return rows[0];
    },
    async listWebhooks() {
      const { rows } = await database.query<Webhook>(
        `SELECT ${WEBHOOK_COLUMNS} FROM fencepost.webhooks ORDER BY created_at, id`,
      );
      return rows;
    },
    dispatch: (message, { only, tx }) =>
      tx ? dispatch(tx, message, only) : database.transaction((client) => dispatch(client, message, only)),
    fanOut: (limits) => fanOut(database, limits),
    catchUp: (limit) => database.transaction((client) => catchUp(client, limit)),
    claim: (options) => claim(database, options),
    recordAttempts: (fence, ids, leaseMs) => recordAttempts(database, fence, ids, leaseMs),
    finish: (fence, attempts) =>
      database.transaction((client) => finish(client, fence, attempts, retryScheduleMs)),
    release: (fence, ids) => release(database, fence, ids),
    findDelivery: (id) => findDelivery(database, id),
    redeliver: (id) => database.transaction((client) => redeliver(client, id)),
  };
}

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
function rowId(id: DeliveryId): string {
  return /^dlv_(\d{1,18})$/.exec(id)?.[1] ?? "-1";
}
