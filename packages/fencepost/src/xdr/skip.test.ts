import { batchXdr, scv, startChain } from "@fencepost/simulator";
import { xdr } from "@stellar/stellar-sdk/base";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { recorded } from "../source/dataLake/__tests__/support/recorded.ts";
import { compileSkip, cursorOf, InvalidXdrError, type Skip } from "./skip.ts";

/** Whether a skip moves over all of the bytes and no more. */
function accepts(skip: Skip, bytes: Buffer): boolean {
  const c = cursorOf(bytes);
  try {
    skip(c);
  } catch (error) {
    if (error instanceof InvalidXdrError || error instanceof RangeError) return false;
    throw error;
  }
  return c.at === bytes.length;
}

function smallBatch(): Buffer {
  const chain = startChain({ firstLedger: 50 });
  const contract = scv.contractId("pool");
  const topics = [scv.sym("a"), scv.map([[scv.str("key"), scv.vec([scv.i128(-1n), scv.bool(true)])]])];
  chain.close({ events: [{ contract, topics, value: scv.bytes(new Uint8Array(7)) }] });
  chain.close({ events: [{ contract, value: scv.u256(5n), place: "fee" }] });
  return Buffer.from(batchXdr(chain, 50, 51));
}

const skipBatch = compileSkip(xdr.LedgerCloseMetaBatch.schema);

describe("a skip accepts and refuses the bytes that the SDK's decoder does:", () => {
  /** A changed byte, a changed word, an end that is cut off, something that follows. */
  const change = fc.oneof(
    fc.record({ at: fc.nat(), byte: fc.nat({ max: 255 }) }).map(({ at, byte }) => (bytes: Buffer) => {
      bytes[at % bytes.length] = byte;
      return bytes;
    }),
    fc
      .record({ at: fc.nat(), word: fc.integer({ min: -2, max: 20 }) })
      .map(({ at, word }) => (bytes: Buffer) => {
        bytes.writeInt32BE(word, (at * 4) % bytes.length);
        return bytes;
      }),
    fc.nat().map((at) => (bytes: Buffer) => bytes.subarray(0, at % bytes.length)),
    fc.constant((bytes: Buffer) => Buffer.concat([bytes, Buffer.alloc(4)])),
  );

  test("those of a batch, whole and changed", () => {
    const whole = smallBatch();
    expect(accepts(skipBatch, whole)).toBe(true);
    fc.assert(
      fc.property(change, (changed) => {
        const bytes = changed(Buffer.from(whole));
        expect(accepts(skipBatch, bytes)).toBe(xdr.LedgerCloseMetaBatch.validateXdr(bytes));
      }),
      { numRuns: 1_000 },
    );
  });

  test.skipIf(!recorded)("those of real ledgers, whole and changed", () => {
    for (const ledger of [63092988, 63092990]) {
      const whole = recorded!.batch(ledger);
      expect(accepts(skipBatch, whole)).toBe(true);
      fc.assert(
        fc.property(change, (changed) => {
          const bytes = changed(Buffer.from(whole));
          expect(accepts(skipBatch, bytes)).toBe(xdr.LedgerCloseMetaBatch.validateXdr(bytes));
        }),
        { numRuns: 15 },
      );
    }
    expect(accepts(skipBatch, recorded!.oldBatch())).toBe(true);
  });
});

test("values nested without end are refused, not followed", () => {
  const nested = Buffer.concat([
    ...Array.from({ length: 100_000 }, () => Buffer.from([0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1])),
    Buffer.from(scv.u32(1), "base64"),
  ]);
  expect(() => compileSkip(xdr.ScVal.schema)(cursorOf(nested))).toThrow(InvalidXdrError);
});

test("a reader is called at its field, with the way to skip it", () => {
  const seen: number[] = [];
  const skip = compileSkip(xdr.LedgerCloseMetaBatch.schema, {
    "LedgerHeader.ledgerSeq": (c, skipField) => {
      seen.push(c.view.getUint32(c.at));
      skipField(c);
    },
  });
  expect(accepts(skip, smallBatch())).toBe(true);
  expect(seen).toEqual([50, 51]);
});

test("a reader of a field that the type does not have is an error at once", () => {
  const readers = { "LedgerHeader.gone": () => {} };
  expect(() => compileSkip(xdr.LedgerCloseMetaBatch.schema, readers)).toThrow(
    new TypeError("The XDR type has no field LedgerHeader.gone."),
  );
});
