import { type Chain, scv } from "@fencepost/simulator";
import { sql } from "drizzle-orm";
import { pgTable, text } from "drizzle-orm/pg-core";
import { z } from "zod";
import { defineContract, defineProjection, i128, type Projection, token } from "../../index.ts";

/** A contract of pools, as the tests of the whole line use it: each event locks an amount in a pool. */
export const POOL_CONTRACT = scv.contractId("pool");

const pool = defineContract({
  id: POOL_CONTRACT,
  startLedger: 1,
  events: { assets_locked: z.object({ pool_id: z.string(), amount: z.bigint() }) },
});

/** A row a pool: the sum of what was locked, in how many events, and the token of the last. */
const poolTable = pgTable("pools", {
  id: text().primaryKey(),
  locked: i128().notNull(),
  events: i128().notNull(),
  lastToken: token("last_token").notNull(),
});

/** The projection of the pools, in a version: all versions do the same. */
export function poolsProjection(version = 1): Projection {
  return defineProjection({
    name: "pools",
    version,
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
}

/** Closes ledgers with `count` events, spread over transactions, operations and pools: amounts 1, 2, 3 … */
export function lockAssets(chain: Chain, count: number, { perLedger = 20 } = {}): void {
  let amount = [...chain.events()].length;
  for (let left = count; left > 0; left -= perLedger) {
    const events = Array.from({ length: Math.min(left, perLedger) }, (_, i) => {
      amount++;
      return {
        contract: POOL_CONTRACT,
        topics: [scv.sym("assets_locked")],
        value: scv.struct({ pool_id: scv.str(poolOf(amount)), amount: scv.i128(BigInt(amount)) }),
        tx: 1 + Math.floor(i / 4),
        op: Math.floor((i % 4) / 2),
      };
    });
    chain.close({ events });
  }
}

/** What the table must hold once `count` events are projected, each once. */
export function expectedPools(count: number): readonly { id: string; locked: string; events: string }[] {
  const pools = new Map<string, { locked: bigint; events: bigint }>();
  for (let amount = 1; amount <= count; amount++) {
    const { locked, events } = pools.get(poolOf(amount)) ?? { locked: 0n, events: 0n };
    pools.set(poolOf(amount), { locked: locked + BigInt(amount), events: events + 1n });
  }
  return [...pools]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([id, { locked, events }]) => ({ id, locked: `${locked}`, events: `${events}` }));
}

function poolOf(amount: number): string {
  return `pool ${amount % 7}`;
}
