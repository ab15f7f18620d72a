import { createHmac, timingSafeEqual, verify as verifySignature } from "node:crypto";
import type { EventId } from "@fencepost/token";
import { isBytes } from "./body.ts";
import {
  BodyAlreadyReadError,
  BodyTooLargeError,
  InvalidSignatureError,
  MalformedBodyError,
  MalformedHeaderError,
  MissingHeaderError,
  StaleTimestampError,
} from "./errors.ts";
import { claimedEventId, EVENT_ID, headerValues, oneHeader, type WebhookHeaders } from "./headers.ts";
import { parseMessage, parseObject, type WebhookEnvelope, type WebhookMessage } from "./message.ts";
import { isReceiptQuery, parseReceiptQuery, RECEIPT_QUERY, type ReceiptQuery } from "./receiptQuery.ts";
import { decodeBase64, decodeSecrets, type VerificationKeys } from "./secret.ts";

/** Seconds that an attempt may be old, or ahead of the receiver's clock, unless told otherwise. */
export const DEFAULT_TOLERANCE_SECONDS = 300;

const UNIX_SECONDS = /^\d{1,12}$/;
const MAX_SIGNATURE_HEADER = 4_096;
/** v1a signatures of a request that are tried: each costs a hash of the body for each public key. */
const MAX_V1A_SIGNATURES = 8;

/** A request as it came: its headers, and its body before anything parsed it. */
export interface WebhookRequest {
  readonly headers: WebhookHeaders;
  readonly body: Uint8Array | string;
}

/**
 * Verifies a request by Standard Webhooks (v1: HMAC-SHA256, v1a: ed25519, over `id.timestamp.body`) and, only then,
 * reads its body. Pure: the clock is passed in.
 *
 * `secrets` are all that are live while a secret is rotated: `whsec_` secrets for v1, `whpk_` public keys for v1a, or
 * both. One signature by one of them is enough. `now` and
 * the attempt may be `toleranceSeconds` (300 unless given) apart, either way.
 *
 * Throws a {@link WebhookRefusedError}: MissingHeaderError, MalformedHeaderError, InvalidSignatureError,
 * StaleTimestampError, BodyAlreadyReadError (the body is not bytes), MalformedBodyError, EventIdMismatchError; and InvalidSecretError.
 */
export function verifyWebhook(
  request: WebhookRequest & {
    readonly secrets: string | readonly string[];
    readonly now: Date;
    readonly toleranceSeconds?: number;
  },
): WebhookMessage {
  const { secrets, now, toleranceSeconds = DEFAULT_TOLERANCE_SECONDS } = request;
  const keys = decodeSecrets(secrets);
  const maxBodyBytes = Number.POSITIVE_INFINITY;
  return eventOnly(verifyWithKeys(request, { keys, now, toleranceSeconds, maxBodyBytes }));
}

/** Throws {@link MalformedBodyError} for a receipt query, where only an event can be handled. */
export function eventOnly(received: WebhookMessage | ReceiptQuery): WebhookMessage {
  if (!isReceiptQuery(received)) return received;
  throw new MalformedBodyError("is a receipt query, which only a receiver answers", received.queryId);
}

/** {@link verifyWebhook} with secrets that were decoded before, and a limit: throws BodyTooLargeError too. */
export function verifyWithKeys(
  { headers, body }: WebhookRequest,
  rules: {
    readonly keys: VerificationKeys;
    readonly now: Date;
    readonly toleranceSeconds: number;
    readonly maxBodyBytes: number;
  },
): WebhookMessage | ReceiptQuery {
  const { keys, now, toleranceSeconds, maxBodyBytes } = rules;
  if (typeof body !== "string" && !isBytes(body)) throw new BodyAlreadyReadError(claimedEventId(headers));
  const raw = typeof body === "string" ? new TextEncoder().encode(body) : body;
  if (raw.length > maxBodyBytes) throw new BodyTooLargeError(maxBodyBytes, claimedEventId(headers));
  const { timestamp, signatures, ...envelope } = readHeaders(headers);
  if (!isSigned(`${envelope.eventId}.${timestamp}.`, raw, signatures, keys)) {
    throw new InvalidSignatureError(envelope.eventId);
  }
  const ageSeconds = Math.floor(now.getTime() / 1_000) - envelope.attemptTimestamp;
  // Written so that a clock or a tolerance that is not a number refuses.
  if (!(Math.abs(ageSeconds) <= toleranceSeconds)) {
    throw new StaleTimestampError(ageSeconds, toleranceSeconds, envelope.eventId);
  }
  const parsed = parseObject(raw, envelope.eventId);
  return parsed["type"] === RECEIPT_QUERY
    ? parseReceiptQuery(envelope, parsed)
    : parseMessage(envelope, raw, parsed);
}

interface SignedHeaders extends WebhookEnvelope {
  /** The text of the header: what is signed is the text, not the number. */
  readonly timestamp: string;
  readonly signatures: string;
}

function readHeaders(headers: WebhookHeaders): SignedHeaders {
  const eventId = oneHeader(headers, "webhook-id");
  if (!EVENT_ID.test(eventId)) {
    throw new MalformedHeaderError("webhook-id", "is not 1 to 256 of A-Z a-z 0-9 _ : ~ -");
  }
  const timestamp = oneHeader(headers, "webhook-timestamp", eventId);
  if (!UNIX_SECONDS.test(timestamp)) {
    throw new MalformedHeaderError("webhook-timestamp", "is not a time in Unix seconds", eventId);
  }
  const signatures = headerValues(headers, "webhook-signature").join(" ");
  if (signatures === "") throw new MissingHeaderError("webhook-signature", eventId);
  if (signatures.length > MAX_SIGNATURE_HEADER) {
    const problem = `is longer than ${MAX_SIGNATURE_HEADER} characters`;
    throw new MalformedHeaderError("webhook-signature", problem, eventId);
  }
  const [attempt = ""] = headerValues(headers, "webhook-attempt");
  return {
    eventId: eventId as EventId,
    attemptTimestamp: Number(timestamp),
    ...(/^[1-9]\d{0,8}$/.test(attempt) && { attempt: Number(attempt) }),
    timestamp,
    signatures,
  };
}

function isSigned(head: string, body: Uint8Array, signatures: string, keys: VerificationKeys): boolean {
  const given = signatures.split(/,? +/); // HTTP joins a repeated header with a comma and a space
  return isSignedV1(head, body, given, keys) || isSignedV1a(head, body, given, keys);
}

function isSignedV1(
  head: string,
  body: Uint8Array,
  given: readonly string[],
  { v1 }: VerificationKeys,
): boolean {
  const encoder = new TextEncoder();
  const macs = given.flatMap((one) => (one.startsWith("v1,") ? encoder.encode(one) : []));
  let signed = false;
  for (const key of v1) {
    const mac = createHmac("sha256", key).update(head).update(body).digest("base64");
    const expected = encoder.encode(`v1,${mac}`);
    // The text is compared, not the bytes it decodes to: base64 has several texts for the same bytes.
    for (const one of macs) {
      if (one.length === expected.length && timingSafeEqual(one, expected)) signed = true;
    }
  }
  return signed;
}

function isSignedV1a(
  head: string,
  body: Uint8Array,
  given: readonly string[],
  { v1a }: VerificationKeys,
): boolean {
  const candidates = given.filter((one) => /^v1a,[A-Za-z0-9+/]{85}[AQgw]==$/.test(one)); // one text for 64 bytes
  if (v1a.length === 0 || candidates.length === 0) return false;
  const start = new TextEncoder().encode(head);
  const content = new Uint8Array(start.length + body.length);
  content.set(start);
  content.set(body, start.length);
  return candidates
    .slice(0, MAX_V1A_SIGNATURES)
    .map((one) => decodeBase64(one.slice("v1a,".length)))
    .some((signature) => v1a.some((key) => verifySignature(null, content, key, signature)));
}
