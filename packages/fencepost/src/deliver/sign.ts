import { createHmac, createPrivateKey, createSecretKey, type KeyObject, sign } from "node:crypto";
import type { RecordedAttempt } from "../store/deliveryStore.ts";
import { remembering } from "./remembering.ts";

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
  const key = keyOf(secret);
  const begin = `${eventId}.${timestamp}.`;
  if (key.type === "private") {
    return `v1a,${sign(null, Buffer.concat([Buffer.from(begin), body]), key).toString("base64")}`;
  }
  return `v1,${createHmac("sha256", key).update(begin).update(body).digest("base64")}`;
}

/** What stands before the 32 bytes of an ed25519 key in PKCS #8. */
const PKCS8_ED25519 = Buffer.from("302e020100300506032b657004220420", "hex");
const MAX_KEYS = 1_000;
/** Reading a key takes longer than signing with it. */
const keyOf = remembering(MAX_KEYS, readKey);

/** `whsec_` or `whsk_` and base64; of an ed25519 key the 32 bytes, with its public key behind them or without. */
function readKey(secret: string): KeyObject {
  if (!secret.startsWith("whsk_")) {
    return createSecretKey(Buffer.from(secret.slice("whsec_".length), "base64"));
  }
  const bytes = Buffer.from(secret.slice("whsk_".length), "base64").subarray(0, 32);
  return createPrivateKey({ key: Buffer.concat([PKCS8_ED25519, bytes]), format: "der", type: "pkcs8" });
}
