import { type EventId, type FencingToken, isToken } from "@fencepost/token";
import type { Attempt, Delivery, DeliveryId, DeliveryStore } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import type { Queryable } from "./database.ts";

export interface TracedEvent {
  readonly token: FencingToken;
  readonly stream: string;
  readonly seq: bigint;
  readonly type: string;
  readonly contractId: string | null;
  /** The rules by which the contract was found. */
  readonly foundBy: readonly string[];
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
  /** Null, as is what follows, where the message itself is kept with its deliveries, outside PostgreSQL. */
  readonly type: string | null;
  /** The projection that emitted it; null where a caller of `dispatch()` made it. */
  readonly projection: string | null;
  readonly state: "emitted" | "suppressed" | "dispatched" | "test" | null;
  readonly occurredAt: Date | null;
  readonly createdAt: Date | null;
  /** It still waits for (some of) its deliveries. */
  readonly inOutbox: boolean;
  readonly deliveries: readonly TracedDelivery[];
}

export interface TracedDelivery extends Omit<Delivery, "attempts"> {
  /** Where its webhook sends to now; null where that was deleted. */
  readonly url: string | null;
  /** The oldest first. */
  readonly attempts: readonly Attempt[];
}

/** One event through every stage, as far as it is on record. */
export interface Trace {
  readonly token: FencingToken | null;
  readonly event: TracedEvent | null;
  readonly projections: readonly TracedProjection[];
  readonly messages: readonly TracedMessage[];
  /** More messages or deliveries are on record than are listed. */
  readonly truncated: boolean;
}

/** Messages, and deliveries of all of them, that are listed, at the most. */
const LISTED = 200;

/** Deliveries and attempts, wherever they live. */
export type TraceStore = Pick<
  DeliveryStore,
  "findDelivery" | "deliveriesOf" | "listAttempts" | "findWebhook"
>;

/**
 * Follows a token, an event id or a delivery id: the stored event, what the projections did with it, its messages,
 * their deliveries and attempts. An event id shows that message only, a delivery id that delivery only. Undefined
 * where nothing is on record under it.
 */
export async function readTrace(db: Queryable, store: TraceStore, id: string): Promise<Trace | undefined> {
  const only = id.startsWith("dlv_") ? await store.findDelivery(id as DeliveryId) : undefined;
  const eventId = only?.eventId ?? (id as EventId);
  const found = await readMessages(db, isToken(id) ? { token: id } : { eventId });
  const rows = found.length > 0 || isToken(id) ? found : [{ ...ELSEWHERE, eventId }];
  const token = isToken(id) ? id : (rows[0]?.token ?? null);
  const event = token === null ? null : await readEvent(db, token);

  const messages: TracedMessage[] = [];
  let listed = 0;
  let truncated = rows.length === LISTED;
  for (const { token: _, ...message } of rows) {
    const all = only ? [only] : await store.deliveriesOf(message.eventId);
    const shown = all.slice(0, LISTED - listed);
    listed += shown.length;
    truncated ||= shown.length < all.length;
    messages.push({ ...message, deliveries: await readDeliveries(store, shown) });
  }
  if (!event && listed === 0 && found.length === 0) return undefined;
  return { token, event, projections: event ? await readProjections(db, event) : [], messages, truncated };
}

/** A message that is not on record in PostgreSQL: it may be kept with its deliveries. */
const ELSEWHERE = {
  token: null,
  type: null,
  projection: null,
  state: null,
  occurredAt: null,
  createdAt: null,
  inOutbox: false,
} as const;

/** One after the other: a trace may take its time, and must not take every connection. */
async function readDeliveries(
  store: TraceStore,
  deliveries: readonly Delivery[],
): Promise<readonly TracedDelivery[]> {
  const urls = new Map<WebhookId, string | null>();
  const traced: TracedDelivery[] = [];
  for (const delivery of deliveries) {
    const { id, webhookId } = delivery;
    if (!urls.has(webhookId)) urls.set(webhookId, (await store.findWebhook(webhookId))?.url ?? null);
    traced.push({ ...delivery, url: urls.get(webhookId) ?? null, attempts: await store.listAttempts(id) });
  }
  return traced;
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
            ARRAY(SELECT rule FROM fencepost.discoveries d
                  WHERE d.contract_id = e.contract_id AND d.stream = e.stream AND d.ledger <= e.ledger
                    AND d.epoch = split_part(e.token, '-', 2)) AS "foundBy",
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
