import { fromDrizzle, type WebhookMessage } from "@fencepost/receiver";
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { numeric, pgTable, text } from "drizzle-orm/pg-core";
import { pool, receiver } from "./receiver.ts";

const locks = pgTable("locks", { token: text(), amount: numeric() });
const db = drizzle(pool);

export async function record(message: WebhookMessage) {
  const { amount } = message.data as { amount: string };
  await db.transaction((tx) =>
    receiver.once(fromDrizzle(tx, sql), message, () =>
      tx.insert(locks).values({ token: message.fencingToken ?? null, amount }),
    ),
  );
}
