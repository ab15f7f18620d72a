import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  asCallerEventId,
  asToken,
  compareTokens,
  deriveEventId,
  formatRpcId,
  IncomparableTokensError,
  InvalidTokenError,
  isToken,
  ledgerToken,
  parseRpcId,
  parseToken,
  rpcCursorAfterLedger,
  rpcIdFromToken,
  sequenceToken,
  testEventId,
  tokenFromRpcId,
} from "./index.ts";
import { sha256 } from "./sha256.ts";

const pubnet = { stream: "pubnet", epoch: "20150930" };
const position = fc.record({
  ledger: fc.integer({ min: 0, max: 2_147_483_647 }),
  tx: fc.integer({ min: 0, max: 1_048_575 }),
  op: fc.integer({ min: 0, max: 4_095 }),
  event: fc.integer({ min: 0, max: 4_294_967_295 }),
});

describe("a fencing token", () => {
  test("is built as the design writes it", () => {
    expect(ledgerToken({ ...pubnet, ledger: 63_092_990, tx: 27, op: 6, event: 2 })).toBe(
      "pubnet-20150930-0063092990-0000027-0006-0000000002",
    );
    expect(sequenceToken({ stream: "billing", epoch: "20260101", n: 7n })).toBe(
      "billing-20260101-00000000000000000007",
    );
  });

  test("comes back from its text with every field", () => {
    fc.assert(
      fc.property(position, (p) => {
        expect(parseToken(ledgerToken({ ...pubnet, ...p }))).toEqual({ kind: "ledger", ...pubnet, ...p });
      }),
    );
    const n = 99_999_999_999_999_999_999n;
    expect(parseToken(sequenceToken({ ...pubnet, n }))).toEqual({ kind: "sequence", ...pubnet, n });
  });

  test("sorts as a string in the order of the chain", () => {
    fc.assert(
      fc.property(position, position, (a, b) => {
        const chain = Math.sign(a.ledger - b.ledger || a.tx - b.tx || a.op - b.op || a.event - b.event);
        expect(compareTokens(ledgerToken({ ...pubnet, ...a }), ledgerToken({ ...pubnet, ...b }))).toBe(chain);
      }),
    );
  });

  test("of a later epoch comes after every token of an earlier one", () => {
    const p = { ledger: 5, tx: 1, op: 0, event: 0 };
    const before = ledgerToken({ stream: "testnet", epoch: "20251217", ...p, ledger: 4_000_000 });
    const after = ledgerToken({ stream: "testnet", epoch: "20261216", ...p });
    expect(compareTokens(before, after)).toBe(-1);
  });

  test("has no order across streams or across kinds of position", () => {
    const a = ledgerToken({ ...pubnet, ledger: 1, tx: 1, op: 0, event: 0 });
    const other = ledgerToken({ stream: "testnet", epoch: "20251217", ledger: 1, tx: 1, op: 0, event: 0 });
    expect(() => compareTokens(a, other)).toThrow(IncomparableTokensError);
    expect(() => compareTokens(a, sequenceToken({ ...pubnet, n: 1n }))).toThrow(IncomparableTokensError);
  });

  test.each([
    ["", 0, "missing"],
    ["Pubnet-20150930-0063092990-0000027-0006-0000000002", 0, "missing"],
    [`${"a".repeat(33)}-20150930-0063092990-0000027-0006-0000000002`, 32, "longer than 32"],
    ["pubnet-2015093x-0063092990-0000027-0006-0000000002", 14, "wrong character"],
    ["pubnet-20150230-0063092990-0000027-0006-0000000002", 7, "not a date"],
    ["pubnet-20150930-0063092990-0000027-0006-000000000", 49, "too early"],
    ["pubnet-20150930-0063092990-0000027-0006-00000000022", 50, "wrong character"],
    ["pubnet-20150930-0063092990-0000027-0006-0000000002\n", 50, "wrong character"],
    ["pubnet-20150930-9999999999-0000027-0006-0000000002", 16, "ledger"],
    ["pubnet-20150930-0063092990-1048576-0006-0000000002", 27, "tx"],
    ["pubnet-20150930-0063092990-0000027-4096-0000000002", 35, "op"],
    ["pubnet-20150930-0063092990-0000027-0006-4294967296", 40, "event"],
    ["pubnet-20150930-0063092990", 26, "too early"],
  ])("that is wrong (%j) is refused with the place, %i, and the reason", (text, at, reason) => {
    const error = (() => {
      try {
        return parseToken(text);
      } catch (e) {
        return e;
      }
    })();
    expect(error).toBeInstanceOf(InvalidTokenError);
    expect(error).toMatchObject({ at, message: expect.stringContaining(reason) });
    expect(isToken(text)).toBe(false);
    expect(() => asToken(text)).toThrow(InvalidTokenError);
  });

  test("is refused for any text that does not come back unchanged", () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.stringMatching(/^[a-z0-9_-]{0,60}$/)), (text) => {
        if (!isToken(text)) return;
        const { kind: _, ...parts } = parseToken(text);
        expect("n" in parts ? sequenceToken(parts) : ledgerToken(parts)).toBe(text);
      }),
    );
  });

  test.each([
    { ...pubnet, stream: "PUBNET" },
    { ...pubnet, stream: "" },
    { ...pubnet, epoch: "2015" },
    { ...pubnet, ledger: -1 },
    { ...pubnet, ledger: 1.5 },
    { ...pubnet, tx: 1_048_576 },
    { ...pubnet, op: 4_096 },
    { ...pubnet, event: 4_294_967_296 },
  ])("is not built from %j", (parts) => {
    expect(() => ledgerToken({ ledger: 1, tx: 1, op: 0, event: 0, ...parts })).toThrow(InvalidTokenError);
  });

  test("is not built from a sequence number out of range", () => {
    expect(() => sequenceToken({ ...pubnet, n: -1n })).toThrow(InvalidTokenError);
    expect(() => sequenceToken({ ...pubnet, n: 10n ** 20n })).toThrow(InvalidTokenError);
  });
});

describe("an RPC event id", () => {
  test("of recorded mainnet data gives the token the design writes", () => {
    expect(tokenFromRpcId(pubnet, "0270982320066920448-0000000002")).toBe(
      "pubnet-20150930-0063092988-0000000-0000-0000000002",
    );
  });

  test("and a token convert both ways without loss", () => {
    fc.assert(
      fc.property(position, (p) => {
        const id = formatRpcId(p);
        expect(parseRpcId(id)).toEqual(p);
        expect(rpcIdFromToken(tokenFromRpcId(pubnet, id))).toBe(id);
      }),
    );
  });

  test("stands for the end of a ledger as the node's window cursor does", () => {
    const end = 63_092_989n;
    const fromFacts = `${((end << 32n) - 1n).toString().padStart(19, "0")}-4294967295`;
    expect(rpcCursorAfterLedger(63_092_988)).toBe(fromFacts);
  });

  test.each([
    "",
    "1-1",
    "0270982320066920448",
    "9999999999999999999-0000000002",
    "0270982320066920448-9999999999",
  ])("that is wrong (%j) is refused", (id) => {
    expect(() => parseRpcId(id)).toThrow(InvalidTokenError);
  });

  test("does not exist for a sequence token", () => {
    expect(() => rpcIdFromToken(sequenceToken({ ...pubnet, n: 1n }))).toThrow(InvalidTokenError);
  });
});

describe("a derived event id", () => {
  const token = asToken("pubnet-20150930-0063092990-0000027-0006-0000000002");

  test("is 16 bytes of sha-256 over token, type and key, in base32", () => {
    const digest = createHash("sha256").update(`${token}\npool.assets_locked\n`).digest().subarray(0, 16);
    let bits = [...digest].map((b) => b.toString(2).padStart(8, "0")).join("");
    bits = bits.padEnd(130, "0");
    const base32 = bits.replace(
      /.{5}/g,
      (five) => "abcdefghijklmnopqrstuvwxyz234567"[Number.parseInt(five, 2)]!,
    );
    expect(deriveEventId(token, "pool.assets_locked")).toBe(`evt_${base32}`);
  });

  // These vectors stand in docs/fencing-token.md: a change here breaks every consumer.
  test.each([
    ["pool.assets_locked", "", "evt_3566hoocdim4bxj3nkpedjuonq"],
    ["pool.assets_locked", "second", "evt_smpct5fwiqwvkeo2ha73ss66sa"],
  ])("keeps its published vector for %j and key %j", (type, key, expected) => {
    expect(deriveEventId(token, type, key)).toBe(expected);
  });

  test("differs by token, type and key", () => {
    const other = asToken("pubnet-20150930-0063092990-0000027-0006-0000000003");
    const ids = [
      deriveEventId(token, "a"),
      deriveEventId(other, "a"),
      deriveEventId(token, "b"),
      deriveEventId(token, "a", "k"),
    ];
    expect(new Set(ids).size).toBe(4);
  });

  test("refuses a type with a newline, so token, type and key cannot shift into each other", () => {
    expect(() => deriveEventId(token, "a\nb")).toThrow(InvalidTokenError);
    expect(() => deriveEventId(token, "")).toThrow(InvalidTokenError);
  });
});

describe("an event id of a caller", () => {
  test.each(["evt_123", "order:77~a-b_C", "x", "a".repeat(256)])("may be %j", (id) => {
    expect(asCallerEventId(id)).toBe(id);
  });

  test.each(["", "a.b", "a b", "é", "a".repeat(257), "a\n"])("may not be %j", (id) => {
    expect(() => asCallerEventId(id)).toThrow(InvalidTokenError);
  });

  test("may not have the exact form of a derived or a test id", () => {
    const derived = deriveEventId(asToken("pubnet-20150930-00000000000000000001"), "t");
    expect(() => asCallerEventId(derived)).toThrow(/kept for derived/);
    expect(() => asCallerEventId(testEventId(new Uint8Array(16)))).toThrow(/kept for derived/);
  });
});

test("sha256 agrees with node:crypto for any bytes", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      expect(Buffer.from(sha256(bytes)).toString("hex")).toBe(
        createHash("sha256").update(bytes).digest("hex"),
      );
    }),
  );
});
