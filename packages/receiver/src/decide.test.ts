import { IncomparableTokensError, sequenceToken } from "@fencepost/token";
import fc from "fast-check";
import { expect, test } from "vitest";
import { decideLatest, decideQuery, decideReceipt } from "./index.ts";

test("an event that the inbox does not have is applied, and one that it has never is", () => {
  expect(decideReceipt("absent")).toBe("apply");
  expect(decideReceipt("present")).toBe("already");
});

test("an attempt is fenced off by a fence of its own time or later, also where the event came since", () => {
  expect(decideReceipt("absent", 5, 4)).toBe("apply");
  expect(decideReceipt("absent", 5, 5)).toBe("fenced");
  expect(decideReceipt("absent", 5, 6)).toBe("fenced");
  expect(decideReceipt("present", 5, 6)).toBe("fenced");
  expect(decideReceipt("present", 7, 6)).toBe("already");
  fc.assert(
    fc.property(fc.nat(), fc.nat(), (attempt, before) => {
      expect(decideReceipt("absent", attempt, before)).toBe(attempt <= before ? "fenced" : "apply");
    }),
  );
});

test("an attempt without a time does not pass a fence", () => {
  expect(decideReceipt("absent", undefined, 5)).toBe("fenced");
  expect(decideReceipt("absent", Number.NaN, 5)).toBe("fenced");
});

test("a state takes the event of a token that is newer than its last, and of the first", () => {
  const token = (n: bigint, stream = "billing") => sequenceToken({ stream, epoch: "20260101", n });
  expect(decideLatest(null, token(5n))).toBe("newer");
  expect(decideLatest(token(5n), token(6n))).toBe("newer");
  expect(decideLatest(token(5n), token(5n))).toBe("stale");
  expect(decideLatest(token(5n), token(4n))).toBe("stale");
  expect(() => decideLatest(token(5n), token(6n, "shop"))).toThrow(IncomparableTokensError);
});

test("a query is told what is here, what may come to be here, and what never will", () => {
  expect(decideQuery("present")).toBe("received");
  expect(decideQuery("running")).toBe("in_progress");
  expect(decideQuery("absent")).toBe("fenced");
});
