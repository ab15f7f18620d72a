import fc from "fast-check";
import { expect, test } from "vitest";
import { openChainCheck } from "./chainCheck.ts";
import { LedgerChainError } from "./errors.ts";

/** A ledger of a life of a chain. */
const ledger = (sequence: number, life = "a") => ({
  sequence,
  hash: `${life}${sequence}`,
  previousHash: `${life}${sequence - 1}`,
  closedAt: "2026-06-19T00:21:26Z",
  protocolVersion: 26,
});

test("batches of one chain are taken in any order, and again", () => {
  const batches = fc.array(fc.tuple(fc.integer({ min: 2, max: 40 }), fc.integer({ min: 1, max: 4 })));
  fc.assert(
    fc.property(batches, (read) => {
      const check = openChainCheck("it");
      for (const [start, count] of read) check(Array.from({ length: count }, (_, i) => ledger(start + i)));
    }),
  );
});

test("a batch that does not follow the one before it is refused until one of them is another", () => {
  const check = openChainCheck("it");
  check([ledger(4), ledger(5)]);
  for (let times = 0; times < 2; times++) expect(() => check([ledger(6, "b")])).toThrow(LedgerChainError);
  check([ledger(6)]);
  expect(() => check([ledger(7, "b")])).toThrow(
    /ledger 7 follows a ledger with the hash b6, but ledger 6 has the hash a6/,
  );
  check([{ ...ledger(6, "b"), previousHash: "a5" }]);
  check([ledger(7, "b")]);
});

test("a batch is refused also where the one after it was read first, and then that one is", () => {
  const check = openChainCheck("it");
  check([ledger(6, "b")]);
  expect(() => check([ledger(4), ledger(5)])).toThrow(/ledger 6 follows a ledger with the hash b5/);
  check([ledger(4), ledger(5)]);
  for (let times = 0; times < 2; times++) expect(() => check([ledger(6, "b")])).toThrow(LedgerChainError);
});

test("inside a batch each ledger follows the one before it", () => {
  expect(() => openChainCheck("it")([ledger(4), ledger(5, "b")])).toThrow(/ledger 5/);
});

test("a batch that is not taken leaves nothing behind", () => {
  const check = openChainCheck("it");
  check([ledger(5)]);
  expect(() => check([ledger(6, "b"), ledger(7, "b")])).toThrow(LedgerChainError);
  check([ledger(8)]);
  check([ledger(6), ledger(7)]);
});
