// Where things are in Redis, and how a script gets there.
import { createHash } from "node:crypto";
import type { Cluster, Redis } from "ioredis";
import type { DeliveryId } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { InvalidPrefixError } from "./errors.ts";

/** For ever: the shard of a webhook is part of the ids of its deliveries. */
const SHARD_COUNT = 16;

/**
 * The keys of a shard, all in one slot. In Lua each has its name in capitals.
 *
 * Members of lists that are read by range are texts with `|` between their parts; numbers in them are padded, so that
 * the order of the texts is that of the numbers. Records are packed by cmsgpack.
 */
export const SHARD_KEYS = [
  "webhooks", // webhook → record; a deleted one stays, so that its id is not used again
  "names", // webhooks that are not deleted, by id
  "takers", // type|webhook, of webhooks that are active
  "lanes", // webhook, by the time at which something of it may be claimed
  "deliveries", // delivery → record
  "queue", // delivery → what is due or claimed: due, fence, attempted, asking
  "waiting", // webhook|due|delivery, of the queue, that nobody holds
  "held", // webhook|end of the lease|delivery, of the queue
  "strict", // webhook|position|delivery, that has not succeeded: the first may be sent
  "attempts", // delivery|number → record, of those that have ended; the one under way is in the delivery's
  "ofwebhook", // webhook|n|delivery
  "ofevent", // event|delivery
  "open", // webhook|n|delivery, that failed or is in doubt
  "ended", // delivery that may be pruned, by the time at which it ended
  "contents", // event → token, line break, body: of the deliveries here
  "chores", // kind|webhook, that waits to be seen to: catchup, untold, and of a deleted one ending and leaving
  "numbers", // delivery: the last n. In the first shard: fence, position
  "messages", // event → record, of messages that callers dispatched and whose home is here
  "bytime", // time|event, of the messages
  "byuse", // event, of the messages, by the time of its last use
] as const;

type ShardKey = (typeof SHARD_KEYS)[number];

/** What one script is, and which keys of its shard it declares. */
export interface Script {
  readonly source: string;
  readonly sha: string;
  readonly keys: readonly ShardKey[];
  /** Replies have bytes in them, and are read as buffers. */
  readonly binary: boolean;
}

export type Argument = string | number | Buffer;

export interface ScriptCall {
  readonly script: Script;
  readonly shard: number;
  readonly args: readonly Argument[];
}

/** The shards of one store, on one server or on a cluster. */
export interface Shards {
  run(call: ScriptCall): Promise<unknown>;
  /** All at once, each on its own: one that fails does not stop the others. */
  runEach(calls: readonly ScriptCall[]): Promise<readonly PromiseSettledResult<unknown>[]>;
  /** All at once; the first error is thrown, when all have ended. */
  runAll(calls: readonly ScriptCall[]): Promise<readonly unknown[]>;
  /** One more than the last time, as decimal text. */
  drawNumber(name: string): Promise<string>;
}

export function openShards(client: Redis | Cluster, prefix: string): Shards {
  if (!/^[\w.:-]{1,64}$/.test(prefix)) throw new InvalidPrefixError(prefix);
  const keyOf = (shard: number, key: ShardKey): string => `{${prefix}:${shard}}:${key}`;

  const command = (name: "EVALSHA" | "EVAL", { script, shard, args }: ScriptCall): Argument[] => {
    const keys = script.keys.map((key) => keyOf(shard, key));
    return [name, name === "EVAL" ? script.source : script.sha, keys.length, ...keys, ...args];
  };
  const send = (name: "EVALSHA" | "EVAL", call: ScriptCall): Promise<unknown> => {
    const [first, ...rest] = command(name, call) as [string, ...Argument[]];
    return call.script.binary ? client.callBuffer(first, ...rest) : client.call(first, ...rest);
  };

  async function run(call: ScriptCall): Promise<unknown> {
    try {
      return await send("EVALSHA", call);
    } catch (error) {
      if (!isUnknownScript(error)) throw error;
      return send("EVAL", call);
    }
  }

  async function runEach(calls: readonly ScriptCall[]): Promise<readonly PromiseSettledResult<unknown>[]> {
    if (client.isCluster || calls.length === 1) return Promise.allSettled(calls.map(run));
    // On one server they share a packet.
    const pipeline = client.pipeline();
    for (const call of calls) {
      const [first, ...rest] = command("EVALSHA", call) as [string, ...Argument[]];
      if (call.script.binary) pipeline.callBuffer(first, ...rest);
      else pipeline.call(first, ...rest);
    }
    const replies = (await pipeline.exec()) ?? [];
    return Promise.allSettled(
      calls.map((call, i) => {
        const [error, reply] = replies[i] ?? [];
        if (!error) return reply;
        return isUnknownScript(error) ? send("EVAL", call) : Promise.reject(error);
      }),
    );
  }

  return {
    run,
    runEach,
    async runAll(calls) {
      return (await runEach(calls)).map((result) => {
        if (result.status === "rejected") throw result.reason;
        return result.value;
      });
    },
    drawNumber: async (name) => String(await client.hincrby(keyOf(0, "numbers"), name, 1)),
  };
}

/** It has not run. A cluster's client that was redirected too often says so within an error of its own. */
function isUnknownScript(error: unknown): boolean {
  return error instanceof Error && /^(?:Too many Cluster redirections\. .*)?NOSCRIPT\b/.test(error.message);
}

/** The shard in which everything about a webhook is, or the home of a message that a caller dispatched. */
export function shardOf(id: string): number {
  return (createHash("sha256").update(id).digest()[0] ?? 0) % SHARD_COUNT;
}

/** Undefined: no delivery has such an id. */
export function shardOfDelivery(id: DeliveryId): number | undefined {
  const [, shard] = /^dlv_([0-9a-f]{2})[0-9a-f]{32}$/.exec(id) ?? [];
  const number = Number.parseInt(shard ?? "ff", 16);
  return number < SHARD_COUNT ? number : undefined;
}

/** A webhook's id is part of the texts in lists. */
export function isWebhookId(id: WebhookId): boolean {
  return /^[\w-]{1,64}$/.test(id);
}

export const ALL_SHARDS: readonly number[] = Array.from({ length: SHARD_COUNT }, (_, shard) => shard);

/** Items by what they have in common, in their order. */
export function groupBy<T, Key>(
  items: readonly T[],
  keyOf: (item: T) => Key,
): ReadonlyMap<Key, readonly T[]> {
  const groups = new Map<Key, T[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}
