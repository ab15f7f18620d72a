import { createHmac } from "node:crypto";
import type { WebhookRequest } from "../index.ts";

/** A secret of the spec's example. */
export const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/** Another one, of 32 bytes. */
export const OTHER_SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
/** The time of an attempt, in Unix seconds, and the clock at that time. */
export const ATTEMPT_TIME = 1_781_828_486;
export const NOW = new Date(ATTEMPT_TIME * 1_000);

export interface SignedRequest extends WebhookRequest {
  readonly headers: Record<string, string>;
  readonly body: Buffer<ArrayBuffer>;
}

/** Signs as the text of Standard Webhooks 1.0.0 says, sharing no code with the receiver. */
export function signedRequest(parts: {
  readonly id?: string;
  readonly body?: Uint8Array | string;
  readonly timestamp?: number;
  readonly secrets?: readonly string[];
}): SignedRequest {
  const { id = "evt_1", timestamp = ATTEMPT_TIME, secrets = [SECRET] } = parts;
  const body = Buffer.from(parts.body ?? messageBody(id));
  const content = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  const signatures = secrets.map((secret) => {
    const key = Buffer.from(secret.slice("whsec_".length), "base64");
    return `v1,${createHmac("sha256", key).update(content).digest("base64")}`;
  });
  const headers = {
    "content-type": "application/json",
    "webhook-id": id,
    "webhook-timestamp": String(timestamp),
    "webhook-signature": signatures.join(" "),
    "webhook-attempt": "1",
  };
  return { headers, body };
}

/** A body as Fencepost sends it. */
export function messageBody(
  id: string,
  data: unknown = { amount: "170141183460469231731687303715884105727" },
) {
  return JSON.stringify({
    type: "pool.assets_locked",
    event_id: id,
    fencing_token: "testnet-20251217-0063092990-0000027-0006-0000000002",
    timestamp: "2026-06-19T00:21:26Z",
    data,
    source: { network: "testnet", contract_id: "CABC", ledger: 63_092_990, tx_hash: "ab".repeat(32) },
  });
}
