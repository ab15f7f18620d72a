// Two recorded mainnet ledgers through the real line: RPC, ingest, a projection.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import {
  chainFromRecorded,
  type EventRow,
  PUBNET_PASSPHRASE,
  readRecordedLedger,
  startRpc,
} from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { pgTable, text } from "drizzle-orm/pg-core";
import { afterEach, expect, test } from "vitest";
import { z } from "zod";
import {
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
} from "../../index.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

/** The asset contract of XLM on mainnet. */
const XLM = "CAS3J7GYLGXMF6TDJBBYYSE3HQ6BBSMLNUQ34T6TZMYMW2EVH34XOWMA";
const FIRST_LEDGER = 63_092_988;
const LAST_LEDGER = 63_092_990;
const CHAIN = { stream: "pubnet", epoch: "20150930" };

const data = (name: string) =>
  fileURLToPath(new URL(`../../../../../../shared/data/${name}`, import.meta.url));
const files = [`getEvents-${FIRST_LEDGER}.json.gz`, `getEvents-${LAST_LEDGER}.json.gz`].map(data);
const present = files.every((file) => existsSync(file));
if (!present) console.warn("skipped: the recorded Stellar data (../shared/data) is absent");

const transferTable = pgTable("transfers", {
  token: token().primaryKey(),
  from: text("sender").notNull(),
  to: text("receiver").notNull(),
  amount: i128().notNull(),
});

/** An i128, or since protocol 23 a map of it and the id of a muxed receiver. */
const amount = z.union([z.bigint(), z.object({ amount: z.bigint() }).transform((value) => value.amount)]);

const xlm = defineContract({
  id: XLM,
  startLedger: FIRST_LEDGER,
  events: {
    transfer: {
      topics: ["from", "to", "asset"],
      value: "amount",
      schema: z.object({ from: z.string(), to: z.string(), asset: z.literal("native"), amount }),
    },
  },
});

const transfersProjection = defineProjection({
  name: "transfers",
  version: 1,
  contracts: { xlm },
  tables: { transferTable },
  on: {
    "xlm:transfer": async ({ event, db }) => {
      const { from, to, amount } = event.data;
      await db.insert(transferTable).values({ token: event.token, from, to, amount });
    },
  },
});

/** Watches every other contract of the ledgers, and handles none of their events. */
function watchAll(contractIds: readonly string[]) {
  const contracts = Object.fromEntries(
    contractIds.map((id, i) => [
      `contract${i}`,
      defineContract({ id, startLedger: FIRST_LEDGER, events: { transfer: z.unknown() } }),
    ]),
  );
  return defineProjection({ name: "everything", version: 1, contracts, tables: {}, on: {} });
}

/**
 * The amount of a transfer, read from its XDR by hand, so that it does not depend on what is tested: an i128 is
 * the type 10 and 16 bytes; a map holds it after the symbol (type 15) `amount`.
 */
function amountOf(row: EventRow): bigint {
  const xdr = Buffer.from(row.value, "base64");
  const key = Buffer.from("0000000f00000006616d6f756e740000", "hex");
  const at = xdr.readInt32BE(0) === 10 ? 0 : xdr.indexOf(key) + key.length;
  expect(xdr.readInt32BE(at)).toBe(10);
  return (xdr.readBigInt64BE(at + 4) << 64n) | xdr.readBigUInt64BE(at + 12);
}

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

test.skipIf(!present)(
  "two recorded mainnet ledgers keep every id as a token, and XLM transfers add up",
  async () => {
    const recorded = files.map(readRecordedLedger);
    expect(recorded.map((ledger) => ledger.events.length)).toEqual([565, 636]);
    const events = recorded.flatMap((ledger) => ledger.events);
    const contractIds = [...new Set(events.map((row) => row.contractId))];
    expect(contractIds.length).toBeGreaterThan(25);

    const rpc = await startRpc({ chain: chainFromRecorded(recorded, { passphrase: PUBNET_PASSPHRASE }) });
    closing.push(rpc.close);
    const testDatabase = await createTestDatabase();
    closing.push(testDatabase.drop);
    const database = openDatabase(testDatabase.url);
    closing.push(database.close);
    const config = defineConfig({
      source: stellarRpc({ network: "pubnet", urls: rpc.url, pollMs: 50 }),
      projections: [transfersProjection, watchAll(contractIds.filter((id) => id !== XLM))],
    });
    const { signal } = new AbortController();
    await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal });
    const engine = await startEngine({ database, config, log: createLog("error") });
    closing.push(engine.stop);
    const projectedAll = async () => {
      const { rows } = await database.query<{ cursor: bigint }>("SELECT cursor FROM fencepost.projections");
      return rows.every(({ cursor }) => cursor === 1201n);
    };
    await waitUntil(projectedAll, { what: "both projections have passed all 1,201 events" });

    const { rows: stored } = await database.query(
      "SELECT token, contract_id, tx_hash, topics, value FROM fencepost.events ORDER BY token",
    );
    expect(stored).toEqual(
      events.map((row) => ({
        token: tokenFromRpcId(CHAIN, row.id),
        contract_id: row.contractId,
        tx_hash: row.txHash,
        topics: row.topic,
        value: row.value,
      })),
    );
    expect((await database.query("SELECT * FROM fencepost.quarantine")).rows).toEqual([]);

    const transfer = Buffer.from("0000000f000000087472616e73666572", "hex").toString("base64");
    const transfers = events.filter((row) => row.contractId === XLM && row.topic?.[0] === transfer);
    expect(transfers.length).toBeGreaterThan(10);
    const { rows: projected } = await database.query(
      "SELECT token, amount FROM transfers.transfers ORDER BY token",
    );
    expect(projected).toEqual(
      transfers.map((row) => ({ token: tokenFromRpcId(CHAIN, row.id), amount: String(amountOf(row)) })),
    );
    const { rows: sums } = await database.query("SELECT sum(amount)::text AS total FROM transfers.transfers");
    expect(sums).toEqual([{ total: String(transfers.reduce((sum, row) => sum + amountOf(row), 0n)) }]);
  },
);
