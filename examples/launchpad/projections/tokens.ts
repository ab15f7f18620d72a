import { sql } from "drizzle-orm";
import { integer, pgTable } from "drizzle-orm/pg-core";
import { address, defineProjection, i128, type ProjectedEvent, type ProjectionDb, token } from "fencepost";
import { z } from "zod";
import { launchToken } from "../contracts.ts";

/** One row a token. */
export const tokens = pgTable("tokens", {
  contract: address().primaryKey(),
  supply: i128().notNull(),
  /** How many events are in this row. */
  events: integer().notNull(),
  /** The token of the last event that wrote this row: where on the chain it stands. */
  lastToken: token("last_token").notNull(),
});

/** One row an address that ever held the token. */
export const accounts = pgTable("accounts", {
  address: address().primaryKey(),
  balance: i128().notNull(),
  lastToken: token("last_token").notNull(),
});

export const tokensProjection = defineProjection({
  name: "tokens",
  version: 1,
  contracts: { token: launchToken },
  tables: { tokens, accounts },
  messages: {
    "token.transferred": z.object({ from: z.string(), to: z.string(), amount: z.bigint() }),
  },
  on: {
    "token:mint": async ({ event, db }) => {
      const { to, amount } = event.data;
      await addToSupply(db, event, amount);
      await addToBalance(db, event, to, amount);
    },

    "token:transfer": async ({ event, db, emit }) => {
      const { from, to, amount } = event.data;
      await addToSupply(db, event, 0n);
      await addToBalance(db, event, from, -amount);
      await addToBalance(db, event, to, amount);
      emit("token.transferred", event.data);
    },
  },
});

async function addToSupply(db: ProjectionDb, event: ProjectedEvent, amount: bigint): Promise<void> {
  await db
    .insert(tokens)
    .values({ contract: event.contractId, supply: amount, events: 1, lastToken: event.token })
    .onConflictDoUpdate({
      target: tokens.contract,
      set: {
        supply: sql`${tokens.supply} + excluded.supply`,
        events: sql`${tokens.events} + 1`,
        lastToken: event.token,
      },
    });
}

async function addToBalance(
  db: ProjectionDb,
  event: ProjectedEvent,
  holder: string,
  amount: bigint,
): Promise<void> {
  await db
    .insert(accounts)
    .values({ address: holder, balance: amount, lastToken: event.token })
    .onConflictDoUpdate({
      target: accounts.address,
      set: { balance: sql`${accounts.balance} + excluded.balance`, lastToken: event.token },
    });
}
