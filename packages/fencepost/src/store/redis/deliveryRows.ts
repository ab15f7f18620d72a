// What a delivery is to its readers, and what a person may do about one.
import type { EventId } from "@fencepost/token";
import type {
  Attempt,
  AttemptOutcome,
  Delivery,
  DeliveryFilter,
  DeliveryId,
  Page,
  Resolution,
} from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { deliveriesIn } from "./dispatching.ts";
import { FIND_DELIVERY, LIST_ATTEMPTS, LIST_DELIVERIES, REDELIVER, RESOLVE } from "./lua/deliveries.ts";
import { type DeliveryReply, toDate, toDelivery } from "./replies.ts";
import { ALL_SHARDS, type Argument, type Script, type Shards, shardOf, shardOfDelivery } from "./shards.ts";

/** Deliveries of one message, and attempts of one delivery, that are listed at the most. */
const MAX_LISTED = 1_000;
/** Deliveries that one script looks at for a page. */
const LOOK = 1_000;

async function runOnDelivery(
  shards: Shards,
  script: Script,
  id: DeliveryId,
  ...args: readonly Argument[]
): Promise<Delivery | undefined> {
  const shard = shardOfDelivery(id);
  if (shard === undefined) return undefined;
  const reply = await shards.run({ script, shard, args: [id, ...args] });
  return reply ? toDelivery(reply as DeliveryReply) : undefined;
}

export function findDelivery(shards: Shards, id: DeliveryId): Promise<Delivery | undefined> {
  return runOnDelivery(shards, FIND_DELIVERY, id);
}

export function redeliver(shards: Shards, id: DeliveryId): Promise<Delivery | undefined> {
  return runOnDelivery(shards, REDELIVER, id);
}

export function resolve(
  shards: Shards,
  id: DeliveryId,
  resolution: Resolution,
): Promise<Delivery | undefined> {
  return runOnDelivery(shards, RESOLVE, id, resolution);
}

/** A page after a delivery that was pruned is empty: older ones may have gone with it. */
export async function listDeliveries(
  shards: Shards,
  id: WebhookId,
  { state, needsPerson = false }: DeliveryFilter,
  { after = "", limit }: Page,
): Promise<readonly Delivery[]> {
  const found: Delivery[] = [];
  // Bounded: it goes through the deliveries of a webhook once.
  for (let place: string | null = ""; place !== null && found.length < limit; ) {
    const args = [id, after, place, state ?? "", needsPerson ? "1" : "", limit - found.length, LOOK];
    const reply = await shards.run({ script: LIST_DELIVERIES, shard: shardOf(id), args });
    const [rows, next] = reply as readonly [DeliveryReply[], string | null];
    found.push(...rows.map(toDelivery));
    place = next;
  }
  return found;
}

export async function deliveriesOf(shards: Shards, eventId: EventId): Promise<readonly Delivery[]> {
  const found = await Promise.all(ALL_SHARDS.map((shard) => deliveriesIn(shards, shard, eventId)));
  return found
    .flat()
    .sort((a, b) => (a.webhookId < b.webhookId ? -1 : 1))
    .slice(0, MAX_LISTED);
}

type AttemptReply = readonly [
  number: number,
  url: string,
  timestamp: number,
  startedAt: number,
  finishedAt: number | null,
  outcome: AttemptOutcome | null,
  status: number | null,
  error: string | null,
  response: string | null,
  lateOutcome: string | null,
];

export async function listAttempts(shards: Shards, id: DeliveryId): Promise<readonly Attempt[]> {
  const shard = shardOfDelivery(id);
  if (shard === undefined) return [];
  const reply = await shards.run({ script: LIST_ATTEMPTS, shard, args: [id, MAX_LISTED] });
  return (reply as readonly AttemptReply[]).map(
    ([number, url, timestamp, startedAt, finishedAt, outcome, status, error, response, lateOutcome]) => ({
      number,
      url,
      timestamp: BigInt(timestamp),
      startedAt: new Date(startedAt),
      finishedAt: toDate(finishedAt),
      outcome,
      status,
      error,
      response,
      lateOutcome,
    }),
  );
}
