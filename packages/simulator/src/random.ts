/** A seeded source of randomness: the same seed gives the same draws in the same order. */
export interface Random {
  /** The seed, to print when a test fails. */
  readonly seed: number;
  /** A number from 0 (inclusive) to 1 (exclusive), with 32 bits. */
  next(): number;
  /** An integer from `min` to `max`, both inclusive. */
  int(min: number, max: number): number;
  /** A copy in another order. */
  shuffle<T>(items: readonly T[]): T[];
}

/** mulberry32. The seed is taken modulo 2^32. */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const int = (min: number, max: number): number => min + Math.floor(next() * (max - min + 1));
  const shuffle = <T>(items: readonly T[]): T[] => {
    const keyed = items.map((item) => ({ item, key: next() }));
    return keyed.sort((a, b) => a.key - b.key).map(({ item }) => item);
  };
  return { seed, next, int, shuffle };
}
