import { eq, sql } from "drizzle-orm";
import { integer, pgTable, text, timestamp } from "drizzle-orm/pg-core";
import { address, defineProjection, i128, token, u64 } from "fencepost";
import { z } from "zod";
import { stream } from "../contracts.ts";

/** One row a stream. */
export const streams = pgTable("streams", {
  id: u64().primaryKey(),
  recipient: address().notNull(),
  total: i128().notNull(),
  withdrawn: i128().notNull(),
  startsAt: timestamp("starts_at", { withTimezone: true }).notNull(),
  endsAt: timestamp("ends_at", { withTimezone: true }).notNull(),
  status: text({ enum: ["running", "cancelled"] }).notNull(),
  /** How many events are in this row. */
  events: integer().notNull(),
  /** The token of the last event that wrote this row: where on the chain it stands. */
  lastToken: token("last_token").notNull(),
});

export const streamsProjection = defineProjection({
  name: "streams",
  version: 1,
  contracts: { stream },
  tables: { streams },
  messages: {
    "stream.withdrawn": z.object({ stream_id: z.bigint(), amount: z.bigint() }),
    "stream.cancelled": z.object({ stream_id: z.bigint(), returned: z.bigint() }),
  },
  on: {
    "stream:created": async ({ event, db }) => {
      const { stream_id, recipient, total, start, end } = event.data;
      await db.insert(streams).values({
        id: stream_id,
        recipient,
        total,
        withdrawn: 0n,
        startsAt: new Date(Number(start) * 1000),
        endsAt: new Date(Number(end) * 1000),
        status: "running",
        events: 1,
        lastToken: event.token,
      });
    },

    "stream:withdrawn": async ({ event, db, emit }) => {
      const { stream_id, amount } = event.data;
      await db
        .update(streams)
        .set({
          withdrawn: sql`${streams.withdrawn} + ${amount}`,
          events: sql`${streams.events} + 1`,
          lastToken: event.token,
        })
        .where(eq(streams.id, stream_id));
      emit("stream.withdrawn", event.data);
    },

    "stream:cancelled": async ({ event, db, emit }) => {
      await db
        .update(streams)
        .set({ status: "cancelled", events: sql`${streams.events} + 1`, lastToken: event.token })
        .where(eq(streams.id, event.data.stream_id));
      emit("stream.cancelled", event.data);
    },
  },
});
