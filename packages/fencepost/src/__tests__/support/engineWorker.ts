// The engine in a process of its own, for tests that stop, pause or kill it. Its options are one JSON argument.
import { createLog, defineConfig, openDatabase, prepare, startEngine, stellarRpc } from "../../index.ts";
import type { EngineProcessOptions } from "./engineProcess.ts";
import { poolsProjection } from "./pools.ts";

const options = JSON.parse(process.argv[2] ?? "{}") as EngineProcessOptions;
const database = openDatabase(options.databaseUrl);
const config = defineConfig({
  source: stellarRpc({
    network: "testnet",
    urls: options.rpcUrl,
    pollMs: 50,
    pageLimit: options.pageLimit ?? 1_000,
  }),
  projections: [poolsProjection(options.version ?? 1)],
  leaseMs: options.leaseMs ?? 2_000,
});
// As a supervisor would start it again: a node with faults may refuse every try of the first start.
for (let starts = 1; ; starts++) {
  try {
    await prepare(
      { database, config },
      { adopt: false, rebuildChanged: false, signal: AbortSignal.timeout(30_000) },
    );
    break;
  } catch (error) {
    if (starts === 5) throw error;
  }
}
const engine = await startEngine({
  database,
  config,
  log: createLog("info"),
  retryScheduleMs: Array.from({ length: 50 }, () => 100),
  deliver: {
    timeoutMs: options.timeoutMs ?? 3_000,
    leaseMs: (options.timeoutMs ?? 3_000) + 5_000,
    pollMs: 50,
    allowInsecure: true,
  },
});
process.stdout.write(`${JSON.stringify({ msg: "ready" })}\n`);
process.once("SIGTERM", async () => {
  await engine.stop();
  await database.close();
});
