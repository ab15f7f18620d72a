import { StrKey, scValToNative, xdr } from "@stellar/stellar-sdk/base";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { scv } from "./index.ts";

const native = (value: string): unknown => scValToNative(xdr.ScVal.fromXdr(value, "base64"));
const type = (value: string): string => xdr.ScVal.fromXdr(value, "base64").type;
const signed = (bits: number) =>
  fc.bigInt({ min: -(2n ** BigInt(bits - 1)), max: 2n ** BigInt(bits - 1) - 1n });
const unsigned = (bits: number) => fc.bigInt({ min: 0n, max: 2n ** BigInt(bits) - 1n });

describe("a contract value", () => {
  test.each([
    ["scvU64", scv.u64, unsigned(64)],
    ["scvI64", scv.i64, signed(64)],
    ["scvU128", scv.u128, unsigned(128)],
    ["scvI128", scv.i128, signed(128)],
    ["scvU256", scv.u256, unsigned(256)],
    ["scvI256", scv.i256, signed(256)],
    ["scvTimepoint", scv.timepoint, unsigned(64)],
    ["scvDuration", scv.duration, unsigned(64)],
  ])("of type %s is read by the Stellar SDK as it was written", (name, build, values) => {
    fc.assert(
      fc.property(values, (value) => {
        expect(type(build(value))).toBe(name);
        expect(native(build(value))).toBe(value);
      }),
    );
  });

  test("of every other type is read by the Stellar SDK as it was written", () => {
    expect(native(scv.u32(4_294_967_295))).toBe(4_294_967_295);
    expect(native(scv.i32(-2_147_483_648))).toBe(-2_147_483_648);
    expect(native(scv.bool(true))).toBe(true);
    expect(native(scv.nothing())).toBe(null);
    expect(native(scv.bytes(Uint8Array.of(0, 255)))).toEqual(Uint8Array.of(0, 255));
    expect(native(scv.sym("transfer"))).toBe("transfer");
    expect(native(scv.str("text"))).toBe("text");
    expect(native(scv.vec([scv.u32(1), scv.vec([scv.sym("x")])]))).toEqual([1, ["x"]]);
    expect(native(scv.struct({ b: scv.u32(2), a: scv.u32(1) }))).toEqual({ a: 1, b: 2 });
  });

  test("tells a symbol from a string with the same text", () => {
    expect(type(scv.sym("x"))).toBe("scvSymbol");
    expect(type(scv.str("x"))).toBe("scvString");
    expect(scv.sym("x")).not.toBe(scv.str("x"));
  });

  test("may be a map whose keys are not text, in the order given", () => {
    const value = xdr.ScVal.fromXdr(
      scv.map([
        [scv.u32(2), scv.sym("b")],
        [scv.u32(1), scv.sym("a")],
      ]),
      "base64",
    );
    expect(value.type === "scvMap" && value.map?.map(({ key }) => key.type === "scvU32" && key.u32)).toEqual([
      2, 1,
    ]);
  });

  test("sorts the fields of a struct as a contract does", () => {
    expect(scv.struct({ b: scv.u32(2), a: scv.u32(1) })).toBe(
      scv.map([
        [scv.sym("a"), scv.u32(1)],
        [scv.sym("b"), scv.u32(2)],
      ]),
    );
  });

  test("may be the address of any kind of account", () => {
    const kinds = [
      scv.accountId("alice"),
      scv.contractId("pool"),
      StrKey.encodeMed25519PublicKey(Buffer.alloc(40, 1)),
      StrKey.encodeClaimableBalance(Buffer.concat([Buffer.alloc(1), Buffer.alloc(32, 2)])),
      StrKey.encodeLiquidityPool(Buffer.alloc(32, 3)),
    ];
    expect(kinds.map((strkey) => native(scv.address(strkey)))).toEqual(kinds);
    expect(kinds.map((strkey) => strkey[0])).toEqual(["G", "C", "M", "B", "L"]);
  });

  test("that does not fit its type is refused", () => {
    expect(() => scv.i128(2n ** 127n)).toThrow();
    expect(() => scv.u64(-1n)).toThrow();
    expect(() => scv.sym("longer than thirty-two characters.")).toThrow();
    expect(() => scv.vec(["garbage"])).toThrow();
  });
});

test("a contract id and an account id are valid and depend on the name only", () => {
  fc.assert(
    fc.property(fc.string(), fc.string(), (a, b) => {
      expect(StrKey.isValidContract(scv.contractId(a))).toBe(true);
      expect(StrKey.isValidEd25519PublicKey(scv.accountId(a))).toBe(true);
      expect(scv.contractId(a) === scv.contractId(b)).toBe(a === b);
    }),
    { numRuns: 30 },
  );
});
