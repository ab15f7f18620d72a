import type { Log } from "../observe/log.ts";
import { type Loop, type StepResult, startLoop } from "../runner/runner.ts";
import type { Database } from "../store/postgres/database.ts";
import { acquireLease, type HolderConnection, releaseLease, renewLease } from "../store/postgres/leases.ts";
import { type LeaseKey, leaseName } from "./holder.ts";
import { StaleTermError } from "./term.ts";

export interface LeaderOptions {
  readonly database: Database;
  readonly holder: HolderConnection;
  readonly key: LeaseKey;
  readonly leaseMs: number;
  readonly idleMs: number;
  readonly log: Log;
  /** One step of the stage under the term that this process leads by. */
  readonly step: (term: bigint, signal: AbortSignal) => Promise<StepResult>;
  readonly onError?: (error: unknown) => void;
}

/** How often a process that does not lead looks whether it can, in milliseconds. */
const STANDBY_MS = 500;

/**
 * Runs a stage while this process leads it: takes the lease, keeps it alive, and gives it back at a clean stop.
 * A term that was lost is noticed by the commit that it fails, and the process goes back to waiting.
 */
export function startLeader(options: LeaderOptions): Loop {
  const { database, holder, key, leaseMs, idleMs, log, step, onError } = options;
  const name = leaseName(key);
  let term: bigint | null = null;

  let renewing: Promise<void> | undefined;
  // One renewal at a time: a database that hangs must not fill the pool with them.
  const renewal = setInterval(() => {
    if (term !== null) renewing ??= renew(term).finally(() => (renewing = undefined));
  }, leaseMs / 3);

  async function renew(renewed: bigint): Promise<void> {
    try {
      const kept = await renewLease(database, key, await holder.current(), renewed, leaseMs);
      if (!kept && term === renewed) lose();
    } catch (error) {
      log.warn({ stage: name, err: error }, "lease could not be renewed");
    }
  }

  function lose(): void {
    log.warn({ stage: name, term }, "term lost");
    term = null;
  }

  const loop = startLoop({
    name,
    idleMs,
    log,
    ...(onError && { onError }),
    async step(signal) {
      if (term === null) {
        term = await acquireLease(database, key, await holder.current(), leaseMs);
        if (term === null) return { waitMs: STANDBY_MS };
        log.info({ stage: name, term }, "term begins");
      }
      try {
        return await step(term, signal);
      } catch (error) {
        if (!(error instanceof StaleTermError)) throw error;
        onError?.(error);
        if (term === error.term) lose();
        return { waitMs: STANDBY_MS };
      }
    },
  });
  return {
    wake: loop.wake,
    async stop() {
      clearInterval(renewal);
      await loop.stop();
      await renewing;
      if (term !== null) await releaseLease(database, key, term).catch(() => {});
    },
  };
}
