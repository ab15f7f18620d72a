import fc from "fast-check";
import { expect, test } from "vitest";
import { decideQuery, decideReceipt } from "./index.ts";

test("an event that the inbox does not have is applied, and one that it has never is", () => {
  expect(decideReceipt("absent")).toBe("apply");
  expect(decideReceipt("present")).toBe("already");
});

test("an attempt is fenced off by a fence of its own time or later, unless the event is in the inbox", () => {
  expect(decideReceipt("absent", 5, 4)).toBe("apply");
  expect(decideReceipt("absent", 5, 5)).toBe("fenced");
  expect(decideReceipt("absent", 5, 6)).toBe("fenced");
  expect(decideReceipt("present", 5, 6)).toBe("already");
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

test("a query is told what is here, what may come to be here, and what never will", () => {
  expect(decideQuery("present")).toBe("received");
  expect(decideQuery("running")).toBe("in_progress");
  expect(decideQuery("absent")).toBe("fenced");
});
