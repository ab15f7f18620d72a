import { and, eq, sql } from "drizzle-orm";
import { integer, pgTable, primaryKey, text, timestamp } from "drizzle-orm/pg-core";
import { address, defineProjection, i128, token, u64 } from "fencepost";
import { z } from "zod";
import { campaign } from "../contracts.ts";

/** One row a campaign. */
export const campaigns = pgTable("campaigns", {
  id: u64().primaryKey(),
  owner: address().notNull(),
  goal: i128().notNull(),
  deadline: timestamp({ withTimezone: true }).notNull(),
  raised: i128().notNull(),
  status: text({ enum: ["open", "funded", "refunding"] }).notNull(),
  /** How many events are in this row. */
  events: integer().notNull(),
  /** The token of the last event that wrote this row: where on the chain it stands. */
  lastToken: token("last_token").notNull(),
});

/** One row a backer of a campaign. */
export const pledges = pgTable(
  "pledges",
  {
    campaignId: u64("campaign_id").notNull(),
    backer: address().notNull(),
    amount: i128().notNull(),
    lastToken: token("last_token").notNull(),
  },
  (table) => [primaryKey({ columns: [table.campaignId, table.backer] })],
);

const pledge = z.object({ campaign_id: z.bigint(), backer: z.string(), amount: z.bigint() });

export const campaignsProjection = defineProjection({
  name: "campaigns",
  version: 1,
  contracts: { campaign },
  tables: { campaigns, pledges },
  messages: {
    "campaign.pledged": pledge,
    "campaign.funded": z.object({ campaign_id: z.bigint(), raised: z.bigint(), backers: z.number() }),
    "campaign.refunded": pledge,
  },
  on: {
    "campaign:created": async ({ event, db }) => {
      const { id, owner, goal, deadline } = event.data;
      await db.insert(campaigns).values({
        id,
        owner,
        goal,
        deadline: new Date(Number(deadline) * 1000),
        raised: 0n,
        status: "open",
        events: 1,
        lastToken: event.token,
      });
    },

    "campaign:pledged": async ({ event, db, emit }) => {
      const { campaign_id, backer, amount } = event.data;
      await db
        .update(campaigns)
        .set({
          raised: sql`${campaigns.raised} + ${amount}`,
          events: sql`${campaigns.events} + 1`,
          lastToken: event.token,
        })
        .where(eq(campaigns.id, campaign_id));
      await db
        .insert(pledges)
        .values({ campaignId: campaign_id, backer, amount, lastToken: event.token })
        .onConflictDoUpdate({
          target: [pledges.campaignId, pledges.backer],
          set: { amount: sql`${pledges.amount} + excluded.amount`, lastToken: event.token },
        });
      emit("campaign.pledged", event.data);
    },

    "campaign:funded": async ({ event, db, emit }) => {
      const { campaign_id, raised } = event.data;
      await db
        .update(campaigns)
        .set({ status: "funded", events: sql`${campaigns.events} + 1`, lastToken: event.token })
        .where(eq(campaigns.id, campaign_id));
      // A message may say more than its event: the handler reads its own tables, in the same transaction.
      const backers = await db.$count(pledges, eq(pledges.campaignId, campaign_id));
      emit("campaign.funded", { campaign_id, raised, backers });
    },

    "campaign:refunded": async ({ event, db, emit }) => {
      const { campaign_id, backer, amount } = event.data;
      await db
        .update(campaigns)
        .set({
          raised: sql`${campaigns.raised} - ${amount}`,
          status: "refunding",
          events: sql`${campaigns.events} + 1`,
          lastToken: event.token,
        })
        .where(eq(campaigns.id, campaign_id));
      await db
        .update(pledges)
        .set({ amount: sql`${pledges.amount} - ${amount}`, lastToken: event.token })
        .where(and(eq(pledges.campaignId, campaign_id), eq(pledges.backer, backer)));
      emit("campaign.refunded", event.data);
    },
  },
});
