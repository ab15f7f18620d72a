// What must be a type error, and on which line: the compiler reads this file, nothing runs it.
import type { FencingToken } from "@fencepost/token";
import { pgTable, text } from "drizzle-orm/pg-core";
import { expectTypeOf } from "vitest";
import { z } from "zod";
import {
  type DecodedEvent,
  defineConfig,
  defineContract,
  defineProjection,
  discoveredBy,
  i128,
  rawEvent,
  specEvent,
  stellarRpc,
} from "../index.ts";

const pool = defineContract({
  id: "C…",
  startLedger: "latest",
  events: {
    assets_locked: z.object({ pool_id: z.string(), amount: z.bigint() }),
    transfer: {
      topics: ["from", "to"],
      value: "amount",
      schema: z.object({ from: z.string(), to: z.string(), amount: z.bigint() }),
    },
  },
});
const claims = defineContract({
  id: "C…",
  startLedger: 1,
  events: { claimed: z.object({ who: z.string(), at: z.bigint().transform(Number) }) },
});
const locks = pgTable("locks", { id: text().primaryKey(), amount: i128().notNull() });
const start = { name: "pools", version: 1, contracts: { pool, claims }, tables: { locks } } as const;
const messages = {
  "pool.locked": z.object({ pool_id: z.string(), amount: z.bigint() }),
  "claim.made": z.object({ at: z.coerce.number<string>() }),
};

// ── what is right ────────────────────────────────────────────────────────────────────────────────────────
defineProjection({
  ...start,
  messages,
  on: {
    "pool:assets_locked": async ({ event, db, emit }) => {
      expectTypeOf(event.name).toEqualTypeOf<"assets_locked">();
      expectTypeOf(event.data).toEqualTypeOf<{ pool_id: string; amount: bigint }>();
      expectTypeOf(event.token).toEqualTypeOf<FencingToken>();
      expectTypeOf(event.closedAt).toEqualTypeOf<Date>();
      await db.insert(locks).values({ id: event.data.pool_id, amount: event.data.amount });
      const [row] = await db.select().from(locks);
      expectTypeOf(row).toEqualTypeOf<{ id: string; amount: bigint } | undefined>();
      emit("pool.locked", event.data);
      emit("pool.locked", event.data, { key: "again" });
      emit("claim.made", { at: "5" }); // what the schema takes, not what it gives
    },
    "pool:transfer": ({ event }) => {
      expectTypeOf(event.data).toEqualTypeOf<{ from: string; to: string; amount: bigint }>();
    },
    "claims:claimed": ({ event }) => {
      expectTypeOf(event.data).toEqualTypeOf<{ who: string; at: number }>();
    },
  },
});

const generated = defineContract({
  id: "C…",
  startLedger: "oldest",
  events: {
    swap: rawEvent(),
    "pool:burn": specEvent<{ readonly amount: bigint } | { readonly token_id: number }>([]),
  },
});
const generatedStart = { ...start, contracts: { generated } };
defineProjection({
  ...generatedStart,
  on: {
    "generated:swap": ({ event }) => {
      expectTypeOf(event.data).toEqualTypeOf<DecodedEvent>();
    },
    "generated:pool:burn": ({ event }) => {
      expectTypeOf(event.name).toEqualTypeOf<"pool:burn">();
      if ("amount" in event.data) expectTypeOf(event.data.amount).toEqualTypeOf<bigint>();
      // @ts-expect-error only one of the forms has it
      event.data.token_id;
    },
  },
});
// @ts-expect-error the event has two fixed topics
defineProjection({ ...generatedStart, on: { "generated:pool": () => {} } });
// @ts-expect-error what reads nothing
defineContract({ id: "C…", startLedger: 1, events: { swap: { read: 5 } } });

// ── contracts that an event of another one names ─────────────────────────────────────────────────────────
const factory = defineContract({
  id: "C…",
  startLedger: 1,
  events: {
    pool_created: z.object({ pool: z.string(), fee: z.number() }),
    closed: z.object({ last: z.string().nullable() }),
  },
});
const found = defineContract({
  id: discoveredBy(factory, "pool_created", (e) => {
    expectTypeOf(e).toEqualTypeOf<{ pool: string; fee: number }>();
    return e.pool;
  }),
  events: { swap: z.object({ amount: z.bigint() }) },
});
discoveredBy(factory, "closed", (e) => e.last);
defineProjection({
  ...start,
  contracts: { factory, found },
  on: {
    "found:swap": ({ event }) => {
      expectTypeOf(event.data).toEqualTypeOf<{ amount: bigint }>();
      expectTypeOf(event.contractId).toEqualTypeOf<string>();
    },
    // @ts-expect-error a misspelt event of a contract that is found
    "found:swop": () => {},
  },
});
// @ts-expect-error a misspelt event of the factory
discoveredBy(factory, "pool_made", () => "C…");
// @ts-expect-error a field that the event does not have
discoveredBy(factory, "pool_created", (e) => e.pol);
// @ts-expect-error what is no id
discoveredBy(factory, "pool_created", (e) => e.fee);
// @ts-expect-error a factory is watched by its id
discoveredBy(found, "swap", () => "C…");
// @ts-expect-error a contract that is found starts at the ledger that made it
defineContract({ id: discoveredBy(factory, "closed", (e) => e.last), startLedger: 1, events: {} });

const projection = defineProjection({ ...start, on: { "claims:claimed": () => {} } });
defineConfig({
  source: stellarRpc({ network: "testnet", urls: "http://localhost" }),
  projections: [projection],
});

// ── what is wrong, each on its own line ──────────────────────────────────────────────────────────────────
// @ts-expect-error a misspelt event
defineProjection({ ...start, on: { "pool:asset_locked": () => {} } });
// @ts-expect-error a misspelt contract
defineProjection({ ...start, on: { "pol:assets_locked": () => {} } });
// @ts-expect-error an event of another contract
defineProjection({ ...start, on: { "claims:transfer": () => {} } });
defineProjection({
  ...start,
  on: {
    "pool:transfer": () => {},
    // @ts-expect-error the line of the key itself, beside keys that are right
    "pool:asset_locked": () => {},
    "claims:claimed": () => {},
  },
});
defineProjection({
  ...start,
  messages,
  on: {
    "pool:assets_locked": async ({ event, db, emit }) => {
      // @ts-expect-error a misspelt field of the event
      event.data.ammount;
      // @ts-expect-error a bigint is no number
      event.data.amount + 1;
      // @ts-expect-error an event cannot be changed
      event.data = { pool_id: "", amount: 1n };
      // @ts-expect-error a message type that is not declared
      emit("pool.lockd", event.data);
      // @ts-expect-error a field of another type
      emit("pool.locked", { pool_id: 5, amount: 1n });
      // @ts-expect-error a missing field
      emit("pool.locked", { pool_id: "a" });
      // @ts-expect-error a field that is not declared
      emit("pool.locked", { pool_id: "a", amount: 1n, more: true });
      // @ts-expect-error a misspelt column
      await db.insert(locks).values({ id: "a", ammount: 1n });
      // @ts-expect-error a handler is inside a transaction already
      await db.transaction(async () => {});
    },
    "pool:transfer": ({ event }) => {
      // @ts-expect-error a topic that has no such name
      event.data.sender;
    },
  },
});

defineProjection({
  ...start,
  on: {
    "claims:claimed": ({ emit }) => {
      // @ts-expect-error no message is declared at all
      emit("claim.made", { at: "5" });
    },
  },
});

// @ts-expect-error a projection without a version
defineProjection({ name: "pools", contracts: { pool }, tables: {}, on: {} });
// @ts-expect-error a start that is neither a ledger nor a word that is known
defineContract({ id: "C…", startLedger: "newest", events: {} });
// @ts-expect-error what is no projection
defineConfig({ source: stellarRpc({ network: "testnet", urls: "http://localhost" }), projections: [pool] });
