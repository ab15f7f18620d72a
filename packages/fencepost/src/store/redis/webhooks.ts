// The life of a webhook.
import type { Page } from "../deliveryStore.ts";
import { MAX_LIVE_SECRETS, TooManySecretsError } from "../errors.ts";
import type {
  Missed,
  NewWebhook,
  OnUnknown,
  Ordering,
  RetryOn,
  Webhook,
  WebhookChanges,
  WebhookId,
  WebhookSettings,
} from "../webhook.ts";
import { InvalidWebhookIdError } from "./errors.ts";
import {
  ACTIVATE_WEBHOOK,
  ADD_WEBHOOK,
  DEACTIVATE_WEBHOOK,
  DELETE_WEBHOOK,
  FIND_WEBHOOK,
  LIST_WEBHOOKS,
  ROTATE_SECRET,
  UPDATE_WEBHOOK,
} from "./lua/webhooks.ts";
import { optional, toDate } from "./replies.ts";
import { ALL_SHARDS, isWebhookId, type Shards, shardOf } from "./shards.ts";

/** The name of each setting in a record, and its text; null: it is not set. */
const SETTINGS: {
  readonly [Setting in keyof WebhookSettings]: readonly [
    name: string,
    toText: (value: WebhookSettings[Setting]) => string | null,
  ];
} = {
  url: ["url", String],
  types: ["types", JSON.stringify],
  filter: ["filter", jsonOrNull],
  headers: ["headers", JSON.stringify],
  description: ["description", String],
  onUnknown: ["on_unknown", String],
  retryOn: ["retry_on", String],
  retryScheduleMs: ["retry_schedule", jsonOrNull],
  jitter: ["jitter", String],
  ratePerSecond: ["rate", textOrNull],
  maxInFlight: ["in_flight", textOrNull],
  disableAfterMs: ["disable_after", textOrNull],
};

function jsonOrNull(value: object | null): string | null {
  return value === null ? null : JSON.stringify(value);
}

function textOrNull(value: number | null): string | null {
  return value === null ? null : String(value);
}

function settingArguments(changes: WebhookChanges): readonly string[] {
  return (Object.keys(SETTINGS) as (keyof WebhookSettings)[]).flatMap((setting) => {
    const value = changes[setting];
    if (value === undefined) return [];
    const [name, toText] = SETTINGS[setting] as readonly [string, (value: unknown) => string | null];
    return [name, optional(toText(value))];
  });
}

type WebhookReply = readonly [
  id: WebhookId,
  url: string,
  types: readonly string[],
  filter: string | null,
  secrets: readonly (readonly [secret: string, expires: number | null])[],
  headers: string,
  description: string,
  active: number,
  disabledReason: string | null,
  disabledAt: number | null,
  onUnknown: OnUnknown,
  retryOn: RetryOn,
  retrySchedule: string | null,
  jitter: string,
  ordering: Ordering,
  rate: string | null,
  inFlight: string | null,
  disableAfter: string | null,
  failingSince: number | null,
  deliverFrom: number,
  prunedUntil: number | null,
  createdAt: number,
];

function toWebhook(reply: WebhookReply): Webhook {
  const [
    id,
    url,
    types,
    filter,
    secrets,
    headers,
    description,
    active,
    disabledReason,
    disabledAt,
    ...others
  ] = reply;
  const [onUnknown, retryOn, retrySchedule, jitter, ordering, rate, inFlight, disableAfter, ...times] =
    others;
  const [failingSince, deliverFrom, prunedUntil, createdAt] = times;
  return {
    id,
    url,
    types,
    filter: filter === null ? null : JSON.parse(filter),
    secrets: secrets.map(([secret, expires]) => ({ secret, expiresAt: toDate(expires) })),
    headers: JSON.parse(headers),
    description,
    active: active === 1,
    disabledReason,
    disabledAt: toDate(disabledAt),
    onUnknown,
    retryOn,
    retryScheduleMs: retrySchedule === null ? null : JSON.parse(retrySchedule),
    jitter: Number(jitter),
    ordering,
    ratePerSecond: rate === null ? null : Number(rate),
    maxInFlight: inFlight === null ? null : Number(inFlight),
    disableAfterMs: disableAfter === null ? null : Number(disableAfter),
    failingSince: toDate(failingSince),
    deliverFrom: new Date(deliverFrom),
    prunedUntil: toDate(prunedUntil),
    createdAt: new Date(createdAt),
  };
}

const toWebhookOrNone = (reply: unknown): Webhook | undefined =>
  reply ? toWebhook(reply as WebhookReply) : undefined;

const flag = (value: boolean): string => (value ? "1" : "");

/** `hasOutbox`: messages come from an outbox too, and a new webhook looks back over what it missed of them. */
export async function addWebhook(shards: Shards, webhook: NewWebhook, hasOutbox: boolean): Promise<Webhook> {
  const { id, ordering, secrets } = webhook;
  if (!isWebhookId(id)) throw new InvalidWebhookIdError(id);
  const args = [id, flag(hasOutbox), ordering, JSON.stringify(secrets), ...settingArguments(webhook)];
  return toWebhook((await shards.run({ script: ADD_WEBHOOK, shard: shardOf(id), args })) as WebhookReply);
}

export async function findWebhook(shards: Shards, id: WebhookId): Promise<Webhook | undefined> {
  return toWebhookOrNone(await shards.run({ script: FIND_WEBHOOK, shard: shardOf(id), args: [id] }));
}

export async function listWebhooks(shards: Shards, { after = "", limit }: Page): Promise<readonly Webhook[]> {
  const calls = ALL_SHARDS.map((shard) => ({ script: LIST_WEBHOOKS, shard, args: [after, limit] }));
  const replies = (await shards.runAll(calls)) as readonly (readonly WebhookReply[])[];
  const byId = (a: Webhook, b: Webhook): number => (a.id < b.id ? -1 : 1);
  return replies.flat().map(toWebhook).sort(byId).slice(0, limit);
}

export async function updateWebhook(
  shards: Shards,
  id: WebhookId,
  changes: WebhookChanges,
): Promise<Webhook | undefined> {
  const args = [id, ...settingArguments(changes)];
  return toWebhookOrNone(await shards.run({ script: UPDATE_WEBHOOK, shard: shardOf(id), args }));
}

export async function rotateSecret(
  shards: Shards,
  id: WebhookId,
  secret: string,
  overlapMs: number,
): Promise<Webhook | undefined> {
  const args = [id, secret, overlapMs, MAX_LIVE_SECRETS];
  const reply = await shards.run({ script: ROTATE_SECRET, shard: shardOf(id), args });
  if (reply === "too many") throw new TooManySecretsError(id);
  return toWebhookOrNone(reply);
}

export async function activateWebhook(
  shards: Shards,
  id: WebhookId,
  missed: Missed,
  hasOutbox: boolean,
): Promise<Webhook | undefined> {
  const args = [id, flag(missed === "deliver"), flag(hasOutbox)];
  return toWebhookOrNone(await shards.run({ script: ACTIVATE_WEBHOOK, shard: shardOf(id), args }));
}

export async function deactivateWebhook(
  shards: Shards,
  id: WebhookId,
  reason: string,
): Promise<Webhook | undefined> {
  return toWebhookOrNone(
    await shards.run({ script: DEACTIVATE_WEBHOOK, shard: shardOf(id), args: [id, reason] }),
  );
}

/** Why a deleted webhook is not active, and why its deliveries failed. */
export const DELETED = "The webhook was deleted.";

export async function deleteWebhook(shards: Shards, id: WebhookId): Promise<boolean> {
  return (await shards.run({ script: DELETE_WEBHOOK, shard: shardOf(id), args: [id, DELETED] })) === 1;
}
