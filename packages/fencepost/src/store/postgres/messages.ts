import type { EventId } from "@fencepost/token";
import { decideMessage } from "../../message/decideMessage.ts";
import { EventContentMismatchError, type Message } from "../../message/payload.ts";
import type { Queryable } from "./database.ts";

/** Why a message is stored: sent through the outbox, kept silent by a rebuild, or handed in by a caller. */
export type MessageOrigin = "emitted" | "suppressed" | "dispatched" | "test";

/** Times that a message may be deleted by a pruning step while it is stored again. */
const MAX_STORES = 5;

/**
 * Stores the messages that are not stored yet, each with its body, at positions in the order given; emitted ones
 * enter the outbox. What is on record is left as it is; where a caller handed it in, it stays there until the
 * transaction has ended. Returns the ids that are new, and the messages whose content is not that of their record.
 */
export async function insertMessages(
  db: Queryable,
  messages: readonly Message[],
  origin: MessageOrigin,
  projection: string | null,
): Promise<{ readonly fresh: ReadonlySet<EventId>; readonly mismatched: readonly Message[] }> {
  const fresh = new Set<EventId>();
  const mismatched: Message[] = [];
  let unknown = messages;
  for (let store = 0; unknown.length > 0; store++) {
    if (store === MAX_STORES) {
      throw new Error(`The message ${unknown[0]?.eventId} was deleted each time that it was stored again.`);
    }
    for (const eventId of await insertNew(db, unknown, origin, projection)) fresh.add(eventId);
    const known = unknown.filter(({ eventId }) => !fresh.has(eventId));
    // A statement of its own: the one above cannot see the row that won against it.
    const stored = await readContentHashes(
      db,
      known.map(({ eventId }) => eventId),
      { keep: origin === "dispatched" || origin === "test" },
    );
    const decided = known.map((message) => ({
      message,
      decision: decideMessage(stored.get(message.eventId), message.contentHash),
    }));
    for (const { message, decision } of decided) if (decision === "mismatch") mismatched.push(message);
    unknown = decided.filter(({ decision }) => decision === "new").map(({ message }) => message);
  }
  return { fresh, mismatched };
}

async function insertNew(
  db: Queryable,
  messages: readonly Message[],
  origin: MessageOrigin,
  projection: string | null,
): Promise<readonly EventId[]> {
  // Positions in the order given, rows in the order of their ids: two that store the same ones cannot deadlock.
  const { rows } = await db.query<{ event_id: EventId }>(
    `WITH input AS MATERIALIZED (
       SELECT i.*, nextval('fencepost.message_position') AS position FROM (
         SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bytea[], $6::bytea[])
           WITH ORDINALITY AS i(event_id, token, type, occurred_at, content_hash, body, n) ORDER BY n
       ) i
     ), new AS (
       INSERT INTO fencepost.messages (event_id, token, type, projection, state, content_hash, occurred_at, position)
       SELECT event_id, token, type, $8, $7, content_hash, occurred_at, position FROM input ORDER BY event_id
       ON CONFLICT (event_id) DO NOTHING
       RETURNING event_id
     ), bodies AS (
       INSERT INTO fencepost.message_bodies (event_id, body) SELECT event_id, body FROM input JOIN new USING (event_id)
     ), offered AS (
       INSERT INTO fencepost.outbox (position, event_id)
       SELECT position, event_id FROM input JOIN new USING (event_id) WHERE $7 = 'emitted'
     )
     SELECT event_id FROM new`,
    [
      messages.map((m) => m.eventId),
      messages.map((m) => m.token),
      messages.map((m) => m.type),
      messages.map((m) => m.occurredAt),
      messages.map((m) => m.contentHash),
      messages.map((m) => m.body),
      origin,
      projection,
    ],
  );
  return rows.map(({ event_id }) => event_id);
}

/** Throws {@link EventContentMismatchError} for the first message that is not what its record says. */
export function refuseMismatch(mismatched: readonly Message[]): void {
  const first = mismatched[0];
  if (first) throw new EventContentMismatchError(first.eventId, first.token);
}

/** `keep`: no pruning step takes them, nor their bodies, while this transaction runs. */
async function readContentHashes(
  db: Queryable,
  eventIds: readonly EventId[],
  { keep }: { readonly keep: boolean },
): Promise<ReadonlyMap<EventId, Buffer>> {
  if (eventIds.length === 0) return new Map();
  const { rows } = await db.query<{ event_id: EventId; content_hash: string }>(
    `SELECT event_id, encode(content_hash, 'hex') AS content_hash FROM fencepost.messages
     WHERE event_id = ANY($1::text[])
     ORDER BY event_id ${keep ? "FOR KEY SHARE" : ""}`,
    [eventIds],
  );
  return new Map(rows.map((row) => [row.event_id, Buffer.from(row.content_hash, "hex")]));
}
