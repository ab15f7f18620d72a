import { randomBytes } from "node:crypto";
import { asCallerEventId, asToken, type EventId, testEventId } from "@fencepost/token";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import { buildMessage, InvalidMessageError } from "../message/payload.ts";
import type { Log } from "../observe/log.ts";
import type {
  Attempt,
  Delivery,
  DeliveryFilter,
  DeliveryId,
  DeliveryStore,
  DispatchReport,
  Page,
  ReplayReport,
  Resolution,
} from "../store/deliveryStore.ts";
import type { Missed, Webhook, WebhookChanges, WebhookId } from "../store/webhook.ts";
import {
  DeletedWebhookError,
  InactiveWebhookError,
  InvalidRangeError,
  UnknownDeliveryError,
  UnknownWebhookError,
} from "./errors.ts";
import {
  newSecret,
  readSecret,
  readWebhookChanges,
  readWebhookInput,
  type WebhookInput,
} from "./webhookInput.ts";

/** What a caller of `dispatch()` hands in. */
export interface DispatchInput {
  /** Not one of the system's own, `webhook.…`. */
  readonly event_type: string;
  /** The caller's own id of the event: 1 to 256 of `A-Z a-z 0-9 _ : ~ -`. The same id never makes two deliveries. */
  readonly event_id: string;
  readonly data: unknown;
  /** Where the caller has one. It is carried unchanged. */
  readonly fencing_token?: string;
}

/** Messages of a time, the first included and the last not. */
export interface ReplayRange {
  readonly from: Date;
  readonly to: Date;
  /** `next` of the report before it, to go on. */
  readonly after?: string;
  /** Messages looked at in one call, at the most; 100,000 unless given. */
  readonly maxMessages?: number;
}

/** How a secret is rotated. */
export interface RotateOptions {
  /** One is made when left out. */
  readonly secret?: string;
  /** How long the earlier ones still sign, in milliseconds; a day unless given. */
  readonly overlapMs?: number;
}

/** What is made and asked for: everything but the sending. Every method throws `UnknownWebhookError` and the like. */
export interface Dispatcher<Tx> {
  /**
   * One delivery for each active webhook that takes the message: those made now, the existing ones for pairs that
   * exist (whatever their state, sending nothing), and the webhooks of which it cannot be known. With `tx` it is part
   * of the caller's own transaction.
   *
   * Throws `InvalidTokenError`, `InvalidMessageError`, or `EventContentMismatchError` for an event id that is on
   * record with other content.
   */
  dispatch(input: DispatchInput, options?: { readonly tx?: Tx }): Promise<DispatchReport>;
  /** Sends a `webhook.test` message to one webhook, under an id of the test space: a new one unless given. */
  sendTest(webhookId: string, eventId?: EventId): Promise<Delivery>;
  /** Makes the missing deliveries of one webhook. `next` is null once the whole range was looked at. */
  replay(webhookId: string, range: ReplayRange): Promise<ReplayReport>;

  /** Under a new id unless one is given: that is there already, its webhook is returned as it is. */
  addWebhook(input: WebhookInput, id?: WebhookId): Promise<Webhook>;
  getWebhook(webhookId: string): Promise<Webhook>;
  /** By id. */
  listWebhooks(page?: Partial<Page>): Promise<readonly Webhook[]>;
  /** Changes what is named. It holds for every attempt from now on, of older deliveries too. */
  updateWebhook(webhookId: string, changes: WebhookChanges): Promise<Webhook>;
  /** Signs with a new secret from now on, and with the earlier ones until the overlap has ended. */
  rotateSecret(webhookId: string, options?: RotateOptions): Promise<Webhook>;
  /** Skips what it missed, unless told otherwise, and says how much that was; 10,000: or more. */
  activateWebhook(
    webhookId: string,
    missed?: Missed,
  ): Promise<{ readonly webhook: Webhook; readonly missed: number }>;
  /** Makes nothing for it and sends nothing to it until it is activated. What is pending waits. */
  pauseWebhook(webhookId: string, reason?: string): Promise<Webhook>;
  /** Fails what is pending, for good. */
  deleteWebhook(webhookId: string): Promise<void>;

  getDelivery(deliveryId: string): Promise<Delivery>;
  /** Of one webhook, the newest first. */
  listDeliveries(
    webhookId: string,
    filter?: DeliveryFilter,
    page?: Partial<Page>,
  ): Promise<readonly Delivery[]>;
  /** The oldest first, up to 1,000. */
  listAttempts(deliveryId: string): Promise<readonly Attempt[]>;
  /** Sends again what ended, with the same ids and bytes; what is pending is returned as it is. */
  redeliver(deliveryId: string): Promise<Delivery>;
  /** Settles what is in doubt or failed; any other state is returned as it is. */
  resolve(deliveryId: string, resolution: Resolution): Promise<Delivery>;
}

export interface DispatcherOptions<Tx> extends AddressRuleOptions {
  readonly store: DeliveryStore<Tx>;
  /** The time of messages that callers hand in. */
  readonly now: () => Date;
  /** Where a message that no webhook takes is told. */
  readonly log?: Log;
}

const DAY_MS = 86_400_000;
const PAGE_LIMIT = 100;
const REPLAY_PAGE = 1_000;
const REPLAYED_AT_ONCE = 100_000;
/** Names that one report of a replay holds, at the most: with so many it ends. */
const MAX_NAMED = 10_000;

export function createDispatcher<Tx>(options: DispatcherOptions<Tx>): Dispatcher<Tx> {
  const { store, now, log } = options;
  const addressRules = readAddressRules(options);
  const occurredAt = (): string => now().toISOString();
  const known = <T>(webhookId: string, found: T | undefined): T => {
    if (found === undefined) throw new UnknownWebhookError(webhookId);
    return found;
  };
  const getWebhook = async (webhookId: string): Promise<Webhook> =>
    known(webhookId, await store.findWebhook(webhookId as WebhookId));
  const inactive = async (webhookId: string): Promise<InactiveWebhookError> =>
    new InactiveWebhookError(webhookId, (await getWebhook(webhookId)).disabledReason);
  const getDelivery = async (deliveryId: string): Promise<Delivery> => {
    const delivery = await store.findDelivery(deliveryId as DeliveryId);
    if (!delivery) throw new UnknownDeliveryError(deliveryId);
    return delivery;
  };
  /** A delivery that was to be sent again, if it is. */
  const sentAgain = (deliveryId: string, delivery: Delivery | undefined): Delivery => {
    if (!delivery) throw new UnknownDeliveryError(deliveryId);
    const { state, webhookId } = delivery;
    if (state === "pending" || state === "sending") return delivery;
    throw new DeletedWebhookError(deliveryId, webhookId);
  };

  return {
    async dispatch({ event_type, event_id, data, fencing_token }, options = {}) {
      const eventId = asCallerEventId(event_id);
      if (typeof event_type === "string" && event_type.startsWith("webhook.")) {
        throw new InvalidMessageError(eventId, `types that begin with "webhook." are the system's own.`);
      }
      const message = buildMessage({
        eventId,
        type: event_type,
        token: fencing_token === undefined ? null : asToken(fencing_token),
        occurredAt: occurredAt(),
        data,
      });
      const report = await store.dispatch(message, options);
      if (report.created.length + report.existing.length + report.forgotten.length === 0) {
        log?.warn({ event_id, event_type }, "no active webhook takes this message");
      }
      return report;
    },
    async sendTest(webhookId, eventId = testEventId(randomBytes(16))) {
      const webhook = await getWebhook(webhookId);
      // Before the message is stored: what is refused leaves nothing behind.
      if (!webhook.active) throw new InactiveWebhookError(webhookId, webhook.disabledReason);
      const data = { webhook_id: webhook.id };
      const message = buildMessage({
        eventId,
        type: "webhook.test",
        token: null,
        occurredAt: occurredAt(),
        data,
      });
      const { created, existing } = await store.dispatch(message, { only: webhook.id });
      const [delivery] = [...created, ...existing];
      if (!delivery) throw await inactive(webhookId);
      return delivery;
    },
    async replay(webhookId, { from, to, after, maxMessages = REPLAYED_AT_ONCE }) {
      if (!(from.getTime() < to.getTime())) throw new InvalidRangeError();
      const sum = { created: 0, existing: 0, forgotten: [] as EventId[], bodiless: [] as EventId[] };
      let next = after ?? null;
      let left = maxMessages;
      do {
        const limit = Math.min(REPLAY_PAGE, left);
        const page = { from, to, limit, ...(next !== null && { after: next }) };
        const report = await store.replay(webhookId as WebhookId, page);
        if (!report) throw await inactive(webhookId);
        sum.created += report.created;
        sum.existing += report.existing;
        sum.forgotten.push(...report.forgotten);
        sum.bodiless.push(...report.bodiless);
        ({ next } = report);
        left -= limit;
      } while (next !== null && left > 0 && sum.forgotten.length + sum.bodiless.length < MAX_NAMED);
      return { ...sum, next };
    },

    addWebhook: async (input, id) => store.addWebhook(readWebhookInput(input, addressRules, id)),
    getWebhook,
    listWebhooks: (page = {}) => store.listWebhooks({ limit: PAGE_LIMIT, ...page }),
    async updateWebhook(webhookId, changes) {
      const read = readWebhookChanges(changes, addressRules);
      return known(webhookId, await store.updateWebhook(webhookId as WebhookId, read));
    },
    async rotateSecret(webhookId, { secret, overlapMs = DAY_MS } = {}) {
      const next = secret === undefined ? newSecret() : readSecret(secret);
      return known(webhookId, await store.rotateSecret(webhookId as WebhookId, next, overlapMs));
    },
    async activateWebhook(webhookId, missed = "skip") {
      return known(webhookId, await store.activateWebhook(webhookId as WebhookId, missed));
    },
    async pauseWebhook(webhookId, reason = "Paused.") {
      return known(webhookId, await store.deactivateWebhook(webhookId as WebhookId, reason));
    },
    async deleteWebhook(webhookId) {
      if (!(await store.deleteWebhook(webhookId as WebhookId))) throw new UnknownWebhookError(webhookId);
    },

    getDelivery,
    async listDeliveries(webhookId, filter = {}, page = {}) {
      const { id } = await getWebhook(webhookId);
      return store.listDeliveries(id, filter, { limit: PAGE_LIMIT, ...page });
    },
    async listAttempts(deliveryId) {
      const { id } = await getDelivery(deliveryId);
      return store.listAttempts(id);
    },
    async redeliver(deliveryId) {
      return sentAgain(deliveryId, await store.redeliver(deliveryId as DeliveryId));
    },
    async resolve(deliveryId, resolution) {
      const delivery = await store.resolve(deliveryId as DeliveryId, resolution);
      if (!delivery) throw new UnknownDeliveryError(deliveryId);
      return delivery;
    },
  };
}
