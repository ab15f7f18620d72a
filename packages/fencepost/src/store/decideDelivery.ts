// What a delivery does next: values in, values out. The stores and the exhaustive check import it.
import type { AttemptOutcome, AttemptResult, OnUnknown } from "./deliveryStore.ts";

/**
 * Delays before the second, third, … attempt, in milliseconds: 5 s, 5 m, 30 m, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h,
 * as Standard Webhooks suggests. After the last one a delivery has failed.
 */
export const RETRY_SCHEDULE_MS: readonly number[] = [
  5_000,
  ...[5, 30].map((minutes) => minutes * 60_000),
  ...[2, 5, 10, 14, 20, 24].map((hours) => hours * 3_600_000),
];

/** A Retry-After longer than this is cut to it. */
export const MAX_RETRY_AFTER_MS = 24 * 3_600_000;

export interface DeliveryPolicy {
  readonly onUnknown: OnUnknown;
  readonly retryScheduleMs: readonly number[];
}

export type NextStep =
  | { readonly state: "success" | "in_doubt" }
  | { readonly state: "pending"; readonly delayMs: number }
  | { readonly state: "failed"; readonly disableWebhook: boolean };

/** True where a later write of a claim may count: nobody else has claimed the delivery since. */
export function holdsClaim(storedFence: bigint | null | undefined, fence: bigint): boolean {
  return storedFence === fence;
}

/** What a worker does with what it claimed: an attempt without an outcome is settled first, never repeated. */
export function decideClaimed(claim: { readonly interrupted: boolean }): "attempt" | "settle_unknown" {
  return claim.interrupted ? "settle_unknown" : "attempt";
}

/** The result of an attempt whose worker died, or lost its claim, before it recorded one. */
export const INTERRUPTED: AttemptResult = {
  outcome: "unknown",
  status: null,
  error: "The worker stopped before it recorded an answer; whether the endpoint got the bytes is not known.",
  response: null,
  retryAfterMs: null,
};

/**
 * What follows from an attempt. `tries` counts the attempts since the last redeliver, this one included;
 * `random` is in [0, 1) and spreads the delay evenly over [d/2, d).
 */
export function decideOutcome(
  result: Pick<AttemptResult, "outcome" | "status" | "retryAfterMs">,
  tries: number,
  policy: DeliveryPolicy,
  random: number,
): NextStep {
  if (result.outcome === "delivered") return { state: "success" };
  if (result.outcome === "unknown" && policy.onUnknown === "hold") return { state: "in_doubt" };
  const repeatable = isRepeatable(result.outcome, result.status);
  // Under hold a rejected request is final too: only bytes that never left are sent again.
  const allowed = policy.onUnknown === "hold" ? result.outcome === "not_sent" : repeatable;
  const delay = policy.retryScheduleMs[tries - 1];
  if (!allowed || delay === undefined)
    return { state: "failed", disableWebhook: result.outcome === "rejected" && result.status === 410 };
  const half = Math.floor(delay / 2);
  const jittered = delay - half + Math.floor(random * half);
  const wish = Math.min(result.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
  return { state: "pending", delayMs: Math.max(jittered, wish) };
}

function isRepeatable(outcome: AttemptOutcome, status: number | null): boolean {
  if (outcome !== "rejected") return true;
  return status === 408 || status === 425 || status === 429 || (status !== null && status >= 500);
}
