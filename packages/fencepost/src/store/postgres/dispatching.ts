// The dispatch stage's statements: which webhooks get a message. Pairs are made in the order of their key everywhere:
// two that make the same ones cannot deadlock. What may have been pruned is decided in the snapshot in which its pair
// is missing.
import type { EventId } from "@fencepost/token";
import type { Message } from "../../message/payload.ts";
import type { Delivery, DispatchReport, FanOutReport, ReplayPage, ReplayReport } from "../deliveryStore.ts";
import { InvalidCursorError } from "../errors.ts";
import type { WebhookId } from "../webhook.ts";
import type { DatabaseClient, Queryable } from "./database.ts";
import { DELIVERY_COLUMNS } from "./deliveryRows.ts";
import { insertMessages, type MessageOrigin, refuseMismatch } from "./messages.ts";

/** Webhooks with nothing to catch up on that one transaction passes over. */
const MAX_CATCH_UPS = 100;

/** The data of body `b`, read once for all webhooks, and only if one of them may ask for it. */
const FILTERED_DATA = `CASE WHEN EXISTS (SELECT FROM fencepost.webhooks WHERE active AND filter IS NOT NULL)
  THEN fencepost.message_data(b.body) END`;

export async function dispatch(
  db: Queryable,
  message: Message,
  only: WebhookId | undefined,
): Promise<DispatchReport> {
  const { fresh, mismatched } = await insertMessages(db, [message], only ? "test" : "dispatched", null);
  refuseMismatch(mismatched);
  const { rows: decided } = await db.query<{ webhook_id: WebhookId; forgotten: boolean }>(
    `WITH stored AS MATERIALIZED (
       SELECT m.event_id, m.type, m.position, m.created_at, b.event_id IS NULL AS bodiless, ${FILTERED_DATA} AS data
       FROM fencepost.messages m LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id
       WHERE m.event_id = $1
     ), missing AS MATERIALIZED (
       SELECT m.event_id, w.id AS webhook_id, CASE WHEN w.ordering = 'strict' THEN m.position END AS strict_position,
              NOT $3 AND (m.bodiless OR coalesce(m.created_at <= w.pruned_until, false)) AS forgotten
       FROM stored m CROSS JOIN fencepost.webhooks w
       WHERE w.active
         AND CASE WHEN $2::text IS NOT NULL THEN w.id = $2
                  WHEN m.bodiless THEN fencepost.takes(w.types, NULL, m.type, NULL)
                  ELSE fencepost.takes(w.types, w.filter, m.type, m.data) END
         AND ($3 OR NOT EXISTS (
           SELECT FROM fencepost.deliveries d WHERE d.event_id = m.event_id AND d.webhook_id = w.id
         ))
     ), new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at, strict_position)
       SELECT event_id, webhook_id, now(), strict_position FROM missing WHERE NOT forgotten ORDER BY webhook_id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, webhook_id
     ), queued AS (
       INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM new
     )
     SELECT webhook_id, false AS forgotten FROM new
     UNION ALL SELECT webhook_id, true FROM missing WHERE forgotten ORDER BY webhook_id`,
    [message.eventId, only ?? null, fresh.has(message.eventId)],
  );
  const deliveries = await readPairs(db, message.eventId, only);
  const made = new Set(decided.flatMap((row) => (row.forgotten ? [] : [row.webhook_id])));
  return {
    created: deliveries.filter(({ webhookId }) => made.has(webhookId)),
    existing: deliveries.filter(({ webhookId }) => !made.has(webhookId)),
    forgotten: decided.flatMap((row) => (row.forgotten ? [row.webhook_id] : [])),
  };
}

/** A statement of its own: the one that makes pairs cannot see those that another caller made first. */
async function readPairs(
  db: Queryable,
  eventId: EventId,
  only: WebhookId | undefined,
): Promise<readonly Delivery[]> {
  // As text: in a transaction of the caller's, times are what its own parsers make of them.
  const { rows } = await db.query<{ deliveries: string }>(
    `SELECT coalesce(json_agg(pair), '[]')::text AS deliveries FROM (
       SELECT ${DELIVERY_COLUMNS} FROM fencepost.deliveries d
       WHERE d.event_id = $1 AND ($2::text IS NULL OR d.webhook_id = $2) ORDER BY d.webhook_id
     ) pair`,
    [eventId, only ?? null],
  );
  const asDate = (text: string | null): Date | null => (text === null ? null : new Date(text));
  const pairs = JSON.parse(rows[0]?.deliveries ?? "[]") as (Delivery &
    Record<"nextAt" | "finishedAt", string | null>)[];
  return pairs.map((pair) => ({
    ...pair,
    nextAt: asDate(pair.nextAt),
    createdAt: new Date(pair.createdAt),
    finishedAt: asDate(pair.finishedAt),
  }));
}

export async function fanOut(
  db: Queryable,
  { messages, webhooks }: { readonly messages: number; readonly webhooks: number },
): Promise<FanOutReport> {
  const { rows } = await db.query<{ messages: bigint; deliveries: bigint }>(
    `WITH offered AS MATERIALIZED (
       SELECT position, event_id, after_webhook FROM fencepost.outbox ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED
     ), stored AS MATERIALIZED (
       SELECT o.*, m.type, m.occurred_at, ${FILTERED_DATA} AS data
       FROM offered o
       JOIN fencepost.messages m ON m.event_id = o.event_id
       JOIN fencepost.message_bodies b ON b.event_id = o.event_id
     ), pairs AS MATERIALIZED (
       SELECT m.position, m.event_id, w.id AS webhook_id, w.strict
       FROM stored m
       CROSS JOIN LATERAL (
         SELECT w.id, w.ordering = 'strict' AS strict FROM fencepost.webhooks w
         WHERE w.id > m.after_webhook AND w.active AND w.deliver_from <= m.occurred_at
           AND fencepost.takes(w.types, w.filter, m.type, m.data)
         ORDER BY w.id LIMIT $2
       ) w
     ), new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at, strict_position)
       SELECT event_id, webhook_id, now(), CASE WHEN strict THEN position END FROM pairs ORDER BY event_id, webhook_id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, event_id, webhook_id
     ), queued AS (
       INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
       SELECT new.id, new.webhook_id, now() FROM new JOIN pairs USING (event_id, webhook_id) ORDER BY pairs.position
     ), unfinished AS (
       SELECT position, max(webhook_id) AS after_webhook FROM pairs GROUP BY position HAVING count(*) = $2
     ), moved AS (
       UPDATE fencepost.outbox o SET after_webhook = u.after_webhook FROM unfinished u WHERE o.position = u.position
     ), done AS (
       DELETE FROM fencepost.outbox o USING offered
       WHERE o.position = offered.position AND NOT EXISTS (SELECT FROM unfinished u WHERE u.position = o.position)
     )
     SELECT (SELECT count(*) FROM offered) AS messages, (SELECT count(*) FROM new) AS deliveries`,
    [messages, webhooks],
  );
  return { messages: Number(rows[0]?.messages ?? 0n), deliveries: Number(rows[0]?.deliveries ?? 0n) };
}

/** A place among the messages, which are walked by time. */
interface Place {
  readonly time: string;
  readonly eventId: string;
}

interface Offer {
  /** False: nothing was made, as the webhook is not active. */
  readonly active: boolean;
  readonly messages: number;
  readonly created: number;
  readonly existing: number;
  readonly forgotten: readonly EventId[];
  readonly bodiless: readonly EventId[];
  /** Of the last message that was looked at. */
  readonly last: Place | null;
}

/** Offers the next messages after a place to one webhook, if it is active: the missing pairs are made. */
async function offerTo(
  client: DatabaseClient,
  id: WebhookId,
  {
    after,
    to,
    origins,
    limit,
  }: {
    readonly after: Place;
    readonly to: string;
    readonly origins: readonly MessageOrigin[];
    readonly limit: number;
  },
): Promise<Offer> {
  // The lock on a body keeps it until the pair that refers to it is committed; one that is being pruned is waited
  // for, and then it is gone.
  const { rows } = await client.query<{
    active: boolean;
    messages: bigint;
    created: bigint;
    existing: bigint;
    forgotten: EventId[];
    bodiless: EventId[];
    last_time: string | null;
    last_id: string;
  }>(
    `WITH batch AS MATERIALIZED (
       SELECT event_id, type, state, occurred_at, created_at, position FROM fencepost.messages
       WHERE (occurred_at, event_id) > ($2::timestamptz, $3) AND occurred_at < $4::timestamptz
       ORDER BY occurred_at, event_id LIMIT $6
     ), taken AS MATERIALIZED (
       SELECT m.event_id, CASE WHEN w.ordering = 'strict' THEN m.position END AS strict_position,
              coalesce(m.created_at <= w.pruned_until, false) AS old,
              EXISTS (
                SELECT FROM fencepost.deliveries d WHERE d.event_id = m.event_id AND d.webhook_id = w.id
              ) AS existing
       FROM batch m
       JOIN fencepost.webhooks w ON w.id = $1
       LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id
       WHERE w.active AND m.state = ANY($5) AND fencepost.takes(w.types, NULL, m.type, NULL)
         AND (w.filter IS NULL OR b.event_id IS NULL OR fencepost.message_data(b.body) @> w.filter)
     ), kept AS MATERIALIZED (
       SELECT b.event_id, taken.strict_position
       FROM taken JOIN fencepost.message_bodies b ON b.event_id = taken.event_id
       WHERE NOT taken.existing AND NOT taken.old
       ORDER BY b.event_id FOR KEY SHARE OF b
     ), new AS (
       INSERT INTO fencepost.deliveries (event_id, webhook_id, next_at, strict_position)
       SELECT event_id, $1, now(), strict_position FROM kept ORDER BY event_id
       ON CONFLICT (event_id, webhook_id) DO NOTHING
       RETURNING id, webhook_id
     ), queued AS (
       INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at) SELECT id, webhook_id, now() FROM new
     ), counted AS (
       SELECT count(*) FILTER (WHERE existing) AS existing,
              coalesce(array_agg(event_id) FILTER (WHERE NOT existing AND old), '{}') AS forgotten,
              coalesce(array_agg(event_id) FILTER (
                WHERE NOT existing AND NOT old AND event_id NOT IN (SELECT event_id FROM kept)
              ), '{}') AS bodiless
       FROM taken
     )
     SELECT EXISTS (SELECT FROM fencepost.webhooks WHERE id = $1 AND active) AS active,
            (SELECT count(*) FROM batch) AS messages, made.count AS created,
            counted.existing + (SELECT count(*) FROM kept) - made.count AS existing,
            counted.forgotten, counted.bodiless, last.event_id AS last_id,
            to_char(last.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS last_time
     FROM counted CROSS JOIN (SELECT count(*) FROM new) made
     LEFT JOIN (SELECT * FROM batch ORDER BY occurred_at DESC, event_id DESC LIMIT 1) last ON true`,
    [id, after.time, after.eventId, to, origins, limit],
  );
  const [row] = rows;
  if (!row) throw new Error("The database returned no row for what was offered.");
  return {
    active: row.active,
    messages: Number(row.messages),
    created: Number(row.created),
    existing: Number(row.existing),
    forgotten: row.forgotten,
    bodiless: row.bodiless,
    last: row.last_time === null ? null : { time: row.last_time, eventId: row.last_id },
  };
}

/** One batch of one webhook, drawn anew each time: one with much to catch up on does not keep the others waiting. */
export async function catchUp(client: DatabaseClient, limit: number): Promise<FanOutReport> {
  for (let webhook = 0; webhook < MAX_CATCH_UPS; webhook++) {
    const report = await catchUpNext(client, limit);
    if (!report) break;
    if (report.messages > 0) return report;
  }
  return { messages: 0, deliveries: 0 };
}

async function catchUpNext(client: DatabaseClient, limit: number): Promise<FanOutReport | undefined> {
  const { rows: waiting } = await client.query<{
    webhook_id: WebhookId;
    after_time: string;
    after_event_id: string;
  }>(
    `SELECT webhook_id, after_time::text, after_event_id FROM fencepost.catch_ups
     ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED`,
  );
  const [next] = waiting;
  if (!next) return undefined;
  const { messages, created, last } = await offerTo(client, next.webhook_id, {
    after: { time: next.after_time, eventId: next.after_event_id },
    to: "infinity",
    origins: ["emitted"],
    limit,
  });
  if (messages < limit || !last) {
    await client.query("DELETE FROM fencepost.catch_ups WHERE webhook_id = $1", [next.webhook_id]);
  } else {
    await client.query(
      "UPDATE fencepost.catch_ups SET after_time = $2::timestamptz, after_event_id = $3 WHERE webhook_id = $1",
      [next.webhook_id, last.time, last.eventId],
    );
  }
  return { messages, deliveries: created };
}

export async function replay(
  client: DatabaseClient,
  id: WebhookId,
  { from, to, after, limit }: ReplayPage,
): Promise<ReplayReport | undefined> {
  const { active, messages, created, existing, forgotten, bodiless, last } = await offerTo(client, id, {
    after: after === undefined ? { time: from.toISOString(), eventId: "" } : placeOf(after),
    to: to.toISOString(),
    origins: ["emitted", "suppressed", "dispatched"],
    limit,
  });
  if (!active) return undefined;
  const next = messages < limit || !last ? null : cursorOf(last);
  return { created, existing, forgotten, bodiless, next };
}

function cursorOf({ time, eventId }: Place): string {
  return Buffer.from(`${time}\n${eventId}`).toString("base64url");
}

function placeOf(cursor: string): Place {
  const [, time = "", eventId] =
    /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)\n([\w:~-]{1,256})$/.exec(
      Buffer.from(cursor, "base64url").toString(),
    ) ?? [];
  const moment = new Date(time);
  // The 31st of February is read as a day of March.
  const isMoment = !Number.isNaN(moment.getTime()) && time.startsWith(moment.toISOString().slice(0, -1));
  if (eventId === undefined || !isMoment) throw new InvalidCursorError(cursor);
  return { time, eventId };
}
