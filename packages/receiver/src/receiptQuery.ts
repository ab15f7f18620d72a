import type { EventId } from "@fencepost/token";
import type { ReceiptStatus } from "./decide.ts";
import { MalformedBodyError } from "./errors.ts";
import { EVENT_ID } from "./headers.ts";
import type { WebhookEnvelope, WebhookMessage } from "./message.ts";

/** The `type` of a body that asks for receipts. */
export const RECEIPT_QUERY = "webhook.receipt_query";

const MAX_EVENTS = 500;
/** A time of an attempt that is further ahead of the query's own, in seconds, is in another unit. */
const MAX_AHEAD_SECONDS = 3_600;

/** A verified request of the sender, who lost an answer and asks which events this receiver has. */
export interface ReceiptQuery {
  readonly type: typeof RECEIPT_QUERY;
  /** The `webhook-id` of the request. */
  readonly queryId: string;
  /** Whose inbox is asked, if the sender says so. */
  readonly consumer?: string;
  /** 1 to 500, each once. */
  readonly events: readonly AskedEvent[];
}

/** One event of a query. */
export interface AskedEvent {
  readonly eventId: EventId;
  /** The signed time of the last attempt so far, in Unix seconds: the fence refuses this one and those before. */
  readonly before: number;
}

/** The answer to a query, as it goes over the wire. */
export interface ReceiptAnswer {
  readonly consumer: string;
  /**
   * ISO 8601: what was received of an event that was first attempted at this time or later, by the sender's
   * clock, is known. What was attempted earlier may be forgotten. Null if nothing ever was forgotten.
   */
  readonly retained_since: string | null;
  /** In the order of the query. */
  readonly events: readonly { readonly event_id: EventId; readonly status: ReceiptStatus }[];
}

/** True for a query, false for an event. */
export function isReceiptQuery(received: WebhookMessage | ReceiptQuery): received is ReceiptQuery {
  return "queryId" in received;
}

/** Reads the verified body of a query. Throws {@link MalformedBodyError}. */
export function parseReceiptQuery(envelope: WebhookEnvelope, body: Record<string, unknown>): ReceiptQuery {
  const { eventId: queryId, attemptTimestamp } = envelope;
  const { consumer, events } = body;
  if (consumer !== undefined && consumer !== null && typeof consumer !== "string") {
    throw new MalformedBodyError("has a consumer that is not a text", queryId);
  }
  if (!Array.isArray(events) || events.length < 1 || events.length > MAX_EVENTS) {
    throw new MalformedBodyError(`has no list of 1 to ${MAX_EVENTS} events`, queryId);
  }
  const latest = attemptTimestamp + MAX_AHEAD_SECONDS;
  const asked = events.map((event: unknown) => parseAsked(event, latest, queryId));
  if (new Set(asked.map(({ eventId }) => eventId)).size < asked.length) {
    throw new MalformedBodyError("names an event twice", queryId);
  }
  return { type: RECEIPT_QUERY, queryId, ...(typeof consumer === "string" && { consumer }), events: asked };
}

function parseAsked(event: unknown, latest: number, queryId: EventId): AskedEvent {
  const { event_id, before }: { event_id?: unknown; before?: unknown } = Object(event);
  if (typeof event_id !== "string" || !EVENT_ID.test(event_id)) {
    throw new MalformedBodyError("names an event without an event_id", queryId);
  }
  if (typeof before !== "number" || !Number.isSafeInteger(before) || before < 0 || before > latest) {
    throw new MalformedBodyError("names an event without the Unix seconds of an attempt as before", queryId);
  }
  return { eventId: event_id as EventId, before };
}
