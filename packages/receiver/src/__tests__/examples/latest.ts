import type { WebhookMessage } from "@fencepost/receiver";
import type pg from "pg";
import { receiver } from "./receiver.ts";

export async function setPrice(message: WebhookMessage, tx: pg.PoolClient) {
  if (message.fencingToken === undefined) return;
  const { pool_id, price } = message.data as { pool_id: string; price: string };
  if ((await receiver.latest(tx, `price of ${pool_id}`, message.fencingToken)) === "stale") return;
  await tx.query(
    "INSERT INTO prices VALUES ($1, $2) ON CONFLICT (pool_id) DO UPDATE SET price = excluded.price",
    [pool_id, price],
  );
}
