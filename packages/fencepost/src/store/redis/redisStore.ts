import type { Cluster, Redis } from "ioredis";
import { RETRY_SCHEDULE_MS } from "../decideDelivery.ts";
import type { DeliveryStore } from "../deliveryStore.ts";
import { claim, extend, finish, recordAttempts, release, review, settle } from "./claims.ts";
import { countDeliveries, countWaiting, readHealth } from "./counts.ts";
import {
  deliveriesOf,
  findDelivery,
  listAttempts,
  listDeliveries,
  redeliver,
  resolve,
} from "./deliveryRows.ts";
import { dispatch, replay } from "./dispatching.ts";
import { readRunIds } from "./servers.ts";
import { openShards, type Shards } from "./shards.ts";
import { endDeleted, listUntold, markTold, prune } from "./upkeep.ts";
import {
  activateWebhook,
  addWebhook,
  deactivateWebhook,
  deleteWebhook,
  findWebhook,
  listWebhooks,
  rotateSecret,
  updateWebhook,
} from "./webhooks.ts";

export interface RedisStoreOptions {
  /** What every key begins with, in braces with the number of its shard; `fp` unless given. */
  readonly prefix?: string;
  /** Delays between attempts, in milliseconds, of webhooks without their own; that of Standard Webhooks unless given. */
  readonly retryScheduleMs?: readonly number[];
}

/** A delivery store in Redis, and what `relayedStore` needs to put the outbox of an engine in front of it. */
export interface RedisDeliveryStore extends DeliveryStore<never> {
  readonly shards: Shards;
  /** Of the servers that take writes: another when one was started again, or a replica took over. */
  runIds(): Promise<readonly string[]>;
}

/**
 * The delivery store in Redis 7 or Valkey, on one server or a cluster, for callers of `dispatch`: there is no outbox,
 * so nothing is fanned out or caught up on. The servers are not looked at: `openRedisStore` does that.
 */
export function redisStore(
  client: Redis | Cluster,
  { prefix = "fp", retryScheduleMs = RETRY_SCHEDULE_MS }: RedisStoreOptions = {},
): RedisDeliveryStore {
  const shards = openShards(client, prefix);
  return {
    shards,
    runIds: () => readRunIds(client),

    addWebhook: (webhook) => addWebhook(shards, webhook, false),
    findWebhook: (id) => findWebhook(shards, id),
    listWebhooks: (page) => listWebhooks(shards, page),
    updateWebhook: (id, changes) => updateWebhook(shards, id, changes),
    rotateSecret: (id, secret, overlapMs) => rotateSecret(shards, id, secret, overlapMs),
    async activateWebhook(id, missed) {
      const webhook = await activateWebhook(shards, id, missed, false);
      return webhook && { webhook, missed: 0 };
    },
    deactivateWebhook: (id, reason) => deactivateWebhook(shards, id, reason),
    deleteWebhook: (id) => deleteWebhook(shards, id),

    dispatch: (message, { only }) => dispatch(shards, message, only),
    fanOut: async () => ({ messages: 0, deliveries: 0 }),
    catchUp: async () => ({ messages: 0, deliveries: 0 }),
    replay: (id, page) => replay(shards, id, page),

    claim: (options) => claim(shards, options),
    recordAttempts: (fence, ids, leaseMs) => recordAttempts(shards, fence, ids, leaseMs, retryScheduleMs),
    review: (fence, ids) => review(shards, fence, ids, retryScheduleMs),
    finish: (fence, attempts) => finish(shards, fence, attempts),
    settle: (fence, doubts) => settle(shards, fence, doubts),
    extend: (fence, ids, leaseMs) => extend(shards, fence, ids, leaseMs),
    release: (fence, ids) => release(shards, fence, ids),

    findDelivery: (id) => findDelivery(shards, id),
    listDeliveries: (id, filter, page) => listDeliveries(shards, id, filter, page),
    deliveriesOf: (eventId) => deliveriesOf(shards, eventId),
    listAttempts: (id) => listAttempts(shards, id),
    redeliver: (id) => redeliver(shards, id),
    resolve: (id, resolution) => resolve(shards, id, resolution),

    countDeliveries: () => countDeliveries(shards),
    countWaiting: (ids) => countWaiting(shards, ids),
    readHealth: () => readHealth(shards),

    prune: (options) => prune(shards, options),
    endDeleted: (limit) => endDeleted(shards, limit),
    listUntold: () => listUntold(shards),
    markTold: (webhook) => markTold(shards, webhook),
  };
}
