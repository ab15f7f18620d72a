import type { EventId, FencingToken } from "@fencepost/token";
import type { DeliveryId, DeliveryState, DeliveryStore } from "../store/deliveryStore.ts";
import { type MessagePlace, readDuePairs, readMessagesAfter } from "../store/postgres/audit.ts";
import type { Database } from "../store/postgres/database.ts";
import type { Webhook } from "../store/webhook.ts";

/** A message that a webhook was due, and what became of it. */
interface WebhookEvent {
  readonly token: FencingToken;
  readonly eventId: EventId;
  readonly type: string;
  readonly occurredAt: Date;
  /** Null: it has none (yet), or its record was pruned. */
  readonly delivery: { readonly id: DeliveryId; readonly state: DeliveryState } | null;
}

export interface WebhookEventsPage {
  readonly events: readonly WebhookEvent[];
  /** Where the next page begins; null: there was no more when this was read. */
  readonly next: MessagePlace | null;
}

/** Messages that one page looks at, at the most: where few are due, it may be short, or empty, and not the last. */
const LOOKED_AT = 2_000;

/**
 * The messages with a token that a webhook was due, by its settings as they are now, in token order: the list against
 * which a receiver can reconcile. `after`: a place, exclusive; with an empty event id, from the beginning of its token.
 */
export async function readWebhookEvents(
  database: Database,
  store: Pick<DeliveryStore, "deliveriesOf">,
  webhook: Webhook,
  { after, limit }: { readonly after: MessagePlace; readonly limit: number },
): Promise<WebhookEventsPage> {
  const looked = await readMessagesAfter(database, after, null, LOOKED_AT);
  const ids = looked.map(({ eventId }) => eventId);
  const pairs = ids.length === 0 ? [] : await readDuePairs(database, ids, [webhook]);
  const due = new Set(pairs.map(({ eventId }) => eventId));
  const taken = looked.filter(({ eventId }) => due.has(eventId));
  const shown = taken.slice(0, limit);
  const events: WebhookEvent[] = [];
  for (const { token, eventId, type, occurredAt } of shown) {
    const own = (await store.deliveriesOf(eventId)).find(({ webhookId }) => webhookId === webhook.id);
    events.push({
      token,
      eventId,
      type,
      occurredAt,
      delivery: own ? { id: own.id, state: own.state } : null,
    });
  }
  const end = taken.length > limit ? shown.at(-1) : looked.length === LOOKED_AT ? looked.at(-1) : undefined;
  return { events, next: end ? { token: end.token, eventId: end.eventId } : null };
}
