// How deliveries stand. Scripts keep count of them as they change them, in the shard of their webhook.
import type { DeliveryCounts, DeliveryHealth } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { COUNT_WAITING, READ_LAG, READ_SUMS } from "./lua/counts.ts";
import { ALL_SHARDS, groupBy, type Shards, shardOf } from "./shards.ts";

/** Webhooks of a shard whose lag is looked at, those that are due first: the server does nothing else meanwhile. */
const LANES = 500;

/** Sums over all shards, by name; those of one shard are of one moment. */
async function readSums<Name extends string>(
  shards: Shards,
  names: readonly Name[],
): Promise<Readonly<Record<Name, number>>> {
  const calls = ALL_SHARDS.map((shard) => ({ script: READ_SUMS, shard, args: names }));
  const replies = (await shards.runAll(calls)) as readonly (readonly (string | null)[])[];
  const sums = names.map((name, i) => [name, replies.reduce((sum, reply) => sum + Number(reply[i] ?? 0), 0)]);
  return Object.fromEntries(sums) as Record<Name, number>;
}

export function countDeliveries(shards: Shards): Promise<DeliveryCounts> {
  return readSums(shards, ["pending", "sending", "success", "failed", "in_doubt"]);
}

export async function countWaiting(
  shards: Shards,
  ids: readonly WebhookId[],
): Promise<ReadonlyMap<WebhookId, number>> {
  const groups = [...groupBy(ids, shardOf)];
  const calls = groups.map(([shard, args]) => ({ script: COUNT_WAITING, shard, args }));
  const replies = (await shards.runAll(calls)) as readonly (readonly number[])[];
  return new Map(
    groups.flatMap(([, group], g) => group.map((id, i): [WebhookId, number] => [id, replies[g]?.[i] ?? 0])),
  );
}

export async function readHealth(shards: Shards): Promise<DeliveryHealth> {
  const { stuck, disabled } = await readSums(shards, ["stuck", "disabled"]);
  const calls = ALL_SHARDS.map((shard) => ({ script: READ_LAG, shard, args: [LANES] }));
  const lags = (await shards.runAll(calls)) as readonly number[];
  return { dueLagSeconds: Math.max(...lags) / 1000, inDoubt: stuck, disabledWebhooks: disabled };
}
