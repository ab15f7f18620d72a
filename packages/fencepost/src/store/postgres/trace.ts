import { type EventId, type FencingToken, isToken } from "@fencepost/token";
import type { AttemptOutcome, DeliveryId, DeliveryState, WebhookId } from "../deliveryStore.ts";
import type { Queryable } from "./database.ts";

export interface TracedEvent {
  readonly token: FencingToken;
  readonly stream: string;
  readonly seq: bigint;
  readonly type: string;
  readonly contractId: string | null;
  readonly txHash: string;
  readonly ledger: number;
  readonly closedAt: Date;
  readonly storedAt: Date;
  /** It was below the cursor of its stream when it came. */
  readonly late: boolean;
  /** Base64 XDR. */
  readonly topics: readonly string[];
  readonly value: string;
  /** Why it could not be decoded; null where it could. */
  readonly undecodable: string | null;
  /** How often the source gave other content under this token. */
  readonly conflicts: number;
}

/** `passed`: its cursor is beyond the event. Which events a projection has handlers for is in the config alone. */
type ProjectionStage = "waiting" | "stopped" | "skipped" | "set_aside" | "passed";

export interface TracedProjection {
  readonly name: string;
  readonly version: number;
  readonly state: "live" | "building" | "retired";
  readonly stage: ProjectionStage;
  /** Why it stopped, was skipped or was set aside. */
  readonly reason: string | null;
}

export interface TracedMessage {
  readonly eventId: EventId;
  readonly type: string;
  /** The projection that emitted it; null where a caller of `dispatch()` made it. */
  readonly projection: string | null;
  readonly state: "emitted" | "suppressed" | "dispatched" | "test";
  readonly occurredAt: Date;
  readonly createdAt: Date;
  /** It still waits for (some of) its deliveries. */
  readonly inOutbox: boolean;
  readonly deliveries: readonly TracedDelivery[];
}

export interface TracedDelivery {
  readonly id: DeliveryId;
  readonly webhookId: WebhookId;
  readonly url: string;
  readonly state: DeliveryState;
  readonly createdAt: Date;
  readonly nextAt: Date | null;
  readonly finishedAt: Date | null;
  readonly attempts: readonly TracedAttempt[];
}

export interface TracedAttempt {
  readonly number: number;
  readonly fence: bigint;
  readonly url: string;
  /** The signed one, in unix seconds. */
  readonly timestamp: bigint;
  readonly startedAt: Date;
  readonly finishedAt: Date | null;
  /** Null while it is under way, or when its worker died. */
  readonly outcome: AttemptOutcome | null;
  readonly status: number | null;
  readonly error: string | null;
  readonly response: string | null;
  /** What its worker reported after it had lost its claim. */
  readonly lateOutcome: string | null;
}

/** One event through every stage, as far as it is on record. */
export interface Trace {
  readonly token: FencingToken | null;
  readonly event: TracedEvent | null;
  readonly projections: readonly TracedProjection[];
  readonly messages: readonly TracedMessage[];
  /** More messages, deliveries or attempts are on record than are listed. */
  readonly truncated: boolean;
}

/** Messages, deliveries of all of them, and attempts that are listed, at the most. */
const LISTED = 200;

/**
 * Follows a token, an event id or a delivery id: the stored event, what the projections did with it, its messages,
 * their deliveries and attempts. An event id shows that message only, a delivery id that delivery only. Undefined
 * where nothing is on record under it.
 */
export async function readTrace(db: Queryable, id: string): Promise<Trace | undefined> {
  const delivery = await findDelivery(db, id);
  const messages = await readMessages(db, isToken(id) ? { token: id } : { eventId: delivery?.eventId ?? id });
  const token = isToken(id) ? id : (messages[0]?.token ?? null);
  const event = token === null ? null : await readEvent(db, token);
  if (!event && messages.length === 0) return undefined;

  const deliveries = await readDeliveries(
    db,
    messages.map((message) => message.eventId),
    delivery?.rowId ?? null,
  );
  const attempts = await readAttempts(
    db,
    deliveries.map((row) => row.rowId),
  );
  return {
    token,
    event,
    projections: event ? await readProjections(db, event) : [],
    messages: messages.map(({ token: _, ...message }) => ({
      ...message,
      deliveries: deliveries
        .filter((row) => row.eventId === message.eventId)
        .map(({ rowId, eventId: _, ...row }) => ({
          ...row,
          attempts: attempts
            .filter((attempt) => attempt.rowId === rowId)
            .map(({ rowId: _, ...attempt }) => attempt),
        })),
    })),
    truncated: [messages, deliveries, attempts].some((rows) => rows.length === LISTED),
  };
}

async function findDelivery(
  db: Queryable,
  id: string,
): Promise<{ rowId: bigint; eventId: EventId } | undefined> {
  const rowId = /^dlv_(\d{1,18})$/.exec(id)?.[1];
  if (rowId === undefined) return undefined;
  const { rows } = await db.query<{ rowId: bigint; eventId: EventId }>(
    'SELECT id AS "rowId", event_id AS "eventId" FROM fencepost.deliveries WHERE id = $1',
    [rowId],
  );
  return rows[0];
}

async function readMessages(
  db: Queryable,
  by: { readonly token: FencingToken } | { readonly eventId: string },
): Promise<readonly (Omit<TracedMessage, "deliveries"> & { readonly token: FencingToken | null })[]> {
  const [column, value] = "token" in by ? ["token", by.token] : ["event_id", by.eventId];
  const { rows } = await db.query<Omit<TracedMessage, "deliveries"> & { token: FencingToken | null }>(
    `SELECT event_id AS "eventId", token, type, projection, state, occurred_at AS "occurredAt",
            created_at AS "createdAt",
            EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = m.event_id) AS "inOutbox"
     FROM fencepost.messages m WHERE ${column} = $1 ORDER BY created_at, event_id LIMIT ${LISTED}`,
    [value],
  );
  return rows;
}

async function readEvent(db: Queryable, token: FencingToken): Promise<TracedEvent | null> {
  const { rows } = await db.query<TracedEvent>(
    `SELECT token, stream, seq, type, contract_id AS "contractId", tx_hash AS "txHash", ledger::int AS ledger,
            closed_at AS "closedAt", stored_at AS "storedAt", late, topics, value,
            (SELECT reason FROM fencepost.quarantine q WHERE q.token = e.token AND q.projection = '') AS undecodable,
            (SELECT count(*)::int FROM fencepost.conflicts c WHERE c.token = e.token) AS conflicts
     FROM fencepost.events e WHERE token = $1`,
    [token],
  );
  return rows[0] ?? null;
}

async function readProjections(db: Queryable, event: TracedEvent): Promise<readonly TracedProjection[]> {
  const { rows } = await db.query<TracedProjection>(
    `SELECT p.name, p.version, p.state,
            CASE WHEN p.stopped_token = $1 THEN 'stopped'
                 WHEN p.cursor < $3 THEN 'waiting'
                 WHEN s.token IS NOT NULL THEN 'skipped'
                 WHEN q.token IS NOT NULL THEN 'set_aside'
                 ELSE 'passed' END AS stage,
            CASE WHEN p.stopped_token = $1 THEN p.stopped_error
                 WHEN p.cursor >= $3 THEN coalesce(s.reason, q.reason) END AS reason
     FROM fencepost.projections p
     LEFT JOIN fencepost.skips s ON s.projection = p.name AND s.token = $1
     LEFT JOIN fencepost.quarantine q ON q.projection = p.name AND q.version = p.version AND q.token = $1
     WHERE p.stream = $2 AND NOT (p.state = 'retired' AND p.cursor < $3)
     ORDER BY p.name, p.version DESC LIMIT ${LISTED}`,
    [event.token, event.stream, event.seq],
  );
  return rows;
}

type DeliveryRow = Omit<TracedDelivery, "attempts"> & { readonly rowId: bigint; readonly eventId: EventId };

async function readDeliveries(
  db: Queryable,
  eventIds: readonly EventId[],
  only: bigint | null,
): Promise<readonly DeliveryRow[]> {
  const { rows } = await db.query<DeliveryRow>(
    `SELECT d.id AS "rowId", d.event_id AS "eventId", 'dlv_' || d.id AS id, d.webhook_id AS "webhookId", w.url, d.state,
            d.created_at AS "createdAt", d.next_at AS "nextAt", d.finished_at AS "finishedAt"
     FROM fencepost.deliveries d JOIN fencepost.webhooks w ON w.id = d.webhook_id
     WHERE d.event_id = ANY($1) AND ($2::bigint IS NULL OR d.id = $2) ORDER BY d.id LIMIT ${LISTED}`,
    [eventIds, only],
  );
  return rows;
}

async function readAttempts(
  db: Queryable,
  deliveries: readonly bigint[],
): Promise<readonly (TracedAttempt & { readonly rowId: bigint })[]> {
  const { rows } = await db.query<TracedAttempt & { readonly rowId: bigint }>(
    `SELECT delivery_id AS "rowId", number, fence, url, "timestamp", started_at AS "startedAt",
            finished_at AS "finishedAt", outcome, status, error, response, late_outcome AS "lateOutcome"
     FROM fencepost.attempts WHERE delivery_id = ANY($1) ORDER BY delivery_id, number LIMIT ${LISTED}`,
    [deliveries],
  );
  return rows;
}
