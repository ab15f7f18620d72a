// The dispatch stage's part: which webhooks get a message.
import type { EventId } from "@fencepost/token";
import type { Message } from "../../message/payload.ts";
import type { Delivery, DeliveryId, DispatchReport, ReplayPage, ReplayReport } from "../deliveryStore.ts";
import { InvalidCursorError } from "../errors.ts";
import type { WebhookId } from "../webhook.ts";
import { DispatchIncompleteError } from "./errors.ts";
import {
  CATCH_UP,
  COUNT_MISSED,
  DELIVERIES_OF,
  DISPATCH,
  NEXT_CATCH_UP,
  OFFER,
  REPLAY,
  WANTED,
} from "./lua/dispatching.ts";
import {
  drawPosition,
  keepMessage,
  listMessages,
  type MessageFlag,
  messageArguments,
  type StoredMessage,
} from "./messages.ts";
import { type DeliveryReply, toDelivery } from "./replies.ts";
import { ALL_SHARDS, type Shards, shardOf } from "./shards.ts";

/** Webhooks of one message that one script goes through, and deliveries that one returns. */
const CHUNK = 500;

/**
 * Dispatches what a caller hands in. Its record is made first, in its home; then the deliveries, by one script for
 * each shard. Throws {@link DispatchIncompleteError} where a shard failed.
 */
export async function dispatch(
  shards: Shards,
  message: Message,
  only: WebhookId | undefined,
): Promise<DispatchReport> {
  const [position, wanting] = await Promise.all([
    drawPosition(shards),
    only === undefined ? shardsThatTake(shards, [message.type]) : [shardOf(only)],
  ]);
  const { isNew, stored } = await keepMessage(shards, message, position, only !== undefined);
  return dispatchStored(shards, stored, { only, isNew, wanting });
}

/**
 * Shards with a webhook that takes one of these types. A webhook that is added meanwhile may be missed, as if it had
 * been added a moment later.
 */
export async function shardsThatTake(shards: Shards, types: readonly string[]): Promise<readonly number[]> {
  const replies = await shards.runEach(ALL_SHARDS.map((shard) => ({ script: WANTED, shard, args: types })));
  // One that gave no answer is asked again, by what follows.
  return ALL_SHARDS.filter((shard) => {
    const reply = replies[shard];
    return reply?.status !== "fulfilled" || (reply.value as number[]).some((wanted) => wanted > 0);
  });
}

/** Makes the deliveries of one message. `wanting`: shards in which a webhook may take it. */
export async function dispatchStored(
  shards: Shards,
  message: StoredMessage,
  options: {
    readonly only: WebhookId | undefined;
    readonly isNew: boolean;
    readonly wanting: readonly number[];
  },
): Promise<DispatchReport> {
  const { only, isNew, wanting } = options;
  const made = wanting.map((shard) => dispatchTo(shards, shard, message, { only, flag: isNew ? "n" : "" }));
  // Deliveries to webhooks that do not take it any more. A new message has none.
  const others =
    isNew || only !== undefined
      ? []
      : ALL_SHARDS.map((shard) => deliveriesIn(shards, shard, message.eventId));
  const [parts, known] = await Promise.all([Promise.allSettled(made), Promise.allSettled(others)]);
  const reports = parts.flatMap((part) => (part.status === "fulfilled" ? [part.value] : []));
  const created = reports.flatMap((report) => report.created);
  const existing = new Map<DeliveryId, Delivery>();
  const isCreated = new Set(created.map(({ id }) => id));
  const found = known.flatMap((part) => (part.status === "fulfilled" ? part.value : []));
  for (const delivery of [...found, ...reports.flatMap((report) => report.existing)]) {
    if (!isCreated.has(delivery.id)) existing.set(delivery.id, delivery);
  }
  const report: DispatchReport = {
    created: created.sort(byWebhook),
    existing: [...existing.values()].sort(byWebhook),
    forgotten: reports.flatMap((part) => part.forgotten).sort(),
  };
  const failures = [...parts, ...known].flatMap((part) => (part.status === "rejected" ? [part.reason] : []));
  if (failures.length > 0) throw new DispatchIncompleteError(message.eventId, report, failures);
  return report;
}

function byWebhook(a: Delivery, b: Delivery): number {
  return a.webhookId < b.webhookId ? -1 : 1;
}

async function dispatchTo(
  shards: Shards,
  shard: number,
  message: StoredMessage,
  { only, flag }: { readonly only: WebhookId | undefined; readonly flag: MessageFlag },
): Promise<DispatchReport> {
  const created: Delivery[] = [];
  const existing: Delivery[] = [];
  const forgotten: WebhookId[] = [];
  // Bounded: it goes through the webhooks of a shard once.
  for (let after: WebhookId | "" | null = ""; after !== null; ) {
    const args = [...messageArguments(message, flag), only ?? "", after, CHUNK];
    const reply = await shards.run({ script: DISPATCH, shard, args });
    const [createdRows, existingRows, forgottenIds, last] = reply as readonly [
      DeliveryReply[],
      DeliveryReply[],
      WebhookId[],
      WebhookId | null,
    ];
    created.push(...createdRows.map(toDelivery));
    existing.push(...existingRows.map(toDelivery));
    forgotten.push(...forgottenIds);
    after = last;
  }
  return { created, existing, forgotten };
}

/** Deliveries of a message in one shard. */
export async function deliveriesIn(
  shards: Shards,
  shard: number,
  eventId: EventId,
): Promise<readonly Delivery[]> {
  const found: Delivery[] = [];
  // Bounded: it goes through the deliveries of a message once.
  for (let after: DeliveryId | "" | null = ""; after !== null; ) {
    const reply = await shards.run({ script: DELIVERIES_OF, shard, args: [eventId, after, CHUNK] });
    const [rows, last] = reply as readonly [DeliveryReply[], DeliveryId | null];
    found.push(...rows.map(toDelivery));
    after = last;
  }
  return found;
}

/** Webhooks of a shard that one script offers messages to. */
const LOOK = 2_000;

export interface OfferReport {
  readonly deliveries: number;
  /** How many of the messages, from the first on, every webhook that takes them has. */
  readonly done: number;
}

/**
 * Offers messages, in their order, to the webhooks that take them. Makes no more than `limit` deliveries: what is left
 * is made by offering them again, since existing pairs are no-ops. A shard gets a message after those before it only.
 */
export async function offer(
  shards: Shards,
  messages: readonly (StoredMessage & { readonly again?: boolean })[],
  limit: number,
): Promise<OfferReport> {
  if (messages.length === 0) return { deliveries: 0, done: 0 };
  const args = messages.map((message) => messageArguments(message, message.again ? "a" : ""));
  const waiting = [...(await shardsThatTake(shards, [...new Set(messages.map(({ type }) => type))]))];
  let deliveries = 0;
  let done = messages.length;
  // Bounded: each round takes shards off, or meets the limit.
  while (waiting.length > 0) {
    const left = limit - deliveries;
    if (left <= 0) return { deliveries, done: 0 };
    const round = waiting.splice(0, left);
    const share = Math.floor(left / round.length);
    const reports = await Promise.all(round.map((shard) => offerTo(shards, shard, args, share)));
    for (const report of reports) {
      deliveries += report.deliveries;
      done = Math.min(done, report.done);
    }
  }
  return { deliveries, done };
}

async function offerTo(
  shards: Shards,
  shard: number,
  messages: readonly ReturnType<typeof messageArguments>[],
  limit: number,
): Promise<OfferReport> {
  let deliveries = 0;
  let done = 0;
  let after = "";
  // Bounded: it goes through the webhooks of a shard once for each message.
  while (done < messages.length) {
    const args = [Math.min(limit - deliveries, CHUNK), LOOK, after, ...messages.slice(done).flat()];
    const reply = await shards.run({ script: OFFER, shard, args });
    const [made, finished, last] = reply as readonly [number, number, string];
    deliveries += made;
    done += finished;
    after = last;
    if (deliveries === limit) break;
  }
  return { deliveries, done };
}

/** A webhook that looks back, and the place among the messages that it has come to; empty: the beginning. */
export interface CatchUp {
  readonly webhookId: WebhookId;
  /** Which time it looks back: each time that it was activated is another. */
  readonly looks: number;
  readonly place: string;
  readonly deliverFrom: Date;
}

/** Of each shard a webhook that has something to catch up on, drawn anew each time. */
export async function nextCatchUps(shards: Shards): Promise<readonly CatchUp[]> {
  const replies = await shards.runAll(
    ALL_SHARDS.map((shard) => ({ script: NEXT_CATCH_UP, shard, args: [Math.random()] })),
  );
  return replies.flatMap((reply) => {
    if (!reply) return [];
    const [webhookId, looks, place, deliverFrom] = reply as readonly [WebhookId, number, string, number];
    return [{ webhookId, looks, place, deliverFrom: new Date(deliverFrom) }];
  });
}

/** Makes what a webhook missed of these and moves it on; null: it has caught up. Undefined: another did it first. */
export async function catchUpOn(
  shards: Shards,
  { webhookId, looks, place }: CatchUp,
  messages: readonly StoredMessage[],
  next: string | null,
): Promise<number | undefined> {
  const args = [
    webhookId,
    looks,
    place,
    next === null ? "" : `+${next}`,
    ...messages.flatMap((message) => messageArguments(message)),
  ];
  const created = await shards.run({ script: CATCH_UP, shard: shardOf(webhookId), args });
  return created === null ? undefined : (created as number);
}

/** What a webhook takes of these messages is made, where it is missing. Undefined: it is not active. */
export async function replayMessages(
  shards: Shards,
  id: WebhookId,
  messages: readonly StoredMessage[],
): Promise<Omit<ReplayReport, "next"> | undefined> {
  const args = [id, ...messages.flatMap((message) => messageArguments(message))];
  const reply = await shards.run({ script: REPLAY, shard: shardOf(id), args });
  if (!reply) return undefined;
  const [created, existing, forgotten, bodiless] = reply as readonly [number, number, EventId[], EventId[]];
  return { created, existing, forgotten, bodiless };
}

/** Of the messages that callers dispatched. */
export async function replay(
  shards: Shards,
  id: WebhookId,
  { from, to, after = "", limit }: ReplayPage,
): Promise<ReplayReport | undefined> {
  if (after !== "" && !/^\d{16}\|[\w:~-]{1,256}$/.test(after)) throw new InvalidCursorError(after);
  const { messages, last } = await listMessages(shards, { from, to, after, limit });
  const report = await replayMessages(shards, id, messages);
  return report && { ...report, next: last };
}

export async function countMissed(
  shards: Shards,
  id: WebhookId,
  messages: readonly StoredMessage[],
): Promise<number> {
  const args = [id, ...messages.flatMap((message) => messageArguments(message))];
  return (await shards.run({ script: COUNT_MISSED, shard: shardOf(id), args })) as number;
}
