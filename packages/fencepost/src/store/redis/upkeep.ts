// What the store does for itself, in small steps: what has ended long ago goes, and what a deleted webhook left ends.
import type { PruneOptions, PruneReport } from "../deliveryStore.ts";
import type { DisabledWebhook, WebhookId } from "../webhook.ts";
import {
  DROP_MESSAGES,
  END_DELETED,
  HAVE_DELIVERIES,
  LIST_UNTOLD,
  LIST_UNUSED,
  MARK_TOLD,
  PRUNE_DELIVERIES,
} from "./lua/deliveries.ts";
import { ALL_SHARDS, type Shards, shardOf } from "./shards.ts";
import { DELETED } from "./webhooks.ts";

/** Webhooks that one call tells of. */
const MAX_UNTOLD = 100;

export async function prune(shards: Shards, { before, limit }: PruneOptions): Promise<PruneReport> {
  let deliveries = 0;
  for (const shard of ALL_SHARDS) {
    if (deliveries >= limit) break;
    const args = [before.getTime(), limit - deliveries];
    deliveries += (await shards.run({ script: PRUNE_DELIVERIES, shard, args })) as number;
  }
  let looked = 0;
  let messages = 0;
  for (const shard of ALL_SHARDS) {
    if (looked >= limit) break;
    const step = await pruneMessages(shards, shard, { before, limit: limit - looked });
    looked += step.looked;
    messages += step.dropped;
  }
  return { deliveries, messages, done: deliveries < limit && looked < limit };
}

/**
 * Messages of callers, in their home: a record goes when no delivery is left that it must be told from. Deliveries are
 * in other shards, where they are looked for first; a dispatch that comes in between has used the record, and it stays.
 */
async function pruneMessages(
  shards: Shards,
  shard: number,
  { before, limit }: PruneOptions,
): Promise<{ readonly looked: number; readonly dropped: number }> {
  const events = (await shards.run({
    script: LIST_UNUSED,
    shard,
    args: [before.getTime(), limit],
  })) as string[];
  if (events.length === 0) return { looked: 0, dropped: 0 };
  const have = await haveDeliveries(shards, events);
  const args = [before.getTime(), ...events.flatMap((event) => [event, have.has(event) ? "1" : ""])];
  const dropped = (await shards.run({ script: DROP_MESSAGES, shard, args })) as number;
  return { looked: events.length, dropped };
}

/** Those of these events that a delivery is of, in any shard. */
export async function haveDeliveries<Event extends string>(
  shards: Shards,
  events: readonly Event[],
): Promise<ReadonlySet<Event>> {
  const calls = ALL_SHARDS.map((shard) => ({ script: HAVE_DELIVERIES, shard, args: events }));
  const replies = (await shards.runAll(calls)) as readonly number[][];
  return new Set(events.filter((_, i) => replies.some((reply) => (reply[i] ?? 0) > 0)));
}

export async function endDeleted(shards: Shards, limit: number): Promise<number> {
  let failed = 0;
  for (const shard of ALL_SHARDS) {
    if (failed >= limit) break;
    failed += (await shards.run({ script: END_DELETED, shard, args: [limit - failed, DELETED] })) as number;
  }
  return failed;
}

export async function listUntold(shards: Shards): Promise<readonly DisabledWebhook[]> {
  const replies = await shards.runAll(
    ALL_SHARDS.map((shard) => ({ script: LIST_UNTOLD, shard, args: [MAX_UNTOLD] })),
  );
  return (replies as readonly (readonly [WebhookId, string, number])[][])
    .flat()
    .map(([id, reason, disabledAt]) => ({ id, reason, disabledAt: new Date(disabledAt) }))
    .sort((a, b) => (a.id < b.id ? -1 : 1))
    .slice(0, MAX_UNTOLD);
}

export async function markTold(shards: Shards, { id, disabledAt }: DisabledWebhook): Promise<void> {
  await shards.run({ script: MARK_TOLD, shard: shardOf(id), args: [id, disabledAt.getTime()] });
}
