// The outbox and the messages, for deliveries that are kept in Redis.
import type { EventId, FencingToken } from "@fencepost/token";
import type { DatabaseClient, Queryable } from "./database.ts";
import { type MessageRound, moveMessageRound } from "./messageRound.ts";
import type { MessageOrigin } from "./messages.ts";

// Any number that no other program is likely to lock: "relay" in ASCII.
const RELAY_LOCK = "491327414649";
/**
 * How much of what was relayed, at the least, is relayed again when a server was lost: more than a failover, or an
 * append-only file that is synced each second, can lose.
 */
const RELAYED_AGAIN = "1 hour";

/** A message as it is on record; times in milliseconds. */
export interface MessageRecord {
  readonly eventId: EventId;
  readonly type: string;
  readonly at: number;
  readonly made: number;
  readonly position: bigint;
  readonly token: FencingToken | null;
  /** Null: it was pruned. */
  readonly body: Buffer | null;
}

const ms = (column: string): string => `floor(extract(epoch FROM ${column}) * 1000)::float8`;

/** Of message `m` and its body `b`. */
const RECORD = `m.event_id AS "eventId", m.type, ${ms("m.occurred_at")} AS at, ${ms("m.created_at")} AS made, m.position,
  m.token, b.body`;

/** True: until the transaction ends, nobody else relays. */
export async function lockRelay(client: DatabaseClient): Promise<boolean> {
  const { rows } = await client.query<{ locked: boolean }>("SELECT pg_try_advisory_xact_lock($1) AS locked", [
    RELAY_LOCK,
  ]);
  return rows[0]?.locked === true;
}

/**
 * Remembers the servers that are relayed to. Where they are others than the last time, what was relayed in the last
 * hour or more enters the outbox again. Returns how many messages did.
 */
export async function noteServers(client: DatabaseClient, runIds: readonly string[]): Promise<number> {
  const { rows } = await client.query<{ same: boolean }>(
    "SELECT run_ids = $1::text[] AS same FROM fencepost.relay",
    [runIds],
  );
  const [known] = rows;
  if (known?.same) return 0;
  const { rowCount } = await client.query(
    `INSERT INTO fencepost.outbox (position, event_id, again)
     SELECT m.position, m.event_id, true
     FROM fencepost.relay r
     JOIN fencepost.messages m ON m.created_at >= least(r.oldest, r.oldest_before)
     JOIN fencepost.message_bodies b ON b.event_id = m.event_id
     WHERE m.state = 'emitted'
     ON CONFLICT (event_id) DO NOTHING`,
  );
  await client.query(
    `INSERT INTO fencepost.relay (run_ids) VALUES ($1) ON CONFLICT (one) DO UPDATE SET run_ids = excluded.run_ids`,
    [runIds],
  );
  return rowCount ?? 0;
}

/** The next messages of the outbox. `again`: they were relayed before, to a server that was lost. */
export async function readOutbox(
  client: DatabaseClient,
  limit: number,
): Promise<readonly (MessageRecord & { readonly again: boolean })[]> {
  const { rows } = await client.query<MessageRecord & { readonly again: boolean }>(
    `SELECT ${RECORD}, o.again
     FROM (SELECT * FROM fencepost.outbox ORDER BY position LIMIT $1) o
     JOIN fencepost.messages m ON m.event_id = o.event_id
     LEFT JOIN fencepost.message_bodies b ON b.event_id = o.event_id
     ORDER BY o.position`,
    [limit],
  );
  return rows;
}

/** The position of the first message in the outbox; null: it is empty. */
export async function firstInOutbox(db: Queryable): Promise<bigint | null> {
  const { rows } = await db.query<{ first: bigint | null }>(
    "SELECT min(position) AS first FROM fencepost.outbox",
  );
  return rows[0]?.first ?? null;
}

/** Takes messages out of the outbox: every webhook that takes them has its delivery. */
export async function noteRelayed(client: DatabaseClient, messages: readonly MessageRecord[]): Promise<void> {
  await client.query("DELETE FROM fencepost.outbox WHERE event_id = ANY($1)", [
    messages.map(({ eventId }) => eventId),
  ]);
  const oldest = messages.reduce((least, { made }) => Math.min(least, made), Number.POSITIVE_INFINITY);
  await client.query(
    `UPDATE fencepost.relay
     SET since = CASE WHEN over THEN now() ELSE since END,
         oldest_before = CASE WHEN over THEN oldest ELSE oldest_before END,
         oldest = CASE WHEN over THEN at ELSE least(oldest, at) END
     FROM (SELECT to_timestamp($1::float8 / 1000) AS at, since < now() - interval '${RELAYED_AGAIN}' AS over FROM fencepost.relay) r
     WHERE over OR oldest IS NULL OR at < oldest`,
    [oldest],
  );
}

/** A place among the messages, which are walked by the time of their events. */
export interface Place {
  readonly time: string;
  readonly eventId: string;
}

/** The next messages after a place, and the place of the last. */
export async function readMessages(
  db: Queryable,
  range: {
    readonly after: Place;
    /** Not included; unless given, there is no end. */
    readonly to?: string;
    readonly origins: readonly MessageOrigin[];
    readonly limit: number;
  },
): Promise<{
  readonly looked: number;
  readonly messages: readonly MessageRecord[];
  readonly last: Place | null;
}> {
  const { after, to = "infinity", origins, limit } = range;
  const { rows } = await db.query<MessageRecord & { readonly state: MessageOrigin; readonly time: string }>(
    `SELECT ${RECORD}, m.state, m.occurred_at::text AS time
     FROM (
       SELECT * FROM fencepost.messages
       WHERE (occurred_at, event_id) > ($1::timestamptz, $2) AND occurred_at < $3::timestamptz
       ORDER BY occurred_at, event_id LIMIT $4
     ) m
     LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id AND m.state = ANY($5)
     ORDER BY m.occurred_at, m.event_id`,
    [after.time, after.eventId, to, limit, origins],
  );
  const last = rows.at(-1);
  return {
    looked: rows.length,
    messages: rows.filter(({ state }) => origins.includes(state)),
    last: last ? { time: last.time, eventId: last.eventId } : null,
  };
}

/** The next position, and the message under this id, if a projection made it. */
export async function drawPosition(
  db: Queryable,
  eventId: EventId,
): Promise<{
  readonly position: bigint;
  readonly found: (MessageRecord & { readonly contentHash: Buffer }) | undefined;
}> {
  const { rows } = await db.query<
    MessageRecord & { readonly contentHash: Buffer | null; readonly drawn: bigint }
  >(
    `SELECT drawn, m.content_hash AS "contentHash", ${RECORD}
     FROM (SELECT nextval('fencepost.message_position') AS drawn) n
     LEFT JOIN fencepost.messages m ON m.event_id = $1
     LEFT JOIN fencepost.message_bodies b ON b.event_id = m.event_id`,
    [eventId],
  );
  const [row] = rows;
  if (!row) throw new Error("The database returned no position.");
  const { drawn, contentHash, ...record } = row;
  return { position: drawn, found: contentHash ? { ...record, contentHash } : undefined };
}

/** A step of the round that looks for bodies that may go: messages that were made before a time. */
export interface BodyRound {
  readonly events: readonly EventId[];
  readonly done: boolean;
}

/**
 * The next messages whose body may go, if nothing refers to it: by their positions, from where the last step ended.
 * Undefined: another process is at it.
 */
export async function nextOldBodies(
  client: DatabaseClient,
  { before, limit }: { readonly before: Date; readonly limit: number },
): Promise<BodyRound | undefined> {
  const { rows: rounds } = await client.query<MessageRound>(
    "SELECT after, kept FROM fencepost.prune_rounds WHERE what = 'messages' FOR UPDATE SKIP LOCKED",
  );
  const [round] = rounds;
  if (!round) return undefined;
  const { rows } = await client.query<{
    seen: bigint;
    young: bigint;
    last: bigint | null;
    kept: bigint | null;
    events: EventId[];
  }>(
    `WITH batch AS MATERIALIZED (
       SELECT event_id, position, created_at < $2 AS old,
              EXISTS (SELECT FROM fencepost.message_bodies b WHERE b.event_id = m.event_id) AS has_body
       FROM fencepost.messages m WHERE position > $1 ORDER BY position LIMIT $3
     )
     SELECT count(*) AS seen, count(*) FILTER (WHERE NOT old) AS young, max(position) AS last,
            min(position) FILTER (WHERE has_body OR NOT old) AS kept,
            coalesce(array_agg(event_id) FILTER (WHERE old AND has_body), '{}') AS events
     FROM batch`,
    [round.after, before, limit],
  );
  const { seen = 0n, young = 0n, last = null, kept = null, events = [] } = rows[0] ?? {};
  const done = Number(seen) < limit || young > 0n;
  await moveMessageRound(client, round, { last, kept, done }, before);
  return { events, done };
}

/** Removes the bodies of these messages, but for those that wait in the outbox. Returns how many. */
export async function removeBodies(client: DatabaseClient, events: readonly EventId[]): Promise<number> {
  const { rowCount } = await client.query(
    `DELETE FROM fencepost.message_bodies b
     WHERE b.event_id = ANY($1) AND NOT EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = b.event_id)`,
    [events],
  );
  return rowCount ?? 0;
}
