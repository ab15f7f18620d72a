import { expect, test } from "vitest";
import { decideCommit, StaleTermError } from "./term.ts";

const at = (term: bigint, cursor: bigint) => ({ term, cursor });

test.each([
  ["the same term and cursor", at(2n, 5n), "commit"],
  ["no row", undefined, "stale_term"],
  ["a later term", at(3n, 5n), "stale_term"],
  ["an earlier term", at(1n, 5n), "stale_term"],
  ["a later term and cursor", at(3n, 6n), "stale_term"],
  ["a later cursor", at(2n, 6n), "moved_cursor"],
  ["an earlier cursor", at(2n, 4n), "moved_cursor"],
])("a commit that finds %s is decided so: %#", (_, stored, decision) => {
  expect(decideCommit(stored, at(2n, 5n))).toBe(decision);
});

test("a stale term says which stage and term, and why", () => {
  expect(new StaleTermError("ingest pubnet", 7n, "stale_term")).toMatchObject({
    name: "StaleTermError",
    stage: "ingest pubnet",
    term: 7n,
    message: expect.stringContaining(
      "ingest pubnet: the commit under term 7 was refused (another process leads now)",
    ),
  });
});
