// What a receiver decides: values in, values out. Production and an exhaustive check import the same rules.
import { compareTokens, type FencingToken } from "@fencepost/token";

/** What the inbox holds for `(consumer, event id)`, read and claimed in one step. */
export type InboxState = "absent" | "present";

/** What follows: run the handler, answer that the event was handled before, or refuse the attempt. */
export type ReceiptDecision = "apply" | "already" | "fenced";

/**
 * Decides what a receiver does with a verified attempt of an event. An attempt that was fenced off is refused, whatever
 * became of the event since: one signed at `fencedBefore` (if the event has a fence) or earlier. An event that is in the
 * inbox is never applied again. Both times are in Unix seconds, as the sender signed them.
 */
export function decideReceipt(
  inbox: InboxState,
  attemptTimestamp = 0,
  fencedBefore?: number,
): ReceiptDecision {
  // Written so that a time that is not a number is refused.
  if (fencedBefore !== undefined && !(attemptTimestamp > fencedBefore)) return "fenced";
  return inbox === "present" ? "already" : "apply";
}

/** What a receiver says of an event that the sender asks for. */
export type ReceiptStatus = "received" | "in_progress" | "fenced";

/**
 * Decides the answer to a receipt query for one event. `running`: the key of the event is held by a transaction
 * that has not ended. `fenced` may be said only after the fence is stored, while the key is held.
 */
export function decideQuery(found: InboxState | "running"): ReceiptStatus {
  if (found === "present") return "received";
  return found === "running" ? "in_progress" : "fenced";
}

/** How a token stands to the last one that was applied to the same key: `stale` is that one again, or one before. */
export type TokenOrder = "newer" | "stale";

/** Decides whether a state may take the event of `token`. Throws IncomparableTokensError for two streams. */
export function decideLatest(last: FencingToken | null, token: FencingToken): TokenOrder {
  return last === null || compareTokens(token, last) > 0 ? "newer" : "stale";
}
