// The deliver stage's statements: claim, attempt, outcome, doubt. Each write after a claim names its fence. Those that
// wait for locks take the rows of the queue first, in the order of their ids, then webhooks in the order of theirs. Under
// a storm of changes to one webhook PostgreSQL has still been seen to end one of them as a deadlock: it is tried again.
import type {
  ClaimedDelivery,
  ClaimOptions,
  DeliveryId,
  FinishedAttempt,
  FinishReport,
  RecordedAttempt,
  Review,
  SettledDoubt,
} from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import type { Database, Queryable } from "./database.ts";
import { rowId } from "./deliveryRows.ts";

/** Attempts whose signed timestamp ran further ahead of the clock than this wait, in seconds. */
const MAX_TIMESTAMP_LEAD_S = 60;

/**
 * Webhooks that have something due, as many as a claim can use, going round from where the claim before this one
 * ended; then their rows. What is not due, and what waits for a webhook that is not active, is never looked at. ORDER
 * BY and LIMIT in the look-ups keep them on the index whatever the statistics say. now() and not clock_timestamp(): an
 * index serves only what is stable.
 *
 * Of a strict webhook only its head is looked at, the delivery with the lowest position that has not succeeded; and not
 * while one that was behind it when it was redelivered is under way.
 *
 * What a limit allows is counted in the snapshot of the statement. `free_at` moves with each claim, so where the
 * locked row has another one, somebody has claimed since, and the webhook is left for the next time.
 */
function claimStatement({ only }: { readonly only: boolean }): string {
  const free = only ? "(q.fence IS NULL OR q.next_at <= now())" : "q.next_at <= now()";
  const ready = (part: number, range: string): string => `(
      SELECT ${part} AS part, w.id, w.origin, w.rate, w.capped, pace.free_at, pace.allowed, head.id AS head,
             head.next_at AS head_at
      FROM (
        SELECT id, substring(url FROM '^[^/]+//[^/]+') AS origin, ordering = 'strict' AS strict, max_in_flight,
               rate_per_second AS rate, max_in_flight IS NOT NULL OR ordering = 'strict' AS capped
        FROM fencepost.webhooks WHERE active AND deleted_at IS NULL AND ${range} ORDER BY id
      ) w
      CROSS JOIN LATERAL (
        SELECT FROM fencepost.delivery_queue q
        WHERE q.webhook_id = w.id AND ${only ? "q.delivery_id = $5" : `${free} ORDER BY q.next_at LIMIT 1`}
      ) has_due
      LEFT JOIN LATERAL (
        SELECT d.id, (SELECT q.next_at FROM fencepost.delivery_queue q WHERE q.delivery_id = d.id AND ${free}) AS next_at,
               d.strict_position
        FROM fencepost.deliveries d
        WHERE w.strict AND d.webhook_id = w.id AND d.strict_position IS NOT NULL
        ORDER BY d.strict_position LIMIT 1
      ) head ON true
      LEFT JOIN LATERAL (
        SELECT p.free_at,
               least(
                 floor((greatest(1, 1 / w.rate) - extract(epoch FROM greatest(p.free_at, now()) - now())) * w.rate + 1e-6),
                 CASE WHEN w.max_in_flight IS NOT NULL THEN w.max_in_flight - (
                   SELECT count(*) FROM fencepost.delivery_queue q
                   WHERE q.webhook_id = w.id AND q.capped AND q.next_at > now()
                 ) END,
                 CASE WHEN w.strict THEN 1 END
               ) AS allowed
        FROM fencepost.webhook_pace p
        WHERE p.webhook_id = w.id AND (w.rate IS NOT NULL OR w.max_in_flight IS NOT NULL OR w.strict)
        OFFSET 0
      ) pace ON true
      WHERE w.origin <> ALL($3) AND coalesce(pace.allowed, 1) >= 1
        AND (NOT w.strict OR head.next_at IS NOT NULL ${only ? "AND head.id = $5" : ""}
             AND NOT EXISTS (SELECT FROM fencepost.catch_ups c WHERE c.webhook_id = w.id)
             AND NOT EXISTS (SELECT FROM fencepost.outbox o WHERE o.position < head.strict_position)
             AND NOT EXISTS (
               SELECT FROM fencepost.delivery_queue q WHERE q.webhook_id = w.id AND q.capped AND q.next_at > now()
             ))
      ORDER BY w.id LIMIT ${LANES_PER_CLAIM} * $1
    )`;
  return `
    WITH ready AS MATERIALIZED (
      SELECT * FROM (${only ? ready(1, "true") : `${ready(1, "id > $5")} UNION ALL ${ready(2, "id <= $5")}`}) r
      LIMIT ${LANES_PER_CLAIM} * $1
    ), lanes AS MATERIALIZED (
      SELECT ready.*, count(*) OVER (PARTITION BY origin) AS sharing,
             row_number() OVER (PARTITION BY origin ORDER BY part, id) AS place
      FROM ready
    ), paced AS MATERIALIZED (
      SELECT p.webhook_id, p.free_at FROM lanes JOIN fencepost.webhook_pace p ON p.webhook_id = lanes.id
      WHERE lanes.place <= $2 AND lanes.allowed IS NOT NULL
      FOR UPDATE OF p SKIP LOCKED
    ), due AS MATERIALIZED (
      SELECT q.delivery_id, q.attempted, q.asking, lane.id AS webhook_id, lane.origin, lane.capped, lane.rate
      FROM (
        SELECT lanes.* FROM lanes LEFT JOIN paced ON paced.webhook_id = lanes.id
        WHERE lanes.place <= $2 AND (lanes.allowed IS NULL OR paced.free_at = lanes.free_at)
        ORDER BY lanes.part, lanes.id
      ) lane
      CROSS JOIN LATERAL (
        SELECT q.delivery_id, q.attempted, q.asking FROM fencepost.delivery_queue q
        WHERE q.webhook_id = lane.id AND ${free} AND ${
          only
            ? "q.delivery_id = $5"
            : `q.next_at >= coalesce(lane.head_at, '-infinity') AND q.next_at <= coalesce(lane.head_at, now())
          AND (lane.head IS NULL OR q.delivery_id = lane.head)`
        }
        ORDER BY q.next_at LIMIT least(greatest(1, $2 / lane.sharing), lane.allowed::bigint) FOR UPDATE SKIP LOCKED
      ) q
      LIMIT $1
    ), drawn AS MATERIALIZED (
      SELECT nextval('fencepost.delivery_fence') AS fence WHERE EXISTS (SELECT FROM due)
    ), moved AS (
      UPDATE fencepost.webhook_pace p
      SET free_at = coalesce(greatest(p.free_at, now()) + taken.count * interval '1 second' / taken.rate,
                             greatest(p.free_at + interval '1 microsecond', clock_timestamp()))
      FROM (SELECT webhook_id, rate, count(*) FROM due GROUP BY webhook_id, rate) taken
      JOIN paced ON paced.webhook_id = taken.webhook_id
      WHERE p.webhook_id = taken.webhook_id
    )
    UPDATE fencepost.delivery_queue q
    SET fence = drawn.fence, capped = due.capped, next_at = clock_timestamp() + $4 * interval '1 millisecond'
    FROM due, drawn WHERE q.delivery_id = due.delivery_id
    RETURNING 'dlv_' || q.delivery_id AS id, q.webhook_id AS "webhookId", due.origin, drawn.fence,
              due.attempted AS interrupted, due.asking`;
}

/** Webhooks looked at for each delivery that a claim may take: some share an origin, some are locked by another. */
const LANES_PER_CLAIM = 2;
const CLAIM_DUE = claimStatement({ only: false });
const CLAIM_ONE = claimStatement({ only: true });

/** `after`: the round of the webhooks begins behind this one. */
export async function claim(
  database: Database,
  { limit, perOrigin, skipOrigins, leaseMs, only }: ClaimOptions,
  after: string,
): Promise<readonly ClaimedDelivery[]> {
  const { rows } =
    only === undefined
      ? await database.hot<ClaimedDelivery>(CLAIM_DUE, [limit, perOrigin, skipOrigins, leaseMs, after])
      : await database.query<ClaimedDelivery>(CLAIM_ONE, [1, 1, [], leaseMs, rowId(only)]);
  return rows;
}

/** Where webhook `w` is sent to, and how: `policy.retryScheduleMs` is null where it has no schedule of its own. */
const TARGET = `jsonb_build_object(
  'url', w.url, 'headers', w.headers,
  'secrets', (
    SELECT coalesce(jsonb_agg(s -> 'secret' ORDER BY n), '[]')
    FROM jsonb_array_elements(w.secrets) WITH ORDINALITY AS t(s, n)
    WHERE coalesce((s ->> 'expires_at')::timestamptz > clock_timestamp(), true)
  ),
  'policy', jsonb_build_object('onUnknown', w.on_unknown, 'retryOn', w.retry_on, 'jitter', w.jitter,
                               'retryScheduleMs', w.retry_schedule_ms)
)`;

type Target = Pick<Review, "url" | "headers" | "secrets" | "policy">;
type TargetRow = Omit<Target, "policy"> & {
  readonly policy: Omit<Target["policy"], "retryScheduleMs"> & { readonly retryScheduleMs: number[] | null };
};

function targetOf({ policy, ...target }: TargetRow, retryScheduleMs: readonly number[]): Target {
  return { ...target, policy: { ...policy, retryScheduleMs: policy.retryScheduleMs ?? retryScheduleMs } };
}

/**
 * A lease that was taken just now is as good as a new one: it stays, and with it the row's place in the index of what is
 * due. It may be shorter by this share, and by this much in milliseconds: less than the margin that a lease has.
 */
const SHORTER_LEASE = { share: 0.01, ms: 1_000 } as const;

// Each later part has the rows of the one before it, not those of a join of two: what comes from a WITH is counted as
// one row when a statement is planned, and two of them are joined row by row.
const RECORD = `WITH mine AS MATERIALIZED (
    SELECT q.delivery_id, w.url, floor(extract(epoch FROM clock_timestamp()))::bigint AS second
    FROM fencepost.delivery_queue q JOIN fencepost.webhooks w ON w.id = q.webhook_id
    WHERE q.delivery_id = ANY($1) AND q.fence = $2 AND NOT q.attempted AND NOT q.asking
      AND w.active AND w.deleted_at IS NULL
    ORDER BY q.delivery_id FOR UPDATE OF q
  ), counted AS (
    UPDATE fencepost.deliveries d
    SET state = 'sending', attempts = attempts + 1, tries = tries + 1, asks = 0,
        first_at = coalesce(first_at, to_timestamp(mine.second)),
        last_timestamp = greatest(last_timestamp + 1, mine.second)
    FROM mine WHERE d.id = mine.delivery_id AND d.state = 'pending' AND d.last_timestamp <= mine.second + $4
    RETURNING d.id, d.webhook_id, d.event_id, d.attempts, d.tries, d.last_timestamp, mine.url
  ), marked AS (
    UPDATE fencepost.delivery_queue q
    SET attempted = true,
        next_at = CASE WHEN q.next_at >= clock_timestamp() + $5 * interval '1 millisecond' THEN q.next_at
                       ELSE clock_timestamp() + $3 * interval '1 millisecond' END
    FROM counted WHERE q.delivery_id = counted.id
  ), recorded AS (
    INSERT INTO fencepost.attempts (delivery_id, number, fence, url, "timestamp")
    SELECT id, attempts, $2, url, last_timestamp FROM counted
  )
  SELECT 'dlv_' || c.id AS id, c.webhook_id AS "webhookId", c.event_id AS "eventId", m.token, c.attempts AS number, c.tries,
         c.last_timestamp AS "timestamp", b.body,
         CASE WHEN row_number() OVER (PARTITION BY c.webhook_id) = 1 THEN (
           SELECT ${TARGET} FROM fencepost.webhooks w WHERE w.id = c.webhook_id
         ) END AS target
  FROM counted c
  JOIN fencepost.messages m ON m.event_id = c.event_id
  JOIN fencepost.message_bodies b ON b.event_id = c.event_id`;

export async function recordAttempts(
  database: Database,
  fence: bigint,
  ids: readonly DeliveryId[],
  leaseMs: number,
  retryScheduleMs: readonly number[],
): Promise<readonly RecordedAttempt[]> {
  // What is the same for all deliveries of a webhook comes with one of them.
  const { rows } = await database.hot<
    Omit<RecordedAttempt, keyof Target | "fence"> & { readonly target: TargetRow | null }
  >(RECORD, [
    ids.map(rowId),
    fence,
    leaseMs,
    MAX_TIMESTAMP_LEAD_S,
    leaseMs - Math.min(leaseMs * SHORTER_LEASE.share, SHORTER_LEASE.ms),
  ]);
  const targets = new Map<WebhookId, Target>();
  for (const { webhookId, target } of rows) {
    if (target) targets.set(webhookId, targetOf(target, retryScheduleMs));
  }
  return rows.flatMap(({ target: _, ...row }) => {
    const target = targets.get(row.webhookId);
    return target ? [{ ...row, ...target, fence }] : [];
  });
}

export async function review(
  db: Queryable,
  fence: bigint,
  ids: readonly DeliveryId[],
  retryScheduleMs: readonly number[],
): Promise<readonly Review[]> {
  // Nothing is asked of a webhook that is not active any more.
  const { rows } = await db.query<Omit<Review, keyof Target> & { target: TargetRow }>(
    `SELECT 'dlv_' || d.id AS id, d.event_id AS "eventId", d.webhook_id AS "webhookId", d.tries, d.asks,
            d.last_timestamp AS "lastTimestamp", d.first_at AS "firstAttemptAt", ${TARGET} AS target
     FROM fencepost.delivery_queue q
     JOIN fencepost.deliveries d ON d.id = q.delivery_id
     JOIN fencepost.webhooks w ON w.id = q.webhook_id
     WHERE q.delivery_id = ANY($1) AND q.fence = $2
       AND (q.attempted OR q.asking AND w.active AND w.deleted_at IS NULL)`,
    [ids.map(rowId), fence],
  );
  return rows.map(({ target, ...row }) => ({ ...row, ...targetOf(target, retryScheduleMs) }));
}

export async function finish(
  database: Database,
  fence: bigint,
  attempts: readonly FinishedAttempt[],
): Promise<FinishReport> {
  const recorded = await writeOutcomes({ query: database.hot }, fence, attempts);
  const missing = without(attempts, recorded);
  if (missing.length === 0) return { recorded, stale: [] };
  // Taken, or the record of the attempt was still under way: its locks are waited for, and what it left is read anew.
  return database.transaction(async (client) => {
    const ids = missing.map(({ id }) => rowId(id));
    await client.query(
      `SELECT FROM fencepost.delivery_queue q WHERE q.delivery_id = ANY($1) ORDER BY q.delivery_id FOR UPDATE`,
      [ids],
    );
    const late = await writeOutcomes(client, fence, missing);
    const stale = without(missing, late);
    if (stale.length > 0) {
      await noteLateOutcomes(client, fence, stale);
      await release(
        client,
        fence,
        stale.map(({ id }) => id),
      );
    }
    return { recorded: [...recorded, ...late], stale: stale.map(({ id }) => id) };
  });
}

/** What becomes of the queue's row: it waits for its next attempt or question, or it goes. */
const REQUEUED = `again AS (
  UPDATE fencepost.delivery_queue q
  SET fence = NULL, attempted = false, capped = false, asking = mine.state = 'in_doubt', next_at = mine.next_at
  FROM mine WHERE q.delivery_id = mine.id AND mine.next_at IS NOT NULL
), gone AS (
  DELETE FROM fencepost.delivery_queue q USING mine WHERE q.delivery_id = mine.id AND mine.next_at IS NULL
)`;

const FINISH = `WITH mine AS MATERIALIZED (
    SELECT i.*, q.webhook_id, clock_timestamp() + i.delay * interval '1 millisecond' AS next_at
    FROM unnest($1::bigint[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::float8[], $9::bool[])
      AS i(id, outcome, status, error, response, state, delay, disable)
    JOIN fencepost.delivery_queue q ON q.delivery_id = i.id
    WHERE q.fence = $2 AND q.attempted
    ORDER BY q.delivery_id FOR UPDATE OF q
  ), ended AS (
    UPDATE fencepost.deliveries d
    SET state = mine.state, last_status = mine.status, last_error = mine.error, next_at = mine.next_at,
        finished_at = CASE WHEN mine.state IN ('success', 'failed') THEN now() END,
        strict_position = CASE WHEN mine.state <> 'success' THEN d.strict_position END,
        doubt_since = CASE WHEN mine.state = 'in_doubt' THEN coalesce(d.doubt_since, now()) END
    FROM mine WHERE d.id = mine.id
    RETURNING d.id, d.attempts, d.state, mine.outcome, mine.status, mine.error, mine.response
  ), noted AS (
    UPDATE fencepost.attempts a
    SET outcome = ended.outcome, status = ended.status, error = ended.error, response = ended.response,
        finished_at = clock_timestamp()
    FROM ended WHERE a.delivery_id = ended.id AND a.number = ended.attempts
  ), ${REQUEUED}, health AS MATERIALIZED (
    SELECT w.id, CASE WHEN NOT seen.well THEN coalesce(w.failing_since, clock_timestamp()) END AS failing_since,
           CASE
             WHEN NOT w.active THEN NULL
             WHEN seen.gone THEN 'The endpoint answered 410 Gone.'
             WHEN NOT seen.well AND w.failing_since <= now() - w.disable_after_ms * interval '1 millisecond'
             THEN 'Every attempt has failed since '
                  || to_char(w.failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || '.'
           END AS reason
    FROM (
      SELECT webhook_id, bool_or(outcome = 'delivered') AS well, bool_or(disable) AS gone FROM mine GROUP BY 1
    ) seen
    JOIN fencepost.webhooks w ON w.id = seen.webhook_id
    WHERE seen.well <> (w.failing_since IS NULL) OR w.active AND (
      seen.gone OR NOT seen.well AND w.failing_since <= now() - w.disable_after_ms * interval '1 millisecond'
    )
    ORDER BY w.id FOR NO KEY UPDATE OF w
  ), judged AS (
    UPDATE fencepost.webhooks w
    SET failing_since = health.failing_since, active = w.active AND health.reason IS NULL,
        disabled_reason = coalesce(health.reason, w.disabled_reason),
        disabled_at = CASE WHEN health.reason IS NULL THEN w.disabled_at ELSE now() END,
        told = w.told AND health.reason IS NULL
    FROM health WHERE w.id = health.id
  )
  SELECT 'dlv_' || id AS id, state FROM ended`;

async function writeOutcomes(
  db: Queryable,
  fence: bigint,
  attempts: readonly FinishedAttempt[],
): Promise<FinishReport["recorded"]> {
  const { rows } = await db.query<FinishReport["recorded"][number]>(FINISH, [
    attempts.map(({ id }) => rowId(id)),
    fence,
    attempts.map(({ result }) => result.outcome),
    attempts.map(({ result }) => result.status),
    attempts.map(({ result }) => result.error),
    attempts.map(({ result }) => result.response),
    attempts.map(({ next }) => next.state),
    attempts.map(({ next }) => delayOf(next)),
    attempts.map(({ next }) => next.state === "failed" && next.disableWebhook),
  ]);
  return rows;
}

function delayOf(next: FinishedAttempt["next"]): number | null {
  if (next.state === "pending") return next.delayMs;
  return next.state === "in_doubt" ? next.askInMs : null;
}

/** A worker that lost its claim changes no state; what it saw, if it is news, is kept beside its own attempt. */
async function noteLateOutcomes(
  db: Queryable,
  fence: bigint,
  stale: readonly FinishedAttempt[],
): Promise<void> {
  await db.query(
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

export async function settle(
  db: Queryable,
  fence: bigint,
  doubts: readonly SettledDoubt[],
): Promise<FinishReport> {
  const { rows: recorded } = await db.query<FinishReport["recorded"][number]>(
    `WITH mine AS MATERIALIZED (
       SELECT i.*, clock_timestamp() + i.delay * interval '1 millisecond' AS next_at
       FROM unnest($1::bigint[], $3::text[], $4::text[], $5::float8[]) AS i(id, state, error, delay)
       JOIN fencepost.delivery_queue q ON q.delivery_id = i.id
       WHERE q.fence = $2 AND q.asking
       ORDER BY q.delivery_id FOR UPDATE OF q
     ), ${REQUEUED}
     UPDATE fencepost.deliveries d
     SET state = mine.state, next_at = mine.next_at, asks = asks + 1,
         last_error = CASE WHEN mine.state <> 'success' THEN coalesce(mine.error, last_error) END,
         finished_at = CASE WHEN mine.state IN ('success', 'failed') THEN now() END,
         strict_position = CASE WHEN mine.state <> 'success' THEN d.strict_position END,
           doubt_since = CASE WHEN mine.state = 'in_doubt' THEN coalesce(d.doubt_since, now()) END
     FROM mine WHERE d.id = mine.id
     RETURNING 'dlv_' || d.id AS id, d.state`,
    [
      doubts.map(({ id }) => rowId(id)),
      fence,
      doubts.map(({ next }) => next.state),
      doubts.map(({ error }) => error),
      doubts.map(({ next }) => delayOf(next)),
    ],
  );
  return { recorded, stale: without(doubts, recorded).map(({ id }) => id) };
}

function without<T extends { readonly id: DeliveryId }>(
  items: readonly T[],
  recorded: FinishReport["recorded"],
): readonly T[] {
  const done = new Set(recorded.map(({ id }) => id));
  return items.filter(({ id }) => !done.has(id));
}

export async function extend(
  db: Queryable,
  fence: bigint,
  ids: readonly DeliveryId[],
  leaseMs: number,
): Promise<readonly DeliveryId[]> {
  const { rows } = await db.query<{ id: DeliveryId }>(
    `WITH mine AS MATERIALIZED (
       SELECT q.delivery_id FROM fencepost.delivery_queue q
       WHERE q.delivery_id = ANY($1) AND q.fence = $2
       ORDER BY q.delivery_id FOR UPDATE
     )
     UPDATE fencepost.delivery_queue q SET next_at = clock_timestamp() + $3 * interval '1 millisecond'
     FROM mine WHERE q.delivery_id = mine.delivery_id
     RETURNING 'dlv_' || q.delivery_id AS id`,
    [ids.map(rowId), fence, leaseMs],
  );
  return rows.map(({ id }) => id);
}

export async function release(db: Queryable, fence: bigint, ids: readonly DeliveryId[]): Promise<void> {
  // A row whose delivery has ended was offered by mistake: it goes, or it would be claimed for ever.
  await db.query(
    `WITH mine AS MATERIALIZED (
       SELECT q.delivery_id, d.next_at, d.last_timestamp,
              d.state = CASE WHEN q.asking THEN 'in_doubt' ELSE 'pending' END AS waits
       FROM fencepost.delivery_queue q JOIN fencepost.deliveries d ON d.id = q.delivery_id
       WHERE q.delivery_id = ANY($1) AND q.fence = $2 AND NOT q.attempted
       ORDER BY q.delivery_id FOR UPDATE OF q, d
     ), gone AS (
       DELETE FROM fencepost.delivery_queue q USING mine WHERE q.delivery_id = mine.delivery_id AND NOT mine.waits
     )
     UPDATE fencepost.delivery_queue q
     SET fence = NULL, capped = false,
         next_at = greatest(now(), mine.next_at, to_timestamp(mine.last_timestamp - $3))
     FROM mine WHERE q.delivery_id = mine.delivery_id AND mine.waits`,
    [ids.map(rowId), fence, MAX_TIMESTAMP_LEAD_S],
  );
}
