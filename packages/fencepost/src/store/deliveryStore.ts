import type { EventId, FencingToken } from "@fencepost/token";
import type { Message } from "../message/payload.ts";
import type { DisabledWebhook, Missed, NewWebhook, Webhook, WebhookChanges, WebhookId } from "./webhook.ts";

declare const deliveryBrand: unique symbol;

/** `dlv_…`; the same over all attempts of one delivery. */
export type DeliveryId = string & { readonly [deliveryBrand]: "DeliveryId" };

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
  /**
   * When it is sent next, or, in doubt, when the endpoint is asked next. Null in a terminal state, and in doubt:
   * it waits for a person.
   */
  readonly nextAt: Date | null;
  /** Under strict order: the delivery before it that has not succeeded. Null for one that waits for nothing. */
  readonly blockedBy: DeliveryId | null;
  readonly createdAt: Date;
  readonly finishedAt: Date | null;
}

/** What became of one attempt, decided from what is known about its bytes. */
export type AttemptOutcome = "delivered" | "rejected" | "not_sent" | "unknown";

/** One attempt as it is on record. */
export interface Attempt {
  readonly number: number;
  readonly url: string;
  /** Signed, in unix seconds. */
  readonly timestamp: bigint;
  readonly startedAt: Date;
  readonly finishedAt: Date | null;
  /** Null: it is under way, or its worker died. */
  readonly outcome: AttemptOutcome | null;
  readonly status: number | null;
  readonly error: string | null;
  readonly response: string | null;
  /** What a worker reported after it had lost its claim. */
  readonly lateOutcome: string | null;
}

/** A delivery that one worker holds, under one fence, until its lease ends. */
export interface ClaimedDelivery {
  readonly id: DeliveryId;
  readonly webhookId: WebhookId;
  /** Scheme, host and port that its webhook sends to. */
  readonly origin: string;
  readonly fence: bigint;
  /** The claim before this one left an attempt on record without an outcome: its worker died. */
  readonly interrupted: boolean;
  /** It is in doubt, and its endpoint is to be asked. */
  readonly asking: boolean;
}

/** A webhook's own rules about what is sent again, and when. */
export interface DeliveryPolicy extends Pick<Webhook, "onUnknown" | "retryOn" | "jitter"> {
  readonly retryScheduleMs: readonly number[];
}

/** What follows for a delivery from an attempt, or from an answer about one. */
export type NextStep =
  | { readonly state: "success" }
  /** Null: it waits for a person; otherwise the endpoint is asked after this time. */
  | { readonly state: "in_doubt"; readonly askInMs: number | null }
  | { readonly state: "pending"; readonly delayMs: number }
  | { readonly state: "failed"; readonly disableWebhook: boolean };

/** Where and how a webhook is sent to, as it is at this moment. */
interface Target {
  readonly url: string;
  /** Those that have not expired, newest first. */
  readonly secrets: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  readonly policy: DeliveryPolicy;
}

/** An attempt that is on record: its bytes may leave now. */
export interface RecordedAttempt extends Target {
  readonly id: DeliveryId;
  readonly webhookId: WebhookId;
  readonly fence: bigint;
  readonly eventId: EventId;
  readonly token: FencingToken | null;
  readonly number: number;
  /** Attempts since the last redeliver, this one included: what the schedule counts. */
  readonly tries: number;
  /** Signed, in unix seconds, and later than that of every earlier attempt of this delivery. */
  readonly timestamp: bigint;
  readonly body: Buffer;
}

/** What a worker must know about a claim that is to be settled or asked about. */
export interface Review extends Target {
  readonly id: DeliveryId;
  readonly eventId: EventId;
  readonly webhookId: WebhookId;
  readonly tries: number;
  /** Times that the endpoint was asked since the last attempt. */
  readonly asks: number;
  /** Signed time of the last attempt, in unix seconds. */
  readonly lastTimestamp: bigint;
  /** When its first attempt was put on record. */
  readonly firstAttemptAt: Date;
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
  readonly next: NextStep;
}

/** What follows from the answer of an endpoint that was asked. */
export interface SettledDoubt {
  readonly id: DeliveryId;
  readonly next: NextStep;
  /** What is shown as the delivery's last error; null keeps the one it has. */
  readonly error: string | null;
}

export interface ClaimOptions {
  readonly limit: number;
  /** Deliveries to one origin in one claim, at the most; its webhooks share them. */
  readonly perOrigin: number;
  /** Origins that have enough to do: nothing of theirs is claimed. */
  readonly skipOrigins: readonly string[];
  readonly leaseMs: number;
  /** This one and no other, due or not, if nobody holds it and nothing blocks it. */
  readonly only?: DeliveryId;
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

/** What became of one message that a caller dispatched. All empty: no webhook takes it. */
export interface DispatchReport {
  /** Deliveries made now. */
  readonly created: readonly Delivery[];
  /** Pairs that exist already, as they stand; nothing was sent for them. */
  readonly existing: readonly Delivery[];
  /**
   * Webhooks that take it, but whether they had it cannot be known, so it is not sent: their records do not go back
   * to this message, or its body was pruned.
   */
  readonly forgotten: readonly WebhookId[];
}

/** Messages of a time, the first included and the last not, and where among them to go on. */
export interface ReplayPage {
  readonly from: Date;
  readonly to: Date;
  /** `next` of the page before it. */
  readonly after?: string;
  /** Messages looked at, at the most. */
  readonly limit: number;
}

export interface ReplayReport {
  readonly created: number;
  readonly existing: number;
  /** Messages that were made before the records of this webhook begin: not sent. */
  readonly forgotten: readonly EventId[];
  /** Messages whose body was pruned: not sent. */
  readonly bodiless: readonly EventId[];
  /** Where the next page begins; null: this was the last. */
  readonly next: string | null;
}

/** A page of a list: what comes after `after`, in the order of the list. */
export interface Page {
  readonly after?: string;
  readonly limit: number;
}

export interface DeliveryFilter {
  readonly state?: DeliveryState;
  /** Only those that wait for a person, or block a strict webhook. */
  readonly needsPerson?: boolean;
}

export type DeliveryCounts = Readonly<Record<DeliveryState, number>>;

/** What an alarm may go by. */
export interface DeliveryHealth {
  /** How long the oldest delivery has been due that no order holds back, in seconds; 0: none is. */
  readonly dueLagSeconds: number;
  /** Deliveries that wait for a person. */
  readonly inDoubt: number;
  readonly disabledWebhooks: number;
}

/** What a person decides about a delivery: it arrived, it is to be sent again, or it is given up. */
export type Resolution = "delivered" | "resend" | "skip";

export interface PruneOptions {
  /** What ended before it goes. */
  readonly before: Date;
  /** Deliveries and messages looked at in one step, at the most. */
  readonly limit: number;
}

export interface PruneReport {
  readonly deliveries: number;
  readonly messages: number;
  /** False: there is more to look at. */
  readonly done: boolean;
}

/**
 * Where webhooks, messages and deliveries live. Every write after a claim names its fence; a store never sends.
 * `Tx` is a transaction of the caller's that `dispatch` can join.
 */
export interface DeliveryStore<Tx = never> {
  // ── webhooks ──
  /** Adds one. An id that is there already is left as it is, and returned: so a repeated call adds nothing. */
  addWebhook(webhook: NewWebhook): Promise<Webhook>;
  findWebhook(id: WebhookId): Promise<Webhook | undefined>;
  /** By id. */
  listWebhooks(page: Page): Promise<readonly Webhook[]>;
  updateWebhook(id: WebhookId, changes: WebhookChanges): Promise<Webhook | undefined>;
  /**
   * Signs with `secret` from now on, and with the earlier ones for `overlapMs` more, or less where they end sooner.
   * Throws `TooManySecretsError` where more than ten would sign.
   */
  rotateSecret(id: WebhookId, secret: string, overlapMs: number): Promise<Webhook | undefined>;
  /**
   * Active: `deliverFrom` stays (`deliver`) or is now (`skip`); a catch-up is queued. `missed` counts the emitted
   * messages that it did not get while it was not, up to 10,000. One that is active is left as it is.
   */
  activateWebhook(
    id: WebhookId,
    missed: Missed,
  ): Promise<{ readonly webhook: Webhook; readonly missed: number } | undefined>;
  /** Pauses what is pending. */
  deactivateWebhook(id: WebhookId, reason: string): Promise<Webhook | undefined>;
  /** Nothing is sent to it any more, and it is not listed; `endDeleted` fails what was pending. False: not there. */
  deleteWebhook(id: WebhookId): Promise<boolean>;

  // ── dispatch ──
  /**
   * Makes one delivery for each active webhook that takes the message, or for `only`; existing pairs are returned
   * as they are. Throws `EventContentMismatchError` where the event id is on record with other content.
   */
  dispatch(
    message: Message,
    options: { readonly only?: WebhookId; readonly tx?: Tx },
  ): Promise<DispatchReport>;
  /** Makes the deliveries of the next messages of the outbox. */
  fanOut(limits: { readonly messages: number; readonly webhooks: number }): Promise<FanOutReport>;
  /** Offers to a new or newly active webhook what a running fan-out could not. */
  catchUp(limit: number): Promise<FanOutReport>;
  /**
   * Makes the missing deliveries of one webhook, suppressed messages included; undefined: it is not there, or not
   * active. Throws `InvalidCursorError` for a place that no page of its own named.
   */
  replay(id: WebhookId, page: ReplayPage): Promise<ReplayReport | undefined>;

  // ── deliver ──
  claim(options: ClaimOptions): Promise<readonly ClaimedDelivery[]>;
  /** Puts attempts on record. What is not returned must not be sent: its claim or its webhook is gone. */
  recordAttempts(
    fence: bigint,
    ids: readonly DeliveryId[],
    leaseMs: number,
  ): Promise<readonly RecordedAttempt[]>;
  /** What is still held under this fence, to be settled or asked about. */
  review(fence: bigint, ids: readonly DeliveryId[]): Promise<readonly Review[]>;
  /**
   * Records outcomes and what follows from them, where the fence still holds the claim. An outcome of a claim that
   * has no attempt gives it back. A success ends the failing time of its webhook; a failure begins it, or disables
   * the webhook once it has lasted long enough.
   */
  finish(fence: bigint, attempts: readonly FinishedAttempt[]): Promise<FinishReport>;
  /** Records what follows from answers to questions, where the fence still holds the claim. No attempt is touched. */
  settle(fence: bigint, doubts: readonly SettledDoubt[]): Promise<FinishReport>;
  /** Lengthens leases; returns what is still held. */
  extend(fence: bigint, ids: readonly DeliveryId[], leaseMs: number): Promise<readonly DeliveryId[]>;
  /** Gives claims back that were not attempted; whose timestamp ran ahead of the clock waits for it. */
  release(fence: bigint, ids: readonly DeliveryId[]): Promise<void>;

  // ── deliveries ──
  findDelivery(id: DeliveryId): Promise<Delivery | undefined>;
  /** Of one webhook, the newest first. */
  listDeliveries(id: WebhookId, filter: DeliveryFilter, page: Page): Promise<readonly Delivery[]>;
  /** Of one message, to every webhook, up to 1,000. */
  deliveriesOf(eventId: EventId): Promise<readonly Delivery[]>;
  /** The oldest first, up to 1,000. */
  listAttempts(id: DeliveryId): Promise<readonly Attempt[]>;
  /** Sends again what ended, with the same ids and bytes. What is pending is returned as it is, and what was deleted too. */
  redeliver(id: DeliveryId): Promise<Delivery | undefined>;
  /**
   * Settles what is in doubt or failed: `delivered` is a success, `resend` is pending anew, `skip` is failed and
   * blocks nothing any more. Any other state is left as it is.
   */
  resolve(id: DeliveryId, resolution: Resolution): Promise<Delivery | undefined>;

  // ── how they stand ──
  /** All that are on record, by state. */
  countDeliveries(): Promise<DeliveryCounts>;
  /** How many of each of these webhooks are not at their end; one that has none may be left out. */
  countWaiting(ids: readonly WebhookId[]): Promise<ReadonlyMap<WebhookId, number>>;
  /** Cheap enough to be read every few seconds. */
  readHealth(): Promise<DeliveryHealth>;

  // ── upkeep ──
  /** One step: deliveries that ended before a time go with their attempts, then messages that nothing refers to. */
  prune(options: PruneOptions): Promise<PruneReport>;
  /** Fails pending deliveries of deleted webhooks, up to `limit`; returns how many. */
  endDeleted(limit: number): Promise<number>;
  /** Webhooks that the system disabled and nobody was told of, up to 100. */
  listUntold(): Promise<readonly DisabledWebhook[]>;
  markTold(webhook: DisabledWebhook): Promise<void>;
}
