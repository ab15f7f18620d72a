// An engine's outbox in PostgreSQL before deliveries in Redis. Redis first, then the outbox: what was offered and not
// taken out is offered again, where it is a no-op.
import { decideMessage } from "../../message/decideMessage.ts";
import { EventContentMismatchError, type Message } from "../../message/payload.ts";
import type {
  DeliveryStore,
  DispatchReport,
  FanOutReport,
  PruneOptions,
  ReplayPage,
  ReplayReport,
} from "../deliveryStore.ts";
import { InvalidCursorError } from "../errors.ts";
import type { Database, DatabaseClient } from "../postgres/database.ts";
import {
  drawPosition,
  firstInOutbox,
  lockRelay,
  nextOldBodies,
  noteRelayed,
  noteServers,
  type Place,
  readMessages,
  readOutbox,
  removeBodies,
} from "../postgres/relay.ts";
import type { Webhook, WebhookId } from "../webhook.ts";
import { claim } from "./claims.ts";
import {
  type CatchUp,
  catchUpOn,
  countMissed,
  dispatchStored,
  nextCatchUps,
  offer,
  replay,
  replayMessages,
  shardsThatTake,
} from "./dispatching.ts";
import { keepMessage } from "./messages.ts";
import type { RedisDeliveryStore } from "./redisStore.ts";
import { type Shards, shardOf } from "./shards.ts";
import { haveDeliveries } from "./upkeep.ts";
import { activateWebhook, addWebhook, findWebhook } from "./webhooks.ts";

/** Messages that one script gets, at the most. */
const MAX_MESSAGES = 200;
/** Webhooks with nothing to catch up on that one call passes over. */
const MAX_CATCH_UPS = 100;
/** What a missed message is counted up to, and how many messages are looked at for it. */
const MAX_MISSED = 10_000;
const MAX_LOOKED_AT = 100_000;
/** How long before the webhook was disabled a message may have occurred that was only made afterwards. */
const LATE_BY_MS = 3_600_000;

/**
 * Deliveries in Redis of the messages that an engine keeps in PostgreSQL. What callers dispatch goes to Redis at once.
 * One process relays at a time, in the order in which messages were made.
 */
export function relayedStore(database: Database, redis: RedisDeliveryStore): DeliveryStore<never> {
  const { shards } = redis;
  return {
    ...redis,
    addWebhook: (webhook) => addWebhook(shards, webhook, true),
    async activateWebhook(id, missed) {
      const before = await findWebhook(shards, id);
      if (!before) return undefined;
      const count = before.active ? 0 : await missedBy(database, shards, before);
      const webhook = await activateWebhook(shards, id, missed, true);
      return webhook && { webhook, missed: count };
    },
    claim: (options) => claim(shards, options, () => firstInOutbox(database)),
    dispatch: (message, { only }) => dispatchRelayed(database, shards, message, only),
    fanOut: (limits) => database.transaction((client) => relay(client, redis, limits)),
    catchUp: (limit) => catchUp(database, shards, limit),
    replay: (id, page) => replayRelayed(database, shards, id, page),
    async prune(options) {
      const inRedis = await redis.prune(options);
      const bodies = await database.transaction((client) => pruneBodies(client, shards, options));
      return { ...inRedis, messages: inRedis.messages + bodies.removed, done: inRedis.done && bodies.done };
    },
  };
}

async function relay(
  client: DatabaseClient,
  redis: RedisDeliveryStore,
  { messages, webhooks }: { readonly messages: number; readonly webhooks: number },
): Promise<FanOutReport> {
  if (!(await lockRelay(client))) return { messages: 0, deliveries: 0 };
  await noteServers(client, await redis.runIds());
  const waiting = await readOutbox(client, Math.min(messages, MAX_MESSAGES));
  const { deliveries, done } = await offer(redis.shards, waiting, messages * webhooks);
  if (done > 0) await noteRelayed(client, waiting.slice(0, done));
  return { messages: waiting.length, deliveries };
}

async function dispatchRelayed(
  database: Database,
  shards: Shards,
  message: Message,
  only: WebhookId | undefined,
): Promise<DispatchReport> {
  const { eventId, token, type, contentHash } = message;
  const [{ position, found }, wanting] = await Promise.all([
    drawPosition(database, eventId),
    only === undefined ? shardsThatTake(shards, [type]) : [shardOf(only)],
  ]);
  if (decideMessage(found?.contentHash, contentHash) === "mismatch") {
    throw new EventContentMismatchError(eventId, token);
  }
  if (found) return dispatchStored(shards, found, { only, isNew: false, wanting });
  const { isNew, stored } = await keepMessage(shards, message, position, only !== undefined);
  return dispatchStored(shards, stored, { only, isNew, wanting });
}

/** One batch of one webhook, drawn anew each time: one with much to catch up on does not keep the others waiting. */
async function catchUp(database: Database, shards: Shards, limit: number): Promise<FanOutReport> {
  for (let webhook = 0; webhook < MAX_CATCH_UPS; webhook++) {
    const waiting = await nextCatchUps(shards);
    const next = waiting[Math.floor(Math.random() * waiting.length)];
    if (!next) break;
    const report = await catchUpNext(database, shards, next, Math.min(limit, MAX_MESSAGES));
    if (report.messages > 0) return report;
  }
  return { messages: 0, deliveries: 0 };
}

async function catchUpNext(
  database: Database,
  shards: Shards,
  next: CatchUp,
  limit: number,
): Promise<FanOutReport> {
  const after = placeOf(next.place) ?? { time: next.deliverFrom.toISOString(), eventId: "" };
  const { looked, messages, last } = await readMessages(database, { after, origins: ["emitted"], limit });
  const place = looked < limit || !last ? null : textOf(last);
  const created = await catchUpOn(shards, next, messages, place);
  // Another process has looked at the same messages.
  if (created === undefined) return { messages: 0, deliveries: 0 };
  return { messages: looked, deliveries: created };
}

function textOf({ time, eventId }: Place): string {
  return `${time}\n${eventId}`;
}

function placeOf(text: string): Place | undefined {
  const [, time, eventId] = /^([\d\-+:. ]{10,40})\n([\w:~-]{1,256})$/.exec(text) ?? [];
  if (time === undefined || eventId === undefined || Number.isNaN(Date.parse(time))) return undefined;
  return { time, eventId };
}

/** Messages of projections first, then what callers dispatched. */
async function replayRelayed(
  database: Database,
  shards: Shards,
  id: WebhookId,
  page: ReplayPage,
): Promise<ReplayReport | undefined> {
  const { from, to, limit, after } = page;
  const place = after === undefined ? undefined : Buffer.from(after, "base64url").toString();
  const isPastPostgres = place?.startsWith("dispatched ") ?? false;
  const reports: Omit<ReplayReport, "next">[] = [];
  let left = limit;
  if (!isPastPostgres) {
    const start = place === undefined ? { time: from.toISOString(), eventId: "" } : placeOf(place);
    if (!start) throw new InvalidCursorError(after ?? "");
    const origins = ["emitted", "suppressed", "dispatched"] as const;
    const batch = Math.min(limit, MAX_MESSAGES);
    const range = { after: start, to: to.toISOString(), origins, limit: batch };
    const { looked, messages, last } = await readMessages(database, range);
    const report = await replayMessages(shards, id, messages);
    if (!report) return undefined;
    if (looked === batch && last) return { ...report, next: Buffer.from(textOf(last)).toString("base64url") };
    reports.push(report);
    left -= looked;
  }
  const dispatched = await replay(shards, id, {
    from,
    to,
    limit: Math.min(left, MAX_MESSAGES),
    ...(isPastPostgres && place !== undefined && { after: place.slice("dispatched ".length) }),
  });
  if (!dispatched) return undefined;
  reports.push(dispatched);
  const sum = (count: (report: Omit<ReplayReport, "next">) => number): number =>
    reports.reduce((total, report) => total + count(report), 0);
  const { next } = dispatched;
  return {
    created: sum(({ created }) => created),
    existing: sum(({ existing }) => existing),
    forgotten: reports.flatMap(({ forgotten }) => forgotten),
    bodiless: reports.flatMap(({ bodiless }) => bodiless),
    next: next === null ? null : Buffer.from(`dispatched ${next}`).toString("base64url"),
  };
}

/** Bodies in PostgreSQL go when no delivery is left that a replay could be asked beside. */
async function pruneBodies(
  client: DatabaseClient,
  shards: Shards,
  options: PruneOptions,
): Promise<{ readonly removed: number; readonly done: boolean }> {
  const round = await nextOldBodies(client, options);
  if (!round) return { removed: 0, done: true };
  const have = await haveDeliveries(shards, round.events);
  const free = round.events.filter((event) => !have.has(event));
  return { removed: await removeBodies(client, free), done: round.done };
}

/** Emitted messages that a webhook takes and did not get while it was not active. */
async function missedBy(
  database: Database,
  shards: Shards,
  { id, deliverFrom, disabledAt }: Webhook,
): Promise<number> {
  const disabled = disabledAt?.getTime() ?? 0;
  const from = new Date(Math.max(deliverFrom.getTime(), disabled - LATE_BY_MS));
  let after: Place = { time: from.toISOString(), eventId: "" };
  let missed = 0;
  for (let seen = 0; seen < MAX_LOOKED_AT && missed < MAX_MISSED; ) {
    const page = await readMessages(database, { after, origins: ["emitted"], limit: MAX_MESSAGES });
    const made = page.messages.filter(({ made, body }) => made >= disabled && body);
    missed += made.length > 0 ? await countMissed(shards, id, made) : 0;
    seen += page.looked;
    if (page.looked < MAX_MESSAGES || !page.last) break;
    after = page.last;
  }
  return Math.min(missed, MAX_MISSED);
}
