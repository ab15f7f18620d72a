// What is read to prove that a range is whole. Nothing is locked or changed.
import type { EventId, FencingToken } from "@fencepost/token";
import type { Webhook, WebhookId } from "../webhook.ts";
import type { Queryable } from "./database.ts";

/** Tokens of one stream, both inclusive. */
export interface TokenRange {
  readonly from: FencingToken;
  readonly through: FencingToken;
}

export interface ProjectionPlace {
  readonly name: string;
  readonly version: number;
  /** Events of the range that it has not come to. */
  readonly behind: number;
  /** The event at which it stands still; null while it runs. */
  readonly stoppedToken: FencingToken | null;
}

/** How far the live projections of a stream are with the events of a range. */
export async function readProjectionPlaces(
  db: Queryable,
  stream: string,
  { from, through }: TokenRange,
): Promise<readonly ProjectionPlace[]> {
  const { rows } = await db.query<ProjectionPlace>(
    `SELECT name, version, stopped_token AS "stoppedToken",
            (SELECT count(*)::int FROM fencepost.events e
             WHERE e.stream = p.stream AND e.seq > p.cursor
               AND e.token >= $2 COLLATE "C" AND e.token <= $3 COLLATE "C") AS behind
     FROM fencepost.projections p WHERE stream = $1 AND state = 'live' ORDER BY name`,
    [stream, from, through],
  );
  return rows;
}

/** A place among the messages that have a token, which are walked by token and id. */
export interface MessagePlace {
  readonly token: string;
  readonly eventId: string;
}

export interface AuditedMessage extends MessagePlace {
  readonly token: FencingToken;
  readonly eventId: EventId;
  readonly type: string;
  readonly state: "emitted" | "suppressed" | "dispatched";
  readonly occurredAt: Date;
  /** It still waits for (some of) its deliveries. */
  readonly inOutbox: boolean;
  /** The event of its token is stored. */
  readonly hasEvent: boolean;
}

/** The next messages after a place, up to a token where one is given. Those of tests are none. */
export async function readMessagesAfter(
  db: Queryable,
  after: MessagePlace,
  through: FencingToken | null,
  limit: number,
): Promise<readonly AuditedMessage[]> {
  const { rows } = await db.query<AuditedMessage>(
    `SELECT token, event_id AS "eventId", type, state, occurred_at AS "occurredAt",
            EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = m.event_id) AS "inOutbox",
            EXISTS (SELECT FROM fencepost.events e WHERE e.token = m.token) AS "hasEvent"
     FROM fencepost.messages m
     WHERE token >= $1 COLLATE "C" AND (token, event_id) > ($1 COLLATE "C", $2 COLLATE "C")
       AND ($3::text IS NULL OR token <= $3 COLLATE "C") AND state <> 'test'
     ORDER BY token, event_id LIMIT $4`,
    [after.token, after.eventId, through, limit],
  );
  return rows;
}

export interface DuePair {
  readonly eventId: EventId;
  readonly webhookId: WebhookId;
  /** Whether it has a delivery cannot be known: records that old were pruned, or what a filter looks at was. */
  readonly forgotten: boolean;
}

/**
 * Which of these webhooks are due which of these messages, by their settings as they are now: type, filter and, for
 * what a projection emitted, the time from which on they get events. A rebuild's silent messages are due to nobody.
 */
export async function readDuePairs(
  db: Queryable,
  eventIds: readonly EventId[],
  webhooks: readonly Pick<Webhook, "id" | "types" | "filter" | "deliverFrom" | "prunedUntil">[],
): Promise<readonly DuePair[]> {
  const { rows } = await db.query<DuePair>(
    `SELECT m.event_id AS "eventId", w.id AS "webhookId",
            coalesce(m.created_at <= w."prunedUntil", false) OR (w.filter IS NOT NULL AND b.event_id IS NULL)
              AS forgotten
     FROM fencepost.messages m
     LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id
     CROSS JOIN jsonb_to_recordset($2::jsonb)
       AS w(id text, types text[], filter jsonb, "deliverFrom" timestamptz, "prunedUntil" timestamptz)
     WHERE m.event_id = ANY($1)
       AND (m.state = 'dispatched' OR m.state = 'emitted' AND w."deliverFrom" <= m.occurred_at)
       AND fencepost.takes(w.types, NULL, m.type, NULL)
       AND CASE WHEN w.filter IS NULL OR b.event_id IS NULL THEN true
                ELSE fencepost.message_data(b.body) @> w.filter END`,
    [
      eventIds,
      JSON.stringify(
        webhooks.map(({ id, types, filter, deliverFrom, prunedUntil }) => ({
          id,
          types,
          filter,
          deliverFrom,
          prunedUntil,
        })),
      ),
    ],
  );
  return rows;
}

/** Webhooks that still look back over messages which a running fan-out could not offer them. */
export async function readCatchingUp(db: Queryable): Promise<ReadonlySet<WebhookId>> {
  const { rows } = await db.query<{ id: WebhookId }>(
    "SELECT webhook_id AS id FROM fencepost.catch_ups LIMIT 10000",
  );
  return new Set(rows.map(({ id }) => id));
}

export interface Silent {
  readonly token: FencingToken;
  /** The type that events of the same contract and name have a message of. */
  readonly type: string;
}

/**
 * Events of a range that a live projection has passed and that have no message of a type which others of the same
 * contract and name do have. Those that were set aside or skipped are not among them, nor is what `except` made.
 */
export async function readSilentEvents(
  db: Queryable,
  {
    stream,
    tokens,
    except,
  }: { readonly stream: string; readonly tokens: TokenRange; readonly except: readonly string[] },
  limit: number,
): Promise<readonly Silent[]> {
  const { rows } = await db.query<Silent>(
    `WITH mapped AS MATERIALIZED (
       SELECT DISTINCT e.contract_id, e.topics[1] AS name, m.type, m.projection
       FROM fencepost.messages m JOIN fencepost.events e ON e.token = m.token
       WHERE m.token >= $2 COLLATE "C" AND m.token <= $3 COLLATE "C" AND m.projection IS NOT NULL
         AND m.projection <> ALL($4)
     )
     SELECT e.token, mapped.type
     FROM fencepost.events e
     JOIN mapped ON mapped.contract_id = e.contract_id AND mapped.name = e.topics[1]
     JOIN fencepost.projections p
       ON p.name = mapped.projection AND p.state = 'live' AND p.stream = $1 AND e.seq <= p.cursor
     WHERE e.stream = $1 AND e.token >= $2 COLLATE "C" AND e.token <= $3 COLLATE "C"
       AND NOT EXISTS (SELECT FROM fencepost.messages m WHERE m.token = e.token AND m.type = mapped.type)
       AND NOT EXISTS (SELECT FROM fencepost.quarantine q WHERE q.token = e.token AND q.projection IN ('', p.name))
       AND NOT EXISTS (SELECT FROM fencepost.skips s WHERE s.token = e.token AND s.projection = p.name)
     ORDER BY e.token, mapped.type LIMIT $5`,
    [stream, tokens.from, tokens.through, except, limit],
  );
  return rows;
}

/** The last seq of the events of a range that a cursor has passed; 0 where there is none. */
export async function readLastSeq(
  db: Queryable,
  stream: string,
  { from, through }: TokenRange,
  cursor: bigint,
): Promise<bigint> {
  const { rows } = await db.query<{ seq: bigint }>(
    `SELECT coalesce(max(seq), 0) AS seq FROM fencepost.events
     WHERE stream = $1 AND token >= $2 COLLATE "C" AND token <= $3 COLLATE "C" AND seq <= $4`,
    [stream, from, through, cursor],
  );
  return rows[0]?.seq ?? 0n;
}

/** Messages of a range that projections are said to have made, and no projection of that name is on record. */
export async function readUnclaimed(
  db: Queryable,
  { from, through }: TokenRange,
  limit: number,
): Promise<{ readonly count: number; readonly listed: readonly NamedMessage[] }> {
  const { rows } = await db.query<NamedMessage & { count: number }>(
    `SELECT m.token, m.event_id AS "eventId", m.type, count(*) OVER ()::int AS count FROM fencepost.messages m
     WHERE m.token >= $1 COLLATE "C" AND m.token <= $2 COLLATE "C" AND m.state IN ('emitted', 'suppressed')
       AND NOT EXISTS (SELECT FROM fencepost.projections p WHERE p.name = m.projection)
     ORDER BY m.token, m.event_id LIMIT $3`,
    [from, through, limit],
  );
  return { count: rows[0]?.count ?? 0, listed: rows.map(({ count: _, ...name }) => name) };
}

export interface NamedMessage {
  readonly token: FencingToken;
  readonly eventId: EventId;
  readonly type: string;
}
