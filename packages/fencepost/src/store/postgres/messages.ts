import type { EventId } from "@fencepost/token";
import { decideMessage } from "../../message/decideMessage.ts";
import { EventContentMismatchError, type Message } from "../../message/payload.ts";
import type { Queryable } from "./database.ts";

/** Why a message is stored: sent through the outbox, kept silent by a rebuild, or handed in by a caller. */
export type MessageOrigin = "emitted" | "suppressed" | "dispatched" | "test";

/**
 * Stores the messages that are not stored yet, each with its body; emitted ones enter the outbox, in the order
 * given. What is on record is left as it is. Returns the ids that are new, and the messages whose content is not
 * that of their record.
 */
export async function insertMessages(
  db: Queryable,
  messages: readonly Message[],
  origin: MessageOrigin,
  projection: string | null,
): Promise<{ readonly fresh: ReadonlySet<EventId>; readonly mismatched: readonly Message[] }> {
  if (messages.length === 0) return { fresh: new Set(), mismatched: [] };
  const { rows } = await db.query<{ event_id: EventId }>(
    `WITH input AS (
       SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bytea[], $6::bytea[])
         WITH ORDINALITY AS i(event_id, token, type, occurred_at, content_hash, body, n)
     ), new AS (
       INSERT INTO fencepost.messages (event_id, token, type, projection, state, content_hash, occurred_at)
       SELECT event_id, token, type, $8, $7, content_hash, occurred_at FROM input ORDER BY event_id
       ON CONFLICT (event_id) DO NOTHING
       RETURNING event_id
     ), bodies AS (
       INSERT INTO fencepost.message_bodies (event_id, body) SELECT event_id, body FROM input JOIN new USING (event_id)
     ), offered AS (
       INSERT INTO fencepost.outbox (event_id)
       SELECT event_id FROM input JOIN new USING (event_id) WHERE $7 = 'emitted' ORDER BY n
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
  const fresh = new Set(rows.map((row) => row.event_id));
  const known = messages.filter((message) => !fresh.has(message.eventId));
  // A statement of its own: the one above cannot see the row that won against it.
  const stored = await readContentHashes(
    db,
    known.map((message) => message.eventId),
  );
  const mismatched = known.filter(({ eventId, contentHash }) => {
    const decision = decideMessage(stored.get(eventId), contentHash);
    if (decision === "new") throw new Error(`The message ${eventId} was deleted while it was stored again.`);
    return decision === "mismatch";
  });
  return { fresh, mismatched };
}

/** Throws {@link EventContentMismatchError} for the first message that is not what its record says. */
export function refuseMismatch(mismatched: readonly Message[]): void {
  const first = mismatched[0];
  if (first) throw new EventContentMismatchError(first.eventId, first.token);
}

async function readContentHashes(
  db: Queryable,
  eventIds: readonly EventId[],
): Promise<ReadonlyMap<EventId, Buffer>> {
  if (eventIds.length === 0) return new Map();
  const { rows } = await db.query<{ event_id: EventId; content_hash: Buffer }>(
    "SELECT event_id, content_hash FROM fencepost.messages WHERE event_id = ANY($1)",
    [eventIds],
  );
  return new Map(rows.map((row) => [row.event_id, row.content_hash]));
}
