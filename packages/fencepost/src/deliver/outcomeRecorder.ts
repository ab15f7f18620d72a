import { setTimeout as sleep } from "node:timers/promises";
import type { Log } from "../observe/log.ts";
import { waitsForPerson } from "../store/decideDelivery.ts";
import type { AttemptResult, DeliveryStore, FinishedAttempt } from "../store/deliveryStore.ts";

/** What is logged once for each delivery that nothing but `resolve` moves on. */
export const WAITS_FOR_PERSON = "delivery is in doubt and waits for a person";

export interface OutcomeRecorderOptions {
  readonly store: Pick<DeliveryStore, "finish">;
  readonly log: Log;
  /** How long an outcome is worth recording, in milliseconds: after it somebody else has settled the attempt. */
  readonly leaseMs: number;
  /** Called for each outcome that was recorded, and each that came too late. */
  readonly onOutcome?: ((outcome: AttemptResult["outcome"] | "stale") => void) | undefined;
  /** True while other outcomes may be here soon. */
  readonly moreToCome: () => boolean;
}

export interface OutcomeRecorder {
  /** Resolves once the outcome is on record (true), or its claim is lost. Never rejects. */
  record(fence: bigint, attempt: FinishedAttempt): Promise<boolean>;
}

interface Waiting {
  readonly fence: bigint;
  readonly attempt: FinishedAttempt;
  readonly since: number;
  readonly resolve: (recorded: boolean) => void;
}

/** Outcomes recorded in one transaction, at the most. */
const MAX_OUTCOMES = 500;
/** How long an outcome waits for others to share its transaction, in milliseconds. */
const GATHER_MS = 5;
/** The pause after a transaction that failed, in milliseconds. */
const RETRY_MS = 200;

/**
 * Collects outcomes for a few milliseconds, unless nothing else is under way, and while a transaction runs; records
 * those of one fence together, and again where that fails.
 */
export function createOutcomeRecorder({
  store,
  log,
  leaseMs,
  onOutcome,
  moreToCome,
}: OutcomeRecorderOptions): OutcomeRecorder {
  let queue: Waiting[] = [];
  let flushing = false;
  let gathering: NodeJS.Timeout | undefined;

  async function flush(): Promise<void> {
    clearTimeout(gathering);
    gathering = undefined;
    if (flushing) return;
    flushing = true;
    for (let first = queue[0]; first; first = queue[0]) {
      const { fence } = first;
      const batch = queue.filter((item) => item.fence === fence).slice(0, MAX_OUTCOMES);
      const taken = new Set(batch);
      queue = queue.filter((item) => !taken.has(item));
      try {
        const attempts = batch.map(({ attempt }) => attempt);
        const stale = new Set((await store.finish(fence, attempts)).stale);
        for (const { id } of attempts.filter((attempt) => stale.has(attempt.id))) {
          log.warn({ delivery: id, fence }, "outcome dropped: its claim was lost or had no attempt");
        }
        for (const { attempt, resolve } of batch) {
          const { id, result, next } = attempt;
          const isStale = stale.has(id);
          if (!isStale && waitsForPerson(next))
            log.warn({ delivery: id, reason: result.error }, WAITS_FOR_PERSON);
          onOutcome?.(isStale ? "stale" : result.outcome);
          resolve(!isStale);
        }
      } catch (error) {
        log.warn({ err: error, outcomes: batch.length }, "outcomes could not be recorded");
        queue.push(...batch); // behind the others, which may fare better
        const isOver = ({ since }: Waiting): boolean => performance.now() - since > leaseMs;
        for (const { resolve } of queue.filter(isOver)) resolve(false);
        queue = queue.filter((item) => !isOver(item));
        await sleep(RETRY_MS);
      }
    }
    flushing = false;
  }

  return {
    record(fence, attempt) {
      return new Promise((resolve) => {
        queue.push({ fence, attempt, since: performance.now(), resolve });
        if (moreToCome()) gathering ??= setTimeout(flush, GATHER_MS);
        else void flush();
      });
    },
  };
}
