import { type Chain, scv } from "@fencepost/simulator";
import { sql } from "drizzle-orm";
import { pgTable, text } from "drizzle-orm/pg-core";
import { z } from "zod";
import { defineContract, defineProjection, i128, token } from "../../index.ts";

/** A contract of pools, as the tests of the whole line use it: each event locks an amount in a pool. */
export const POOL_CONTRACT = scv.contractId("pool");

export const pool = defineContract({
  id: POOL_CONTRACT,
  startLedger: 1,
  events: { assets_locked: z.object({ pool_id: z.string(), amount: z.bigint() }) },
});

/** A row a pool: the sum of what was locked, in how many events, and the token of the last. */
export const poolTable = pgTable("pools", {
  id: text().primaryKey(),
  locked: i128().notNull(),
  events: i128().notNull(),
  lastToken: token("last_token").notNull(),
});

export const poolsProjection = defineProjection({
  name: "pools",
  version: 1,
  contracts: { pool },
  tables: { poolTable },
  messages: { "pool.assets_locked": z.object({ pool_id: z.string(), amount: z.bigint() }) },
  on: {
    "pool:assets_locked": async ({ event, db, emit }) => {
      const { pool_id, amount } = event.data;
      await db
        .insert(poolTable)
        .values({ id: pool_id, locked: amount, events: 1n, lastToken: event.token })
        .onConflictDoUpdate({
          target: poolTable.id,
          set: {
            locked: sql`${poolTable.locked} + excluded.locked`,
            events: sql`${poolTable.events} + 1`,
            lastToken: sql`excluded.last_token`,
          },
        });
      emit("pool.assets_locked", event.data);
    },
  },
});

/** Closes ledgers with `count` events, spread over transactions, operations and pools. */
export function lockAssets(chain: Chain, count: number, { perLedger = 20 } = {}): void {
  let amount = [...chain.events()].length;
  for (let left = count; left > 0; left -= perLedger) {
    const events = Array.from({ length: Math.min(left, perLedger) }, (_, i) => {
      amount++;
      return {
        contract: POOL_CONTRACT,
        topics: [scv.sym("assets_locked")],
        value: scv.struct({ pool_id: scv.str(`pool ${amount % 7}`), amount: scv.i128(BigInt(amount)) }),
        tx: 1 + Math.floor(i / 4),
        op: Math.floor((i % 4) / 2),
      };
    });
    chain.close({ events });
  }
}
