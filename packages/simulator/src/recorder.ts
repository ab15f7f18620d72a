/** Thrown when a condition did not come true in its time. Says what was there instead. */
export class WaitTimeoutError extends Error {
  override readonly name = "WaitTimeoutError";
}

/** What a server has seen, and a way to wait for more. */
export interface Recorder<T> {
  /** Throws what the recorder failed with. */
  readonly items: readonly T[];
  add(item: T): void;
  /** From now on the record is not the truth: `items` and `waitFor` throw this error. */
  fail(error: Error): void;
  /**
   * Resolves when there are `wanted` items, or when `wanted` returns true for them; throws
   * {@link WaitTimeoutError} after `timeoutMs`, 10 seconds unless given.
   */
  waitFor(
    wanted: number | ((items: readonly T[]) => boolean),
    options?: { readonly timeoutMs?: number },
  ): Promise<void>;
}

/** Keeps the last `keep` items. */
export function startRecorder<T>(keep = Number.POSITIVE_INFINITY): Recorder<T> {
  const items: T[] = [];
  const waiting = new Set<() => void>();
  let failure: Error | undefined;

  const checkAll = (): void => {
    for (const check of waiting) check();
  };
  const intact = (): readonly T[] => {
    if (failure) throw failure;
    return items;
  };
  return {
    get items() {
      return intact();
    },
    add(item) {
      items.push(item);
      if (items.length > keep) items.shift();
      checkAll();
    },
    fail(error) {
      failure ??= error;
      checkAll();
    },
    waitFor(wanted, { timeoutMs = 10_000 } = {}) {
      const done = (): boolean => (typeof wanted === "number" ? intact().length >= wanted : wanted(intact()));
      return new Promise((resolve, reject) => {
        const finish = (settle: () => void): void => {
          clearTimeout(timer);
          waiting.delete(check);
          settle();
        };
        const check = (): void => {
          try {
            if (done()) finish(resolve);
          } catch (error) {
            finish(() => reject(error));
          }
        };
        const timer = setTimeout(() => {
          const what = typeof wanted === "number" ? `${wanted} requests` : "a condition on the requests";
          finish(() =>
            reject(
              new WaitTimeoutError(`Waited ${timeoutMs} ms for ${what}; there are ${items.length} requests.`),
            ),
          );
        }, timeoutMs);
        waiting.add(check);
        check();
      });
    },
  };
}
