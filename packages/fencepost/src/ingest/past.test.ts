import { scv } from "@fencepost/simulator";
import { describe, expect, test } from "vitest";
import type { Watch } from "../store/postgres/streams.ts";
import { decidePast } from "./past.ts";

const watch = (name: string, nextLedger: number | null, earlier: Watch["earlier"] = null): Watch => ({
  contractId: scv.contractId(name),
  startLedger: 1,
  nextLedger,
  earlier,
  foundBy: null,
});
const A = watch("a", 100);
const B = watch("b", 5_000);
const C = watch("c", 40_000);

/** Who reads what, for a stream whose cursor is at 60,000. */
function decide(...watches: readonly Watch[]) {
  const past = decidePast(watches, 60_000);
  return past && { watches: past.watches, from: past.fromLedger, through: past.throughLedger };
}

describe("who reads its past next", () => {
  test("is nobody where all have joined", () => {
    expect(decide(watch("a", null))).toBeUndefined();
  });

  test("is the one furthest behind with those near to it, up to where the next one stands", () => {
    expect(decide(C, B, A)).toEqual({ watches: [A, B], from: 100, through: 39_999 });
    expect(decide(C, B)).toEqual({ watches: [B], from: 5_000, through: 39_999 });
    expect(decide(C)).toEqual({ watches: [C], from: 40_000, through: 59_999 });
  });

  test("is not more than a hundred at once", () => {
    const many = Array.from({ length: 130 }, (_, i) => watch(`w${i}`, 100 + (i % 7)));
    expect(decide(...many)?.watches).toHaveLength(100);
    expect(decide(...many)?.through).toBe(59_999);
  });

  test("is one whose start was set back, up to what it had, and never together with one that lags", () => {
    const early = watch("early", null, { nextLedger: 50, endLedger: 300 });
    const other = watch("other", 20_000, { nextLedger: 60, endLedger: 300 });
    expect(decide(A, early, other)).toEqual({ watches: [early, other], from: 50, through: 299 });
    expect(decide(A, watch("late", null, { nextLedger: 150, endLedger: 300 }))).toMatchObject({
      watches: [A],
    });
  });

  test("reads nothing, and only joins, where it stands beyond the cursor", () => {
    expect(decidePast([C], 40_000)).toMatchObject({ fromLedger: 40_000, throughLedger: 39_999 });
  });
});
