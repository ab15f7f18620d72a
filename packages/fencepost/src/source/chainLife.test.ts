import { seededRandom, startChain } from "@fencepost/simulator";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { contradiction, contradicts, decideEpoch, differs, needsLook } from "./chainLife.ts";
import type { LedgerRef } from "./source.ts";

const ref = (ledger: number, closedAt: number, hash: string | null = null): LedgerRef => ({
  ledger,
  hash,
  closedAt,
});

describe("two answers about one ledger", () => {
  test.each([
    ["the same hash and time", ref(5, 100, "a"), ref(5, 100, "a"), false],
    ["another hash", ref(5, 100, "a"), ref(5, 100, "b"), true],
    ["another time", ref(5, 100, "a"), ref(5, 101, "a"), true],
    ["a hash that one of them does not tell", ref(5, 100, "a"), ref(5, 100), false],
    ["a time alone that differs", ref(5, 100), ref(5, 90), true],
  ])("with %s", (_, anchor, found, expected) => {
    expect(differs(anchor, found)).toBe(expected);
  });
});

describe("a ledger against an anchor", () => {
  const life = (startTime: number, seed: number, ledgers: number) => {
    const random = seededRandom(seed);
    const chain = startChain({ startTime });
    for (let i = 0, closedAt = startTime; i < ledgers; i++) {
      closedAt += random.next() < 0.02 ? 3_600 : random.int(0, 9); // now and then the network stands still
      chain.close({ closedAt });
    }
    return chain;
  };
  const at = (chain: ReturnType<typeof life>, sequence: number): LedgerRef => {
    const { hash, closedAt } = chain.ledger(sequence)!;
    return { ledger: sequence, hash, closedAt };
  };
  const scenario = fc.record({
    seed: fc.nat(),
    ledgers: fc.integer({ min: 2, max: 60 }),
    later: fc.integer({ min: 2, max: 60 }),
    a: fc.nat(),
    b: fc.nat(),
  });

  test("never contradicts it on the same chain, however unevenly its ledgers close", () => {
    fc.assert(
      fc.property(scenario, ({ seed, ledgers, a, b }) => {
        const chain = life(1_000_000, seed, ledgers);
        expect(contradicts(at(chain, 1 + (a % ledgers)), at(chain, 1 + (b % ledgers)))).toBe(false);
      }),
    );
  });

  test("contradicts it wherever a later life of the chain has a ledger up to it, without its hash too", () => {
    fc.assert(
      fc.property(scenario, ({ seed, ledgers, later, a, b }) => {
        const before = life(1_000_000, seed, ledgers);
        const after = life(before.ledger(ledgers)!.closedAt + 1, seed + 1, later);
        const anchor = at(before, 1 + (a % ledgers));
        const seen = at(after, 1 + (b % later));
        if (seen.ledger > anchor.ledger) return;
        expect(contradicts(anchor, seen)).toBe(true);
        expect(contradicts({ ...anchor, hash: null }, seen)).toBe(true);
      }),
    );
  });

  test("contradicts it where an earlier life has grown past it", () => {
    expect(contradicts(ref(100, 5_000), ref(90_000, 4_000))).toBe(true);
  });

  test("is either end of a node's range, so far as the node tells their times", () => {
    const anchor = ref(100, 5_000);
    const range = { oldestLedger: 50, latestLedger: 200 };
    expect(contradiction(anchor, range)).toBeUndefined();
    expect(contradiction(anchor, { ...range, oldestClosedAt: 4_000, latestClosedAt: 6_000 })).toBeUndefined();
    expect(contradiction(anchor, { ...range, oldestClosedAt: 5_500, latestClosedAt: 6_000 })).toEqual(
      ref(50, 5_500),
    );
    expect(contradiction(anchor, { ...range, latestClosedAt: 4_999 })).toEqual(ref(200, 4_999));
  });
});

describe("the ledger of the anchor is looked at", () => {
  const look = { lookedAt: 0, seenAt: 10_000, latestLedger: 100 };
  test.each([
    ["for the first time", undefined, 100, 10_000, true],
    ["not where nothing has moved", look, 100, 10_000, false],
    ["not where ledgers close as they do", look, 106, 40_000, false],
    ["not after a pause as long as the ledgers say", look, 150, 60_000, false],
    ["not where an answer overtook another", look, 98, 10_000, false],
    ["where the newest ledger went back", look, 90, 10_000, true],
    ["where it jumped", look, 120, 11_000, true],
    ["after five minutes in any case", look, 100, 300_001, true],
  ])("%s", (_, last, latest, now, expected) => {
    expect(needsLook(last, latest, now)).toBe(expected);
  });
});

describe("an epoch against the newest ledger", () => {
  const at = (iso: string, ledger: number) => ref(ledger, Date.parse(iso) / 1000);
  test.each([
    ["pubnet as recorded", "20150930", at("2026-06-19T00:21:26Z", 63_092_990), true],
    ["the testnet after half a year", "20251217", at("2026-06-17T00:00:00Z", 3_130_000), true],
    ["the testnet on its first day", "20251217", at("2025-12-17T17:00:05Z", 1), true],
    ["a network that stood still for three days", "20251217", at("2025-12-21T00:00:00Z", 10), true],
    ["ledgers of three seconds", "20251217", at("2026-12-16T00:00:00Z", 10_483_200), true],
    ["the life before a reset three weeks ago", "20251217", at("2027-01-06T00:00:00Z", 330_000), false],
    ["a life that began later than the day given", "20261216", at("2026-12-20T00:00:00Z", 6_000_000), false],
    ["a day that has not come when the ledger closed", "20270101", at("2026-12-20T00:00:00Z", 100), false],
  ])("%s", (_, epoch, newest, plausible) => {
    expect(decideEpoch(epoch, newest, true) === "plausible").toBe(plausible);
  });

  test("that does not fit names the days between which the chain began", () => {
    expect(decideEpoch("20251217", at("2027-01-06T00:00:00Z", 330_000), true)).toEqual({
      earliest: "2026-12-06",
      latest: "2026-12-27",
    });
  });

  test.each([
    ["with ledgers of a second", at("2026-01-02T00:00:00Z", 86_400), true],
    ["that stands still for months", at("2026-09-01T00:00:00Z", 12), true],
    ["of which the newest ledger closed before its epoch", at("2025-11-01T00:00:00Z", 12), false],
  ])("of a network of one's own, %s", (_, newest, plausible) => {
    expect(decideEpoch("20260101", newest, false) === "plausible").toBe(plausible);
  });
});
