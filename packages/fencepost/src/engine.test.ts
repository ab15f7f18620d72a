import { startChain, startRpc } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { lockAssets, poolsProjection } from "./__tests__/support/pools.ts";
import { createTestDatabase } from "./__tests__/support/testDatabase.ts";
import { waitUntil } from "./__tests__/support/waitUntil.ts";
import { never } from "./__tests__/support/windows.ts";
import { defineConfig } from "./config/config.ts";
import { prepare, startEngine } from "./engine.ts";
import { createLog } from "./observe/log.ts";
import { createMetrics } from "./observe/metrics.ts";
import { stellarRpc } from "./source/stellarRpc.ts";
import { openDatabase } from "./store/postgres/database.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** An engine over a node that keeps the last 3 of 10 ledgers, and what it told once these are stored. */
async function runOver(urlsOf: (node: string) => readonly string[]) {
  const chain = startChain();
  lockAssets(chain, 10, { perLedger: 1 });
  chain.retain(3);
  const rpc = await startRpc({ chain });
  closing.push(rpc.close);
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  const source = stellarRpc({ network: "testnet", urls: urlsOf(rpc.url), pollMs: 20 });
  const config = defineConfig({ source, projections: [poolsProjection()], onGap: "continue" });
  await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal: never });
  const lines: string[] = [];
  const log = createLog("warn", { write: (line) => void lines.push(line) });
  const metrics = createMetrics();
  const engine = await startEngine({ database, config, log, metrics });
  closing.push(engine.stop);
  return {
    told: () => lines.map((line) => JSON.parse(line) as Record<string, unknown>),
    metrics: () => metrics.registry.metrics(),
  };
}

test("a gap is told in the log and counted", async () => {
  const engine = await runOver((node) => [node]);
  const gap = { fromLedger: 1, throughLedger: 7, accepted: true, msg: "gap in the source" };
  await waitUntil(async () => engine.told().some(({ msg }) => msg === gap.msg), {
    what: "the gap is told",
    timeoutMs: 30_000,
  });
  expect(engine.told()).toContainEqual(expect.objectContaining(gap));
  expect(await engine.metrics()).toContain('fencepost_gaps_found_total{stream="testnet",accepted="true"} 1');
});

test("a node that is set aside is told in the log and counted", async () => {
  const gone = await startRpc({ chain: startChain() });
  await gone.close();
  const engine = await runOver((node) => [gone.url, node]);
  const aside = { node: new URL(gone.url).origin, reason: "failing", msg: "node set aside" };
  await waitUntil(async () => engine.told().some(({ msg }) => msg === aside.msg), {
    what: "the node is told",
    timeoutMs: 30_000,
  });
  expect(engine.told()).toContainEqual(expect.objectContaining(aside));
  const text = await engine.metrics();
  const labels = `stream="testnet",node="${aside.node}"`;
  expect(text).toContain(`fencepost_nodes_set_aside_total{${labels},reason="failing"} 1`);
  expect(text).toContain(`fencepost_node_aside{${labels}} 1`);
});
