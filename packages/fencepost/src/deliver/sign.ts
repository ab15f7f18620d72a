import { createHmac, createPrivateKey, type KeyObject, sign } from "node:crypto";
import type { RecordedAttempt } from "../store/deliveryStore.ts";

/** What is signed: `<id>.<timestamp>.<raw body>`. */
interface Signable {
  readonly eventId: string;
  /** Unix seconds. */
  readonly timestamp: bigint;
  readonly body: Uint8Array;
}

type SignedRequest = Signable & Pick<RecordedAttempt, "secrets" | "headers">;

/** Headers that say who sends what; those of a customer under such a name are left out. */
const RESERVED_HEADERS = new Set([
  "host",
  "content-length",
  "content-type",
  "user-agent",
  "webhook-id",
  "webhook-timestamp",
  "webhook-signature",
  "webhook-attempt",
  "idempotency-key",
  "fencing-token",
]);

/**
 * The headers of one attempt: those of a signed request, the event id once more as `idempotency-key`, the fencing
 * token, and the number of the attempt for logs.
 */
export function attemptHeaders(
  attempt: SignedRequest & Pick<RecordedAttempt, "number" | "token">,
): Record<string, string> {
  return {
    ...signedHeaders(attempt),
    "webhook-attempt": attempt.number.toString(),
    "idempotency-key": attempt.eventId,
    ...(attempt.token !== null && { "fencing-token": attempt.token }),
  };
}

/** Standard Webhooks (id, timestamp, a signature for each secret), beside the customer's own headers. */
export function signedHeaders(request: SignedRequest): Record<string, string> {
  return {
    ...customHeaders(request.headers),
    "content-type": "application/json",
    "user-agent": "fencepost",
    "webhook-id": request.eventId,
    "webhook-timestamp": request.timestamp.toString(),
    "webhook-signature": request.secrets.map((secret) => signatureOf(secret, request)).join(" "),
  };
}

function customHeaders(headers: SignedRequest["headers"]): Record<string, string> {
  const named = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value] as const);
  return Object.fromEntries(named.filter(([name]) => !RESERVED_HEADERS.has(name)));
}

/** `v1,…` by a `whsec_` secret (HMAC-SHA256), `v1a,…` by a `whsk_` key (ed25519). */
export function signatureOf(secret: string, { eventId, timestamp, body }: Signable): string {
  const begin = `${eventId}.${timestamp}.`;
  if (secret.startsWith("whsk_")) {
    return `v1a,${sign(null, Buffer.concat([Buffer.from(begin), body]), privateKey(secret)).toString("base64")}`;
  }
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  return `v1,${createHmac("sha256", key).update(begin).update(body).digest("base64")}`;
}

/** What stands before the 32 bytes of an ed25519 key in PKCS #8. */
const PKCS8_ED25519 = Buffer.from("302e020100300506032b657004220420", "hex");
const MAX_KEYS = 1_000;
/** Reading a key takes as long as signing with it. */
const privateKeys = new Map<string, KeyObject>();

/** `whsk_` and the base64 of 32 bytes of key, with its public key behind them or without. */
function privateKey(secret: string): KeyObject {
  const known = privateKeys.get(secret);
  if (known) return known;
  const bytes = Buffer.from(secret.slice("whsk_".length), "base64").subarray(0, 32);
  const key = createPrivateKey({ key: Buffer.concat([PKCS8_ED25519, bytes]), format: "der", type: "pkcs8" });
  if (privateKeys.size >= MAX_KEYS) privateKeys.clear();
  privateKeys.set(secret, key);
  return key;
}
