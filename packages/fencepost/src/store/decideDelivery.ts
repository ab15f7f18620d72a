// What a delivery does next: values in, values out. The deliver stage and the exhaustive check import it.
import type {
  AttemptOutcome,
  AttemptResult,
  ClaimedDelivery,
  DeliveryPolicy,
  NextStep,
} from "./deliveryStore.ts";

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

/** True for a doubt that only a person can end. */
export function waitsForPerson(next: NextStep): boolean {
  return next.state === "in_doubt" && next.askInMs === null;
}

/** What a worker does with what it claimed: an attempt without an outcome is settled first, never repeated. */
export function decideClaimed({
  interrupted,
  asking,
}: Pick<ClaimedDelivery, "interrupted" | "asking">): "attempt" | "settle_unknown" | "ask" {
  if (asking) return "ask";
  return interrupted ? "settle_unknown" : "attempt";
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
 * `random` is in [0, 1) and spreads the delay evenly over [d - d × jitter, d). `fenced`: the receiver refused an
 * old copy of this event, which is sent again.
 */
export function decideOutcome(
  result: Pick<AttemptResult, "outcome" | "status" | "retryAfterMs"> & { readonly fenced?: boolean },
  tries: number,
  policy: DeliveryPolicy,
  random: number,
): NextStep {
  if (result.outcome === "delivered") return { state: "success" };
  if (result.outcome === "unknown" && policy.onUnknown === "hold")
    return { state: "in_doubt", askInMs: null };
  if (result.outcome === "unknown" && policy.onUnknown === "ask") return { state: "in_doubt", askInMs: 0 };
  const repeatable = result.fenced === true || isRepeatable(result.outcome, result.status, policy);
  // Under hold a rejected request is final too: only bytes that never left are sent again.
  const allowed = policy.onUnknown === "hold" ? result.outcome === "not_sent" : repeatable;
  const delayMs = retryDelay(tries, policy, random);
  if (!allowed || delayMs === null)
    return { state: "failed", disableWebhook: result.outcome === "rejected" && result.status === 410 };
  const wish = Math.min(result.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
  return { state: "pending", delayMs: Math.max(delayMs, wish) };
}

/** What an endpoint said about one event; `none`: no answer that can be read. */
export type ReceiptAnswer = "received" | "in_progress" | "fenced" | "none";

/**
 * What follows from asking an endpoint. A `fenced` is believed only where the receiver's memory goes back to the
 * first attempt (`remembered`): what it has pruned, it cannot tell from what it never got, so that a person decides.
 * `asks` counts the questions since the last attempt, this one included.
 */
export function decideAnswer(
  answer: ReceiptAnswer,
  {
    tries,
    asks,
    remembered,
  }: { readonly tries: number; readonly asks: number; readonly remembered: boolean },
  policy: DeliveryPolicy,
  random: number,
): NextStep {
  if (answer === "received") return { state: "success" };
  if (answer === "fenced" && !remembered) return { state: "in_doubt", askInMs: null };
  if (answer === "fenced") {
    const isLast = policy.retryScheduleMs[tries - 1] === undefined;
    return isLast ? { state: "failed", disableWebhook: false } : { state: "pending", delayMs: 0 };
  }
  return { state: "in_doubt", askInMs: retryDelay(asks, policy, random) };
}

/** The delay after so many tries, spread by the policy's jitter; null: there are no more. */
function retryDelay(
  tries: number,
  { retryScheduleMs, jitter }: DeliveryPolicy,
  random: number,
): number | null {
  const delay = retryScheduleMs[tries - 1];
  if (delay === undefined) return null;
  const spread = Math.floor(delay * jitter);
  return delay - spread + Math.floor(random * spread);
}

function isRepeatable(outcome: AttemptOutcome, status: number | null, { retryOn }: DeliveryPolicy): boolean {
  if (outcome !== "rejected") return true;
  if (retryOn === "all") return status !== 410;
  return status === 408 || status === 425 || status === 429 || (status !== null && status >= 500);
}
