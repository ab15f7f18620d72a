// What scripts return, as values. A number may be missing, which is null.
import type { EventId } from "@fencepost/token";
import type { Delivery, DeliveryId, DeliveryState } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";

export type DeliveryReply = readonly [
  id: DeliveryId,
  eventId: EventId,
  webhookId: WebhookId,
  state: DeliveryState,
  attempts: number,
  lastStatus: number | null,
  lastError: string | null,
  nextAt: number | null,
  blockedBy: DeliveryId | null,
  createdAt: number,
  finishedAt: number | null,
];

export function toDelivery(reply: DeliveryReply): Delivery {
  const [
    id,
    eventId,
    webhookId,
    state,
    attempts,
    lastStatus,
    lastError,
    nextAt,
    blockedBy,
    createdAt,
    finishedAt,
  ] = reply;
  return {
    id,
    eventId,
    webhookId,
    state,
    attempts,
    lastStatus,
    lastError,
    nextAt: toDate(nextAt),
    blockedBy,
    createdAt: new Date(createdAt),
    finishedAt: toDate(finishedAt),
  };
}

export function toDate(ms: number | null): Date | null {
  return ms === null ? null : new Date(ms);
}

/** A text that may be missing, as scripts read it. */
export function optional(text: string | null): string {
  return text === null ? "" : `+${text}`;
}
