// Claim, attempt, outcome, doubt: one script for each shard that is touched.
import { randomBytes } from "node:crypto";
import type { EventId } from "@fencepost/token";
import type {
  ClaimedDelivery,
  ClaimOptions,
  DeliveryId,
  FinishedAttempt,
  FinishReport,
  RecordedAttempt,
  Review,
  SettledDoubt,
} from "../deliveryStore.ts";
import type { OnUnknown, RetryOn, WebhookId } from "../webhook.ts";
import {
  CLAIM,
  EXTEND,
  FIND_DUE,
  FIND_POSITION,
  FINISH,
  RECORD,
  RELEASE,
  REVIEW,
  SETTLE,
} from "./lua/claims.ts";
import { splitContent } from "./messages.ts";
import { optional } from "./replies.ts";
import {
  ALL_SHARDS,
  type Argument,
  groupBy,
  type Script,
  type ScriptCall,
  type Shards,
  shardOf,
  shardOfDelivery,
} from "./shards.ts";

/** Attempts whose signed timestamp ran further ahead of the clock than this wait, in seconds. */
const MAX_TIMESTAMP_LEAD_S = 60;
/** Webhooks with something due that a claim is offered by one shard, at the least and the most. */
const LANES = { least: 32, most: 256 } as const;
/** How many more it looks at to find them, among those that it is told to skip. */
const LOOK_FACTOR = 4;

interface DueLane {
  readonly webhookId: WebhookId;
  readonly origin: string;
  /** Deliveries that may be claimed now. */
  readonly due: number;
  /** Of a strict webhook the one that is next, and its position; empty for others. */
  readonly head: DeliveryId | "";
  readonly position: string;
}

/**
 * The position that the first message of an outbox has, which is offered later: what comes after it waits in a strict
 * webhook. Null: the outbox is empty.
 */
export type FirstWaiting = () => Promise<bigint | null>;

/**
 * Two steps: each shard names webhooks that have something due, and then those drawn from them are claimed from. The
 * second script decides anew what may be claimed; the first only tells where to look.
 */
export async function claim(
  shards: Shards,
  { limit, perOrigin, skipOrigins, leaseMs, only }: ClaimOptions,
  firstWaiting?: FirstWaiting,
): Promise<readonly ClaimedDelivery[]> {
  if (only !== undefined) return claimOnly(shards, only, leaseMs, firstWaiting);
  const wanted = Math.min(LANES.most, Math.max(LANES.least, Math.ceil(limit / 4)));
  const look = wanted * LOOK_FACTOR;
  const calls = ALL_SHARDS.map((shard) => ({
    script: FIND_DUE,
    shard,
    args: [Math.min(limit, perOrigin), wanted, look, Math.random(), ...skipOrigins],
  }));
  const [found, fence] = await Promise.all([shards.runEach(calls), drawFence(shards)]);
  type LaneReply = readonly [WebhookId, string, number, DeliveryId | "", string];
  const lanes = found
    .flatMap(replyOf)
    .flatMap((reply) => reply as readonly LaneReply[])
    .map(([webhookId, origin, due, head, position]): DueLane => ({ webhookId, origin, due, head, position }));
  const taken = shareOut(await inTurn(lanes, firstWaiting), { limit, perOrigin });
  const byShard = groupBy(taken, ({ lane }) => shardOf(lane.webhookId));
  const claimed = await shards.runEach(
    Array.from(byShard, ([shard, counts]) => ({
      script: CLAIM,
      shard,
      args: [
        String(fence),
        leaseMs,
        "",
        ...counts.flatMap(({ lane, count }) => [lane.webhookId, count, lane.head]),
      ],
    })),
  );
  const claims = claimed.flatMap(replyOf).flatMap((reply) => toClaims(reply, fence));
  if (claims.length === 0) throwFirst([...found, ...claimed]);
  return claims;
}

/**
 * Without strict webhooks that wait for the outbox. It is read after their next deliveries, and a claim takes these or
 * none: so what entered it before they were made is seen.
 */
async function inTurn(
  lanes: readonly DueLane[],
  firstWaiting: FirstWaiting | undefined,
): Promise<readonly DueLane[]> {
  if (!firstWaiting || lanes.every(({ head }) => head === "")) return lanes;
  const first = await firstWaiting();
  return lanes.filter(({ head, position }) => head === "" || first === null || BigInt(position) <= first);
}

/** What a shard answered: one that is away stops no other. */
function replyOf(result: PromiseSettledResult<unknown>): readonly unknown[] {
  return result.status === "fulfilled" ? [result.value] : [];
}

function throwFirst(results: readonly PromiseSettledResult<unknown>[]): void {
  const failed = results.find((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}

async function claimOnly(
  shards: Shards,
  id: DeliveryId,
  leaseMs: number,
  firstWaiting: FirstWaiting | undefined,
): Promise<readonly ClaimedDelivery[]> {
  const shard = shardOfDelivery(id);
  if (shard === undefined) return [];
  const position = firstWaiting && (await shards.run({ script: FIND_POSITION, shard, args: [id] }));
  const first = position ? await firstWaiting() : null;
  if (first !== null && BigInt(position as string) > first) return [];
  const fence = await drawFence(shards);
  return toClaims(await shards.run({ script: CLAIM, shard, args: [String(fence), leaseMs, id] }), fence);
}

type ClaimReply = readonly [
  id: DeliveryId,
  webhookId: WebhookId,
  origin: string,
  interrupted: number,
  asking: number,
];

function toClaims(reply: unknown, fence: bigint): readonly ClaimedDelivery[] {
  return (reply as readonly ClaimReply[]).map(([id, webhookId, origin, interrupted, asking]) => ({
    id,
    webhookId,
    origin,
    fence,
    interrupted: interrupted === 1,
    asking: asking === 1,
  }));
}

/** A counter that a failover may set back, and bits that then make it another one. */
async function drawFence(shards: Shards): Promise<bigint> {
  return (BigInt(await shards.drawNumber("fence")) << 64n) | randomBytes(8).readBigUInt64BE();
}

/**
 * How many deliveries are claimed from each webhook: one from each in turn, in an order drawn anew each time, while
 * it and its origin have more and the limit is not met.
 */
function shareOut(
  lanes: readonly DueLane[],
  { limit, perOrigin }: { readonly limit: number; readonly perOrigin: number },
): readonly { readonly lane: DueLane; readonly count: number }[] {
  const counts = lanes
    .map((lane) => ({ lane, count: 0, place: Math.random() }))
    .sort((a, b) => a.place - b.place);
  const ofOrigin = new Map<string, number>();
  let left = limit;
  let turn = counts;
  while (turn.length > 0) {
    turn = turn.filter((entry) => {
      const { origin, due } = entry.lane;
      const claimed = ofOrigin.get(origin) ?? 0;
      if (left === 0 || entry.count === due || claimed === perOrigin) return false;
      ofOrigin.set(origin, claimed + 1);
      entry.count++;
      left--;
      return true;
    });
  }
  return counts.filter(({ count }) => count > 0);
}

/** A call for each shard that some of these are in. Ids that no delivery has are left out. */
function callsFor<T extends { readonly id: DeliveryId }>(
  items: readonly T[],
  script: Script,
  args: (items: readonly T[]) => readonly Argument[],
): readonly (ScriptCall & { readonly items: readonly T[] })[] {
  const byShard = groupBy(items, ({ id }) => shardOfDelivery(id));
  return Array.from(byShard, ([shard, group]) =>
    shard === undefined ? [] : [{ script, shard, args: args(group), items: group }],
  ).flat();
}

const toItems = (ids: readonly DeliveryId[]): readonly { readonly id: DeliveryId }[] =>
  ids.map((id) => ({ id }));
const toIds = (items: readonly { readonly id: DeliveryId }[]): readonly DeliveryId[] =>
  items.map(({ id }) => id);

type TargetReply = readonly [
  webhookId: WebhookId,
  url: string,
  headers: string,
  onUnknown: OnUnknown,
  retryOn: RetryOn,
  retrySchedule: string | null,
  jitter: string,
  ...secrets: string[],
];

type Target = Pick<Review, "url" | "secrets" | "headers" | "policy">;

function toTargets(
  replies: readonly TargetReply[],
  retryScheduleMs: readonly number[],
): ReadonlyMap<string, Target> {
  return new Map(
    replies.map(([webhookId, url, headers, onUnknown, retryOn, schedule, jitter, ...secrets]) => {
      const policy = {
        onUnknown,
        retryOn,
        jitter: Number(jitter),
        retryScheduleMs: schedule === null ? retryScheduleMs : JSON.parse(schedule),
      };
      return [webhookId, { url, secrets, headers: JSON.parse(headers), policy }];
    }),
  );
}

export async function recordAttempts(
  shards: Shards,
  fence: bigint,
  ids: readonly DeliveryId[],
  leaseMs: number,
  retryScheduleMs: readonly number[],
): Promise<readonly RecordedAttempt[]> {
  const calls = callsFor(toItems(ids), RECORD, (items) => [
    String(fence),
    leaseMs,
    MAX_TIMESTAMP_LEAD_S,
    ...toIds(items),
  ]);
  const recorded: RecordedAttempt[] = [];
  const results = await shards.runEach(calls);
  for (const reply of results.flatMap(replyOf)) {
    const [rows, targetReplies, contents] = reply as readonly [
      readonly (readonly (Buffer | number)[])[],
      readonly (readonly (Buffer | null)[])[],
      readonly (readonly [event: Buffer, content: Buffer])[],
    ];
    const texts = targetReplies.map((reply) => reply.map((part) => part?.toString() ?? null));
    const targets = toTargets(texts as unknown as readonly TargetReply[], retryScheduleMs);
    const bodies = new Map(contents.map(([event, content]) => [event.toString(), splitContent(content)]));
    for (const row of rows) {
      const [id, webhookId, eventId] = row.slice(0, 3).map(String) as [DeliveryId, WebhookId, EventId];
      const [number, tries, timestamp] = row.slice(3) as [number, number, number];
      const target = targets.get(webhookId);
      const content = bodies.get(eventId);
      if (!target || !content) continue;
      recorded.push({
        id,
        webhookId,
        fence,
        eventId,
        number,
        tries,
        timestamp: BigInt(timestamp),
        ...content,
        ...target,
      });
    }
  }
  if (recorded.length === 0) throwFirst(results);
  return recorded;
}

export async function review(
  shards: Shards,
  fence: bigint,
  ids: readonly DeliveryId[],
  retryScheduleMs: readonly number[],
): Promise<readonly Review[]> {
  const calls = callsFor(toItems(ids), REVIEW, (items) => [String(fence), ...toIds(items)]);
  const replies = (await shards.runAll(calls)) as readonly (readonly [
    readonly (readonly [DeliveryId, WebhookId, EventId, number, number, number, number])[],
    readonly TargetReply[],
  ])[];
  return replies.flatMap(([rows, targetReplies]) => {
    const targets = toTargets(targetReplies, retryScheduleMs);
    return rows.flatMap(([id, webhookId, eventId, tries, asks, timestamp, firstSecond]) => {
      const target = targets.get(webhookId);
      if (!target) return [];
      const lastTimestamp = BigInt(timestamp);
      const firstAttemptAt = new Date(firstSecond * 1_000);
      return [{ id, webhookId, eventId, tries, asks, lastTimestamp, firstAttemptAt, ...target }];
    });
  });
}

export async function finish(
  shards: Shards,
  fence: bigint,
  attempts: readonly FinishedAttempt[],
): Promise<FinishReport> {
  const toArguments = ({ id, result, next }: FinishedAttempt): readonly Argument[] => [
    id,
    result.outcome,
    result.status ?? "",
    optional(result.error),
    optional(result.response),
    next.state,
    delayOf(next) ?? "",
    next.state === "failed" && next.disableWebhook ? "1" : "",
  ];
  const calls = callsFor(attempts, FINISH, (items) => [
    String(fence),
    MAX_TIMESTAMP_LEAD_S,
    ...items.flatMap(toArguments),
  ]);
  return report(attempts, calls, await shards.runAll(calls));
}

export async function settle(
  shards: Shards,
  fence: bigint,
  doubts: readonly SettledDoubt[],
): Promise<FinishReport> {
  const toArguments = ({ id, next, error }: SettledDoubt): readonly Argument[] => [
    id,
    next.state,
    optional(error),
    delayOf(next) ?? "",
  ];
  const calls = callsFor(doubts, SETTLE, (items) => [String(fence), ...items.flatMap(toArguments)]);
  return report(doubts, calls, await shards.runAll(calls));
}

function delayOf(next: FinishedAttempt["next"]): number | null {
  if (next.state === "pending") return next.delayMs;
  return next.state === "in_doubt" ? next.askInMs : null;
}

/** Each reply has the states of its call's items, in their order; an empty one was not recorded. */
function report(
  asked: readonly { readonly id: DeliveryId }[],
  calls: readonly { readonly items: readonly { readonly id: DeliveryId }[] }[],
  replies: readonly unknown[],
): FinishReport {
  const recorded = calls.flatMap(({ items }, call) =>
    items.flatMap(({ id }, i) => {
      const state = (replies[call] as FinishReport["recorded"][number]["state"][])[i];
      return state ? [{ id, state }] : [];
    }),
  );
  const done = new Set(toIds(recorded));
  return { recorded, stale: toIds(asked.filter(({ id }) => !done.has(id))) };
}

export async function extend(
  shards: Shards,
  fence: bigint,
  ids: readonly DeliveryId[],
  leaseMs: number,
): Promise<readonly DeliveryId[]> {
  const calls = callsFor(toItems(ids), EXTEND, (items) => [String(fence), leaseMs, ...toIds(items)]);
  return ((await shards.runAll(calls)) as DeliveryId[][]).flat();
}

export async function release(shards: Shards, fence: bigint, ids: readonly DeliveryId[]): Promise<void> {
  await shards.runAll(
    callsFor(toItems(ids), RELEASE, (items) => [String(fence), MAX_TIMESTAMP_LEAD_S, ...toIds(items)]),
  );
}
