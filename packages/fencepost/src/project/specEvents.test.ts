import { scv } from "@fencepost/simulator";
import { pgTable, text } from "drizzle-orm/pg-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { i128, token } from "../config/columns.ts";
import { defineContract } from "../config/contract.ts";
import { defineProjection } from "../config/projection.ts";
import { rawEvent } from "../xdr/eventReader.ts";
import { type EventSpec, specEvent } from "../xdr/specEvent.ts";

let db: ProjectionDatabase;
beforeAll(async () => {
  db = await openProjectionDatabase();
});
afterAll(() => db.close());

const seen = pgTable("seen", {
  token: token().primaryKey(),
  name: text().notNull(),
  who: text().notNull(),
  amount: i128(),
});

const alice = scv.accountId("alice");
const contract = scv.contractId("pool");

interface Change {
  readonly who: string;
  readonly amount: bigint;
}

const change = (name: string): EventSpec => ({
  name,
  prefix: ["pool", name],
  topics: [["who", "address"]],
  format: "vec",
  data: [["amount", "i128"]],
});

test("events that share a first topic have a handler each, and what does not fit its spec is set aside", async () => {
  const pool = defineContract({
    id: contract,
    startLedger: 1,
    events: {
      "pool:deposit": specEvent<Change>([change("deposit")]),
      "pool:withdraw": specEvent<Change>([change("withdraw")]),
      pool: rawEvent(),
    },
  });
  const projection = defineProjection({
    name: "spec_events",
    version: 1,
    contracts: { pool },
    tables: { seen },
    on: {
      "pool:pool:deposit": async ({ event, db }) => {
        await db.insert(seen).values({ token: event.token, name: event.name, ...event.data });
      },
      "pool:pool:withdraw": async ({ event, db }) => {
        const { who, amount } = event.data;
        await db.insert(seen).values({ token: event.token, name: event.name, who, amount: -amount });
      },
      "pool:pool": async ({ event, db }) => {
        await db.insert(seen).values({ token: event.token, name: event.name, who: event.data.value.type });
      },
    },
  });
  await db.register(projection);
  const event = (name: string, value: string, who = scv.address(alice)) => ({
    contract,
    topics: [scv.sym("pool"), scv.sym(name), who],
    value,
  });
  const tokens = await db.append([
    event("deposit", scv.vec([scv.i128(5n)])),
    event("withdraw", scv.vec([scv.i128(3n)])),
    event("deposit", scv.vec([scv.u128(5n)])),
    event("deposit", scv.vec([scv.i128(5n)]), scv.sym("alice")),
    event("closed", scv.nothing()),
    event("withdraw", scv.vec([scv.i128(1n)])),
  ]);
  await db.run(projection);

  expect(await db.rows("SELECT token, name, who, amount::text FROM spec_events.seen ORDER BY token")).toEqual(
    [
      { token: tokens[0], name: "pool:deposit", who: alice, amount: "5" },
      { token: tokens[1], name: "pool:withdraw", who: alice, amount: "-3" },
      { token: tokens[4], name: "pool", who: "void", amount: null },
      { token: tokens[5], name: "pool:withdraw", who: alice, amount: "-1" },
    ],
  );
  const aside = await db.rows(
    "SELECT token, reason FROM fencepost.quarantine WHERE projection = $1 ORDER BY token",
    [projection.name],
  );
  expect(aside).toEqual([
    { token: tokens[2], reason: "deposit: amount is a u128, not an i128" },
    { token: tokens[3], reason: "deposit: who is a symbol, not an address" },
  ]);
});
