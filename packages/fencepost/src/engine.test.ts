import { losesRows, startChain, startRpc } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { lockAssets, poolsProjection } from "./__tests__/support/pools.ts";
import { createTestDatabase } from "./__tests__/support/testDatabase.ts";
import { waitUntil } from "./__tests__/support/waitUntil.ts";
import { never } from "./__tests__/support/windows.ts";
import { type ConfigInput, defineConfig } from "./config/config.ts";
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
  return run({
    source: stellarRpc({ network: "testnet", urls: urlsOf(rpc.url), pollMs: 20 }),
    onGap: "continue",
  });
}

async function run(input: Pick<ConfigInput, "source" | "onGap" | "audit">) {
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  const config = defineConfig({ ...input, projections: [poolsProjection()] });
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

test("providers are asked for a second opinion in turn; events that the stream's own did not give are told and counted", async () => {
  const chain = startChain();
  lockAssets(chain, 200);
  const loses = losesRows({ seed: 7, rate: 0.1 });
  const [lossy, whole] = [await startRpc({ chain }), await startRpc({ chain })] as const;
  closing.push(lossy.close, whole.close);
  lossy.node.hides = loses;
  const { providers } = stellarRpc({ network: "testnet", urls: [lossy.url, whole.url] });
  if (!providers) throw new Error("There are no providers.");
  const engine = await run({
    source: { ...stellarRpc({ network: "testnet", urls: lossy.url, pollMs: 20 }), providers },
    audit: { secondOpinion: { ledgers: 1_000, everyMs: 1_000 } },
  });
  const lost = [...chain.events()].filter(loses).length;
  expect(lost).toBeGreaterThan(5);
  const msg = "a provider has other events than are stored";
  await waitUntil(async () => engine.told().some((line) => line["msg"] === msg), {
    what: "the provider is told of",
    timeoutMs: 30_000,
  });
  const provider = new URL(whole.url).origin;
  expect(engine.told().filter((line) => line["msg"] === msg)).toEqual([
    expect.objectContaining({ provider, agreed: 200 - lost, notStored: lost, notServed: 0, different: 0 }),
  ]);
  const text = await engine.metrics();
  expect(text).toContain(`fencepost_second_opinion_differing_events{provider="${provider}"} ${lost}`);
});
