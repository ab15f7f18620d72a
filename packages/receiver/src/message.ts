import { type EventId, type FencingToken, isToken } from "@fencepost/token";
import { EventIdMismatchError, MalformedBodyError } from "./errors.ts";

/** A verified webhook. */
export interface WebhookMessage {
  /** The same over all retries and redeliveries: what the inbox deduplicates by. */
  readonly eventId: EventId;
  /** For example `pool.assets_locked`. */
  readonly type: string;
  /** Identity and order of the event at its source; orders the events of one stream. */
  readonly fencingToken?: FencingToken;
  /** When the event happened: for a chain event, the close time of its ledger. */
  readonly timestamp: Date;
  /** When this attempt was made, in Unix seconds; signed, and later for each attempt of a delivery. */
  readonly attemptTimestamp: number;
  /** The number of this attempt, from 1. Not signed: for logs only. */
  readonly attempt?: number;
  /** The payload as JSON gives it. Integers beyond 2^53 are strings of digits. Check it before use. */
  readonly data: unknown;
  /** Where the event happened on its chain. */
  readonly source?: WebhookSource;
  /** The body, byte for byte as it was signed. */
  readonly raw: Uint8Array;
}

/** Where an event happened on its chain, as far as the sender says. */
export interface WebhookSource {
  readonly network?: string;
  readonly contractId?: string;
  readonly ledger?: number;
  readonly txHash?: string;
}

/** What the headers of a request say; the first two are signed. */
export interface WebhookEnvelope {
  readonly eventId: EventId;
  readonly attemptTimestamp: number;
  readonly attempt?: number;
}

/**
 * Makes the message of a verified body, which is `raw` as JSON. Throws {@link MalformedBodyError},
 * {@link EventIdMismatchError}.
 */
export function parseMessage(
  envelope: WebhookEnvelope,
  raw: Uint8Array,
  body: Record<string, unknown>,
): WebhookMessage {
  const { eventId } = envelope;
  const { event_id, type, timestamp, fencing_token, source, data } = body;
  if (event_id !== undefined && event_id !== eventId)
    throw new EventIdMismatchError(String(event_id), eventId);
  if (typeof type !== "string" || type === "") throw new MalformedBodyError("has no type", eventId);
  const time = new Date(typeof timestamp === "string" ? timestamp : Number.NaN);
  if (Number.isNaN(time.getTime())) throw new MalformedBodyError("has no ISO 8601 timestamp", eventId);
  if (fencing_token !== undefined && !isToken(fencing_token)) {
    throw new MalformedBodyError("has a fencing_token that is not one", eventId);
  }
  return {
    ...envelope,
    type,
    ...(fencing_token !== undefined && { fencingToken: fencing_token }),
    timestamp: time,
    data,
    ...(isObject(source) && { source: parseSource(source) }),
    raw,
  };
}

/** Reads a verified body, which is a JSON object. Throws {@link MalformedBodyError}. */
export function parseObject(raw: Uint8Array, eventId: EventId): Record<string, unknown> {
  let body: unknown;
  try {
    body = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw));
  } catch {
    throw new MalformedBodyError("is not JSON in UTF-8", eventId);
  }
  if (!isObject(body)) throw new MalformedBodyError("is not a JSON object", eventId);
  return body;
}

// A sender of another kind of chain has other fields: what is not of the known form is left out, not refused.
function parseSource({ network, contract_id, ledger, tx_hash }: Record<string, unknown>): WebhookSource {
  return {
    ...(typeof network === "string" && { network }),
    ...(typeof contract_id === "string" && { contractId: contract_id }),
    ...(typeof ledger === "number" && { ledger }),
    ...(typeof tx_hash === "string" && { txHash: tx_hash }),
  };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
