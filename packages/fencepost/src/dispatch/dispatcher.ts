import { randomBytes } from "node:crypto";
import { asCallerEventId, asToken, type EventId, testEventId } from "@fencepost/token";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import { buildMessage } from "../message/payload.ts";
import type { Delivery, DeliveryId, DeliveryStore, Webhook, WebhookId } from "../store/deliveryStore.ts";
import { UnknownDeliveryError, UnknownWebhookError } from "./errors.ts";
import { readWebhookInput, type WebhookInput } from "./webhookInput.ts";

/** What a caller of `dispatch()` hands in. */
export interface DispatchInput {
  readonly event_type: string;
  /** The caller's own id of the event: 1 to 256 of `A-Z a-z 0-9 _ : ~ -`. The same id never makes two deliveries. */
  readonly event_id: string;
  readonly data: unknown;
  /** Where the caller has one. It is carried unchanged. */
  readonly fencing_token?: string;
}

export interface Dispatcher<Tx> {
  /**
   * One delivery for each active webhook of this type: those made now, and the existing ones for pairs that
   * exist, whatever their state, sending nothing. With `tx` it is part of the caller's own transaction.
   *
   * Throws `InvalidTokenError`, `InvalidMessageError`, or `EventContentMismatchError` for an event id that is on
   * record with other content.
   */
  dispatch(input: DispatchInput, options?: { readonly tx?: Tx }): Promise<readonly Delivery[]>;
  /** Sends a `webhook.test` message to one webhook, under an id of the test space. */
  sendTest(webhookId: string): Promise<Delivery>;
  /** Sends again what ended, with the same ids and bytes; what is pending is returned as it is. */
  redeliver(deliveryId: string): Promise<Delivery>;
  addWebhook(input: WebhookInput): Promise<Webhook>;
  listWebhooks(): Promise<readonly Webhook[]>;
}

export interface DispatcherOptions<Tx> extends AddressRuleOptions {
  readonly store: DeliveryStore<Tx>;
  /** The time of messages that callers hand in. */
  readonly now: () => Date;
}

export function createDispatcher<Tx>(options: DispatcherOptions<Tx>): Dispatcher<Tx> {
  const { store, now } = options;
  const addressRules = readAddressRules(options);
  const occurredAt = (): string => now().toISOString();
  return {
    async dispatch({ event_type, event_id, data, fencing_token }, options = {}) {
      const message = buildMessage({
        eventId: asCallerEventId(event_id),
        type: event_type,
        token: fencing_token === undefined ? null : asToken(fencing_token),
        occurredAt: occurredAt(),
        data,
      });
      return store.dispatch(message, options);
    },
    async sendTest(webhookId) {
      const webhook = await store.findWebhook(webhookId as WebhookId);
      if (!webhook) throw new UnknownWebhookError(webhookId);
      const eventId: EventId = testEventId(randomBytes(16));
      const data = { webhook_id: webhook.id };
      const message = buildMessage({
        eventId,
        type: "webhook.test",
        token: null,
        occurredAt: occurredAt(),
        data,
      });
      const [delivery] = await store.dispatch(message, { only: webhook.id });
      if (!delivery) throw new UnknownWebhookError(webhookId);
      return delivery;
    },
    async redeliver(deliveryId) {
      const delivery = await store.redeliver(deliveryId as DeliveryId);
      if (!delivery) throw new UnknownDeliveryError(deliveryId);
      return delivery;
    },
    addWebhook: async (input) => store.addWebhook(readWebhookInput(input, addressRules)),
    listWebhooks: () => store.listWebhooks(),
  };
}
