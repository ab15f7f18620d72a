// The engine of the backfill benchmark, in a process of its own; its peak memory is what the benchmark reads.
import { scv } from "@fencepost/simulator";
import { sql } from "drizzle-orm";
import { pgTable, text } from "drizzle-orm/pg-core";
import {
  address,
  createLog,
  defineConfig,
  defineContract,
  defineProjection,
  i128,
  openDatabase,
  prepare,
  startEngine,
  stellarRpc,
  token,
} from "fencepost";
import { z } from "zod";

const [databaseUrl = "", rpcUrl] = process.argv.slice(2);
const received = pgTable("received", {
  account: address().primaryKey(),
  total: i128().notNull(),
  lastToken: token("last_token").notNull(),
  note: text(),
});
const asset = defineContract({
  id: scv.contractId("bench"),
  startLedger: "oldest",
  events: {
    transfer: {
      topics: ["from", "to"],
      value: "amount",
      schema: z.object({ from: z.string(), to: z.string(), amount: z.bigint() }),
    },
  },
});
const projection = defineProjection({
  name: "received",
  version: 1,
  contracts: { asset },
  tables: { received },
  messages: { "asset.received": z.object({ to: z.string(), amount: z.bigint() }) },
  on: {
    "asset:transfer": async ({ event, db, emit }) => {
      const { to, amount } = event.data;
      await db
        .insert(received)
        .values({ account: to, total: amount, lastToken: event.token })
        .onConflictDoUpdate({
          target: received.account,
          set: { total: sql`${received.total} + excluded.total`, lastToken: sql`excluded.last_token` },
        });
      emit("asset.received", { to, amount });
    },
  },
});
const database = openDatabase(databaseUrl);
const config = defineConfig({
  source: stellarRpc({ network: "testnet", urls: rpcUrl, pageLimit: 2_000 }),
  projections: [projection],
});
await prepare(
  { database, config },
  { adopt: false, rebuildChanged: false, signal: AbortSignal.timeout(30_000) },
);
await startEngine({ database, config, log: createLog("warn") });
