/** Holds calls back, so that no more of them are under way, or begin in a second, than a provider allows. */
export interface Limiter {
  /** Calls that may be under way at once now. */
  readonly allowed: number;
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>;
  /** The provider said that it is too much: half as many at once, and more again as calls succeed. */
  slower(): void;
}

export interface Limits {
  readonly maxInFlight: number;
  /** No limit unless given. */
  readonly requestsPerSecond?: number | undefined;
}

/** Milliseconds on a steady clock, and waits on it. */
export interface Clock {
  readonly now: () => number;
  readonly wait: (ms: number, signal: AbortSignal) => Promise<unknown>;
}

/** One more call at once is tried after so many that succeeded. */
const SUCCESSES_TO_GROW = 20;

export function createLimiter({ maxInFlight, requestsPerSecond }: Limits, { now, wait }: Clock): Limiter {
  const spacing = requestsPerSecond === undefined ? 0 : 1_000 / requestsPerSecond;
  // As many waiters as windows are asked for at once, at the most.
  const waiters = new Set<() => void>();
  let allowed = maxInFlight;
  let inFlight = 0;
  let successes = 0;
  let nextAt = Number.NEGATIVE_INFINITY;

  const leftOne = (signal: AbortSignal) =>
    new Promise<void>((resolve, reject) => {
      const settle = (end: () => void) => () => {
        waiters.delete(onLeft);
        signal.removeEventListener("abort", onAbort);
        end();
      };
      const onLeft = settle(resolve);
      const onAbort = settle(() => reject(signal.reason));
      waiters.add(onLeft);
      signal.addEventListener("abort", onAbort);
    });

  async function enter(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    while (inFlight >= allowed) await leftOne(signal);
    inFlight++;
  }

  function leave(): void {
    inFlight--;
    for (const wake of [...waiters].slice(0, allowed - inFlight)) wake();
  }

  return {
    get allowed() {
      return allowed;
    },
    async run(work, signal) {
      await enter(signal);
      try {
        const at = Math.max(now(), nextAt);
        nextAt = at + spacing;
        if (at > now()) await wait(at - now(), signal);
        const result = await work();
        successes++;
        if (successes % SUCCESSES_TO_GROW === 0) allowed = Math.min(allowed + 1, maxInFlight);
        return result;
      } finally {
        leave();
      }
    },
    slower() {
      allowed = Math.max(1, Math.floor(allowed / 2));
      successes = 0;
    },
  };
}
