import fc from "fast-check";
import { expect, test } from "vitest";
import { seededRandom } from "./index.ts";

test("a seed gives the same draws, and another seed others", () => {
  const draws = (seed: number) => Array.from({ length: 10 }, seededRandom(seed).next);
  fc.assert(
    fc.property(fc.integer(), (seed) => {
      expect(draws(seed)).toEqual(draws(seed));
    }),
  );
  expect(draws(1)).not.toEqual(draws(2));
});

test("draws lie in their range and cover it", () => {
  fc.assert(
    fc.property(
      fc.integer(),
      fc.integer({ min: -5, max: 5 }),
      fc.integer({ min: 0, max: 4 }),
      (seed, min, span) => {
        const random = seededRandom(seed);
        const drawn = new Set(Array.from({ length: 400 }, () => random.int(min, min + span)));
        expect([...drawn].sort((a, b) => a - b)).toEqual(Array.from({ length: span + 1 }, (_, i) => min + i));
      },
    ),
  );
});

test("shuffling keeps every item", () => {
  fc.assert(
    fc.property(fc.integer(), fc.array(fc.integer()), (seed, items) => {
      const byValue = (a: number, b: number) => a - b;
      expect(seededRandom(seed).shuffle(items).sort(byValue)).toEqual([...items].sort(byValue));
    }),
  );
});
