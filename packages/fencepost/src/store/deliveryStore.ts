import type { EventId, FencingToken } from "@fencepost/token";
import type { Message } from "../message/payload.ts";

declare const webhookBrand: unique symbol;
declare const deliveryBrand: unique symbol;

/** `wh_…`; never used again once its webhook is deleted. */
export type WebhookId = string & { readonly [webhookBrand]: "WebhookId" };
/** `dlv_…`; the same over all attempts of one delivery. */
export type DeliveryId = string & { readonly [deliveryBrand]: "DeliveryId" };

/** What happens to a delivery whose bytes left without an answer: sent again, or held for a person. */
export type OnUnknown = "resend" | "hold";

export interface Webhook {
  readonly id: WebhookId;
  readonly url: string;
  /** Message types it gets; `*` stands for every type. */
  readonly types: readonly string[];
  /** `whsec_…`, newest first; every one of them signs. */
  readonly secrets: readonly string[];
  readonly description: string;
  readonly active: boolean;
  readonly disabledReason: string | null;
  readonly onUnknown: OnUnknown;
  /** Events from before it are not offered to this webhook. */
  readonly deliverFrom: Date;
  readonly createdAt: Date;
}

export type NewWebhook = Pick<Webhook, "id" | "url" | "types" | "secrets" | "description" | "onUnknown">;

export type DeliveryState = "pending" | "sending" | "success" | "failed" | "in_doubt";

/** One message on its way to one webhook. */
export interface Delivery {
  readonly id: DeliveryId;
  readonly eventId: EventId;
  readonly webhookId: WebhookId;
  readonly state: DeliveryState;
  /** Attempts made so far. */
  readonly attempts: number;
  readonly lastStatus: number | null;
  readonly lastError: string | null;
  /** When it is due next; null in a terminal state. */
  readonly nextAt: Date | null;
  readonly createdAt: Date;
  readonly finishedAt: Date | null;
}

/** What became of one attempt, decided from what is known about its bytes. */
export type AttemptOutcome = "delivered" | "rejected" | "not_sent" | "unknown";

/** A delivery that one worker holds, under one fence, until its lease ends. */
export interface ClaimedDelivery {
  readonly id: DeliveryId;
  readonly webhookId: WebhookId;
  /** Scheme, host and port that its webhook sends to. */
  readonly origin: string;
  readonly fence: bigint;
  /** The claim before this one left an attempt on record without an outcome. */
  readonly interrupted: boolean;
}

/** An attempt that is on record: its bytes may leave now. */
export interface RecordedAttempt {
  readonly id: DeliveryId;
  readonly fence: bigint;
  readonly eventId: EventId;
  readonly token: FencingToken | null;
  readonly number: number;
  readonly url: string;
  readonly secrets: readonly string[];
  /** Signed, in unix seconds, and later than that of every earlier attempt of this delivery. */
  readonly timestamp: bigint;
  readonly body: Buffer;
}

/** What is known about an attempt once it has ended. */
export interface AttemptResult {
  readonly outcome: AttemptOutcome;
  readonly status: number | null;
  readonly error: string | null;
  /** The beginning of the response body, as text. */
  readonly response: string | null;
  /** The endpoint's own wish, in milliseconds. */
  readonly retryAfterMs: number | null;
}

export interface FinishedAttempt {
  readonly id: DeliveryId;
  readonly result: AttemptResult;
}

export interface ClaimOptions {
  readonly limit: number;
  /** Deliveries to one origin in one claim, at the most; its webhooks share them. */
  readonly perOrigin: number;
  /** Origins that have enough to do: nothing of theirs is claimed. */
  readonly skipOrigins: readonly string[];
  readonly leaseMs: number;
}

/** Which outcomes were recorded, and which not: somebody else holds the claim, or nothing was being sent. */
export interface FinishReport {
  readonly recorded: readonly { readonly id: DeliveryId; readonly state: DeliveryState }[];
  readonly stale: readonly DeliveryId[];
}

export interface FanOutReport {
  readonly messages: number;
  readonly deliveries: number;
}

/**
 * Where webhooks, messages and deliveries live. Every write after a claim names its fence; a store never sends.
 * `Tx` is a transaction of the caller's that `dispatch` can join.
 */
export interface DeliveryStore<Tx = never> {
  addWebhook(webhook: NewWebhook): Promise<Webhook>;
  findWebhook(id: WebhookId): Promise<Webhook | undefined>;
  listWebhooks(): Promise<readonly Webhook[]>;

  /**
   * Makes one delivery for each active webhook of the message's type, or for `only`; existing pairs are returned
   * as they are. Throws `EventContentMismatchError` where the event id is on record with other content.
   */
  dispatch(
    message: Message,
    options: { readonly only?: WebhookId; readonly tx?: Tx },
  ): Promise<readonly Delivery[]>;
  /** Makes the deliveries of the next messages of the outbox. */
  fanOut(limits: { readonly messages: number; readonly webhooks: number }): Promise<FanOutReport>;
  /** Offers to a new webhook what a running fan-out could not. */
  catchUp(limit: number): Promise<FanOutReport>;

  claim(options: ClaimOptions): Promise<readonly ClaimedDelivery[]>;
  /** Puts attempts on record. What is not returned must not be sent: its claim or its webhook is gone. */
  recordAttempts(
    fence: bigint,
    ids: readonly DeliveryId[],
    leaseMs: number,
  ): Promise<readonly RecordedAttempt[]>;
  /**
   * Records outcomes and what follows from them, where the fence still holds the claim. An outcome of a claim that
   * has no attempt gives it back.
   */
  finish(fence: bigint, attempts: readonly FinishedAttempt[]): Promise<FinishReport>;
  /** Gives claims back that were not attempted; whose timestamp ran ahead of the clock waits for it. */
  release(fence: bigint, ids: readonly DeliveryId[]): Promise<void>;

  findDelivery(id: DeliveryId): Promise<Delivery | undefined>;
  /** Sends again what ended, with the same ids and bytes. A pending delivery is returned as it is. */
  redeliver(id: DeliveryId): Promise<Delivery | undefined>;
}
