// A provider that loses events in silence, from the ledger to the customer: what its loss costs, and what heals it.
import { losesRows, startRpc } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterEach, expect, test } from "vitest";
import { audit } from "../../audit/audit.ts";
import { createLog, defineConfig, prepare, startEngine, stellarRpc } from "../../index.ts";
import { backfill } from "../../ingest/backfill.ts";
import { loadDecoder } from "../../xdr/decode.ts";
import { requestCounts, startLine } from "../support/line.ts";
import { lockAssets, poolsProjection } from "../support/pools.ts";

const EVENTS = 400;
const SEED = 20_261_129;

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

test(`events that a node drops at random, 1 of 100, are named by an audit and healed beside the engine that runs: they are late, and each of all reaches each endpoint once (seed ${SEED})`, async () => {
  const { signal } = new AbortController();
  const line = await startLine();
  closing.push(line.close);
  const { chain, database } = line;
  const loses = losesRows({ seed: SEED, rate: 0.01 });
  line.rpc.node.hides = loses;
  lockAssets(chain, EVENTS);
  const lost = [...chain.events()].filter(loses).map(({ id }) => id);
  expect(lost.length).toBeGreaterThan(2);

  const whole = await startRpc({ chain });
  closing.push(whole.close);
  const source = stellarRpc({ network: "testnet", urls: [line.rpc.url, whole.url], pollMs: 50 });
  const [, second] = source.providers;
  if (!second) throw new Error("There is no second provider.");
  const config = defineConfig({ source, projections: [poolsProjection()] });
  await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal });
  const engine = await startEngine({
    database,
    config,
    log: createLog("error"),
    deliver: { allowInsecure: true },
  });
  closing.push(engine.stop);
  await line.settled();
  expect(line.plain.requests).toHaveLength(EVENTS - lost.length);

  const range = { fromLedger: 1, throughLedger: chain.latest };
  const { store } = engine.deliveries;
  const report = await audit(database, { source: second, store, operationsOnly: true, ...range, signal });
  const tokens = lost.map((id) => tokenFromRpcId(source.chain, id));
  expect(report.events.missing).toEqual({ count: lost.length, listed: tokens });
  expect(report.differences).toBe(lost.length);

  const context = {
    database,
    source: second,
    decoder: await loadDecoder(),
    leaseMs: 10_000,
    log: createLog("error"),
  };
  expect(await backfill(context, { ...range, signal })).toMatchObject({ stored: lost.length });
  await line.settled();
  const { rows: late } = await database.query("SELECT token FROM fencepost.events WHERE late ORDER BY token");
  expect(late.map(({ token }) => token)).toEqual(tokens);
  await line.expectExactlyOnce();
  for (const endpoint of [line.plain, line.receiving]) {
    const counts = [...requestCounts(endpoint).values()];
    expect(counts).toEqual(Array(EVENTS).fill(1));
  }
  expect(await audit(database, { source: second, store, ...range, signal })).toMatchObject({
    differences: 0,
    events: { agreed: EVENTS },
    webhooks: [{ due: EVENTS }, { due: EVENTS }],
  });
});
