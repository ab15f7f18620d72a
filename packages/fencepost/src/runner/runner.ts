import { setTimeout as sleep } from "node:timers/promises";
import type { Log } from "../observe/log.ts";

/** What a step says about the next one: more to do at once, nothing to do, or wait this long. */
export type StepResult = "progress" | "idle" | { readonly waitMs: number };

export interface LoopOptions {
  /** For logs: `ingest pubnet`, `deliver`. */
  readonly name: string;
  readonly step: (signal: AbortSignal) => Promise<StepResult>;
  /** The longest wait after an idle step, in milliseconds; `wake()` cuts it short. */
  readonly idleMs: number;
  readonly log: Log;
  /** Called for every error of a step, before the backoff. */
  readonly onError?: (error: unknown) => void;
}

export interface Loop {
  /** Ends the wait of an idle loop: there may be work. */
  wake(): void;
  /** Stops after the step that runs now, which sees its signal aborted. */
  stop(): Promise<void>;
}

const FIRST_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 10_000;

/** How long to wait after so many failures in a row, 1 or more. `random` is from 0 to 1: half of it is jitter. */
export function backoffMs(failures: number, random: number): number {
  return Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (failures - 1)) * (0.5 + random / 2);
}

/** The one loop of every stage: step, wait, back off with jitter after errors, stop when asked. */
export function startLoop({ name, step, idleMs, log, onError }: LoopOptions): Loop {
  const stopping = new AbortController();
  let waiting = new AbortController();
  let woken = false;

  async function wait(ms: number, canBeWoken: boolean): Promise<void> {
    if (canBeWoken && woken) return;
    waiting = new AbortController();
    const signal = canBeWoken ? AbortSignal.any([stopping.signal, waiting.signal]) : stopping.signal;
    await sleep(ms, undefined, { signal }).catch(() => {});
  }

  async function run(): Promise<void> {
    let failures = 0;
    while (!stopping.signal.aborted) {
      woken = false;
      try {
        const result = await step(stopping.signal);
        failures = 0;
        if (result === "idle") await wait(idleMs, true);
        else if (result !== "progress") await wait(result.waitMs, false);
      } catch (error) {
        if (stopping.signal.aborted) break;
        onError?.(error);
        failures++;
        log.warn({ loop: name, err: error, failures }, "step failed");
        await wait(backoffMs(failures, Math.random()), false);
      }
    }
  }

  const done = run();
  return {
    wake() {
      woken = true;
      waiting.abort();
    },
    stop() {
      stopping.abort();
      return done;
    },
  };
}
