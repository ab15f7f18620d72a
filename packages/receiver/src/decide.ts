/** What the inbox holds for `(consumer, event id)`, read and claimed in one step. */
export type InboxState = "absent" | "present";

/** What follows: run the handler, or answer that the event was handled before. */
export type ReceiptDecision = "apply" | "already";

/**
 * Decides what a receiver does with a verified event. Pure, so that production and an exhaustive check run the
 * same rule: an event that is in the inbox is never applied again.
 */
export function decideReceipt(inbox: InboxState): ReceiptDecision {
  return inbox === "absent" ? "apply" : "already";
}
