// The process that runs Fencepost in the demo, and is killed in the middle. DATABASE_URL and STELLAR_RPC_URL say
// where; it ends when the process that started it lets go of it, or is gone.
import { setTimeout as sleep } from "node:timers/promises";
import { createLog, openDatabase, prepare, startEngine } from "fencepost";
import config from "../fencepost.config.ts";
import { LEASE_MS, RETRY_SCHEDULE_MS, TIMEOUT_MS } from "./attempts.ts";

// Ctrl-C reaches every process of a terminal: the demo decides when this one stops.
process.on("SIGINT", () => {});
const gone = new Promise<void>((resolve) => process.once("disconnect", resolve));

const log = createLog("warn");
const database = openDatabase(process.env["DATABASE_URL"] ?? "");
await prepareInTheEnd();

const engine = await startEngine({
  database,
  config,
  log,
  retryScheduleMs: RETRY_SCHEDULE_MS,
  // The endpoints are on loopback, without TLS.
  deliver: { timeoutMs: TIMEOUT_MS, leaseMs: LEASE_MS, allowInsecure: true },
});
process.send?.("ready");
await gone;
await engine.stop();
await database.close();

/** The demo's node answers nonsense at times, and may do so five times in a row while we start. */
async function prepareInTheEnd(): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      const signal = AbortSignal.timeout(30_000);
      return await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal });
    } catch (error) {
      if (tries === 10 || !process.connected) throw error;
      log.warn({ err: error, tries }, "could not prepare");
      await sleep(200);
    }
  }
}
