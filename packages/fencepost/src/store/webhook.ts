// A webhook as every store keeps it, and what may be changed about it.
declare const webhookBrand: unique symbol;

/** `wh_…`; never used again once its webhook is deleted. */
export type WebhookId = string & { readonly [webhookBrand]: "WebhookId" };

/**
 * What happens to a delivery whose bytes left without an answer: it is sent again, held for a person, or the
 * endpoint is asked whether it has the event.
 */
export type OnUnknown = "resend" | "hold" | "ask";

/** `default`: 408, 425, 429 and 5xx are sent again; `all`: every answer but 2xx and 410 is. */
export type RetryOn = "default" | "all";

/** `strict`: one at a time, in the order in which messages were made; what failed blocks what comes after it. */
export type Ordering = "none" | "strict";

export type JsonValue = string | number | boolean | null | readonly JsonValue[] | JsonObject;
export interface JsonObject {
  readonly [key: string]: JsonValue;
}

export interface WebhookSecret {
  /** `whsec_…` (HMAC-SHA256, `v1`) or `whsk_…` (ed25519, `v1a`). */
  readonly secret: string;
  /** It signs until then; null: until it is rotated out. */
  readonly expiresAt: Date | null;
}

export interface Webhook {
  readonly id: WebhookId;
  readonly url: string;
  /** Message types it gets; `*` stands for every type but those of the system, `webhook.…`. */
  readonly types: readonly string[];
  /** Only messages whose data contain it, as PostgreSQL's `data @> filter`; null: all. */
  readonly filter: JsonObject | null;
  /** Newest first; every one that has not expired signs. */
  readonly secrets: readonly WebhookSecret[];
  /** Sent with each attempt, beside our own. */
  readonly headers: Readonly<Record<string, string>>;
  readonly description: string;
  readonly active: boolean;
  /** Why it is not active; null while it is. */
  readonly disabledReason: string | null;
  readonly disabledAt: Date | null;
  readonly onUnknown: OnUnknown;
  readonly retryOn: RetryOn;
  /** Delays before the second, third, … attempt, in milliseconds; null: the schedule of the store. */
  readonly retryScheduleMs: readonly number[] | null;
  /** The share of a delay that is drawn at random, 0 to 1: 0.5 spreads it over [d/2, d). */
  readonly jitter: number;
  readonly ordering: Ordering;
  /** Attempts a second, at the most; null: no limit. */
  readonly ratePerSecond: number | null;
  /** Claimed at once, at the most, over all workers; null: no limit. */
  readonly maxInFlight: number | null;
  /** It is disabled when every attempt has failed for so long, in milliseconds; null: never. */
  readonly disableAfterMs: number | null;
  /** The first failure since the last success; null: the last attempt was one. */
  readonly failingSince: Date | null;
  /** Events from before it are not offered to this webhook. */
  readonly deliverFrom: Date;
  /** Deliveries made until then may have been pruned; null: none was. */
  readonly prunedUntil: Date | null;
  readonly createdAt: Date;
}

/** What its owner decides about a webhook. */
export type WebhookSettings = Pick<
  Webhook,
  | "url"
  | "types"
  | "filter"
  | "headers"
  | "description"
  | "onUnknown"
  | "retryOn"
  | "retryScheduleMs"
  | "jitter"
  | "ratePerSecond"
  | "maxInFlight"
  | "disableAfterMs"
>;

export interface NewWebhook extends WebhookSettings {
  readonly id: WebhookId;
  /** Set once: what waits has no order that it could be given later. */
  readonly ordering: Ordering;
  readonly secrets: readonly string[];
}

/** Only what is named changes. */
export type WebhookChanges = Partial<WebhookSettings>;

/** Whether a webhook that is activated gets what it missed. */
export type Missed = "skip" | "deliver";

/** A webhook that the system disabled, and nobody has been told yet. */
export interface DisabledWebhook {
  readonly id: WebhookId;
  readonly reason: string;
  readonly disabledAt: Date;
}
