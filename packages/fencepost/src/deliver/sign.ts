import { createHmac } from "node:crypto";
import type { RecordedAttempt } from "../store/deliveryStore.ts";

/**
 * The headers of one attempt: Standard Webhooks (id, timestamp, a signature for each secret), the event id once
 * more as `idempotency-key`, the fencing token, and the number of the attempt for logs.
 */
export function attemptHeaders(attempt: RecordedAttempt): Record<string, string> {
  return {
    "content-type": "application/json",
    "user-agent": "fencepost",
    "webhook-id": attempt.eventId,
    "webhook-timestamp": attempt.timestamp.toString(),
    "webhook-signature": attempt.secrets.map((secret) => signV1(secret, attempt)).join(" "),
    "webhook-attempt": attempt.number.toString(),
    "idempotency-key": attempt.eventId,
    ...(attempt.token !== null && { "fencing-token": attempt.token }),
  };
}

/** HMAC-SHA256 over `<id>.<timestamp>.<raw body>`, as `v1,<base64>`. */
export function signV1(
  secret: string,
  {
    eventId,
    timestamp,
    body,
  }: { readonly eventId: string; readonly timestamp: bigint; readonly body: Uint8Array },
): string {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const signature = createHmac("sha256", key)
    .update(`${eventId}.${timestamp}.`)
    .update(body)
    .digest("base64");
  return `v1,${signature}`;
}
