/** A time that several waits share. Call `clear` when the last one is over. */
export interface TimeLimit {
  /** Waits for `promise`, but not beyond the limit: then throws the limit's error. */
  wait<T>(promise: Promise<T>): Promise<T>;
  clear(): void;
}

/** Begins a time limit of `ms` milliseconds. */
export function timeLimit(ms: number, error: () => Error): TimeLimit {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeUp = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(error()), ms);
  });
  timeUp.catch(() => {}); // it may end while nobody waits
  return {
    wait: (promise) => Promise.race([promise, timeUp]),
    clear: () => clearTimeout(timer),
  };
}
