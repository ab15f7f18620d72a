import { expect, test } from "vitest";
import { decideReceipt } from "./index.ts";

test("an event that the inbox does not have is applied, and one that it has never is", () => {
  expect(decideReceipt("absent")).toBe("apply");
  expect(decideReceipt("present")).toBe("already");
});
