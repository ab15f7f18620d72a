import { deriveEventId, sequenceToken } from "@fencepost/token";
import { pgTable, text } from "drizzle-orm/pg-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { defineContract, defineProducer } from "../config/contract.ts";
import { defineProjection } from "../config/projection.ts";
import { openProducer } from "../ingest/append.ts";
import { registerProjection } from "./registerProjection.ts";

const invoices = pgTable("invoices", { token: text().primaryKey(), amount: text().notNull() });
const billing = defineProducer({
  stream: "billing",
  events: { "invoice.paid": z.object({ amount: z.string() }) },
});
const projection = defineProjection({
  name: "invoices",
  version: 1,
  contracts: { billing },
  tables: { invoices },
  messages: { "invoice.booked": z.object({ amount: z.string() }) },
  on: {
    "billing:invoice.paid": async ({ event, db, emit }) => {
      await db.insert(invoices).values({ token: event.token, amount: event.data.amount });
      emit("invoice.booked", event.data);
    },
  },
});
const tokenOf = (n: bigint) => sequenceToken({ stream: "billing", epoch: "20260101", n });

let bench: ProjectionDatabase;
beforeAll(async () => {
  bench = await openProjectionDatabase();
});
afterAll(() => bench.close());

test("a projection follows the stream of a producer: rows, messages of its own, and what does not fit set aside", async () => {
  const { database } = bench;
  await registerProjection(database, projection, { stream: "billing", rebuildChanged: false });
  await bench.run(projection); // before there is anything
  const producer = openProducer(database, { stream: "billing", epoch: "20260101" });
  const paid = (n: bigint, data: unknown) => ({ n, type: "invoice.paid", data });
  await producer.append([
    paid(1n, { amount: 12n }),
    paid(2n, { sum: 1 }),
    { n: 3n, type: "invoice.sent", data: null },
    paid(4n, { amount: "7" }),
  ]);
  await bench.run(projection);
  await bench.run(projection);

  expect(await bench.rows("SELECT * FROM invoices.invoices ORDER BY token")).toEqual([
    { token: tokenOf(1n), amount: "12" },
    { token: tokenOf(4n), amount: "7" },
  ]);
  const emitted = await bench.rows<{ event_id: string; body: Buffer }>(
    `SELECT event_id, body FROM fencepost.messages JOIN fencepost.message_bodies USING (event_id)
     WHERE projection = 'invoices' ORDER BY token`,
  );
  const booked = (n: bigint) => deriveEventId(tokenOf(n), "invoice.booked");
  expect(emitted.map(({ event_id }) => event_id)).toEqual([booked(1n), booked(4n)]);
  const body = JSON.parse(String(emitted[0]?.body));
  expect(body).toMatchObject({ fencing_token: tokenOf(1n), data: { amount: "12" } });
  expect(body).not.toHaveProperty("source");
  expect(await bench.rows("SELECT token, projection FROM fencepost.quarantine")).toEqual([
    { token: tokenOf(2n), projection: "invoices" },
  ]);
});

test("a projection of two streams is refused when it is declared", () => {
  const id = "CAS3J7GYLGXMF6TDJBBYYSE3HQ6BBSMLNUQ34T6TZMYMW2EVH34XOWMA";
  const pool = defineContract({ id, startLedger: 1, events: { locked: z.unknown() } });
  const declare = () =>
    defineProjection({ name: "mixed", version: 1, contracts: { billing, pool }, tables: {}, on: {} });
  expect(declare).toThrow(/more than one stream/);
  const messages = { "invoice.paid": z.unknown() };
  const contracts = { billing };
  expect(() =>
    defineProjection({ name: "twice", version: 1, contracts, tables: {}, messages, on: {} }),
  ).toThrow(/own event is sent as/);
  expect(() => defineProducer({ stream: "Billing", events: { paid: z.unknown() } })).toThrow(TypeError);
});
