import { scv } from "@fencepost/simulator";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { type Decoder, loadDecoder, UndecodableValueError } from "./decode.ts";
import { type ScValue, toNative } from "./scValue.ts";

let decoder: Decoder;
beforeAll(async () => {
  decoder = await loadDecoder();
});

const int = (bits: bigint) => fc.bigInt({ min: -(2n ** (bits - 1n)), max: 2n ** (bits - 1n) - 1n });
const uint = (bits: bigint) => fc.bigInt({ min: 0n, max: 2n ** bits - 1n });
const bytes = fc.uint8Array({ maxLength: 40 });

/** One of each kind; M, B and L are the examples of SEP-23. */
const ADDRESSES = [
  scv.accountId("a"), // G
  scv.contractId("a"), // C
  "MA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJVAAAAAAAAAAAAAJLK", // M
  "BAAD6DBUX6J22DMZOHIEZTEQ64CVCHEDRKWZONFEUL5Q26QD7R76RGR4TU", // B
  "LA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJUPJN", // L
];

/** A value as the simulator encodes it, and as it must be decoded. */
interface Case {
  readonly base64: string;
  readonly value: ScValue;
}

const leaf: fc.Arbitrary<Case> = fc.oneof(
  fc.boolean().map((v): Case => ({ base64: scv.bool(v), value: { type: "bool", value: v } })),
  fc.constant<Case>({ base64: scv.nothing(), value: { type: "void" } }),
  fc.nat({ max: 0xffffffff }).map((v): Case => ({ base64: scv.u32(v), value: { type: "u32", value: v } })),
  fc.integer().map((v): Case => ({ base64: scv.i32(v), value: { type: "i32", value: v } })),
  uint(64n).map((v): Case => ({ base64: scv.u64(v), value: { type: "u64", value: v } })),
  int(64n).map((v): Case => ({ base64: scv.i64(v), value: { type: "i64", value: v } })),
  uint(64n).map((v): Case => ({ base64: scv.timepoint(v), value: { type: "timepoint", value: v } })),
  uint(64n).map((v): Case => ({ base64: scv.duration(v), value: { type: "duration", value: v } })),
  uint(128n).map((v): Case => ({ base64: scv.u128(v), value: { type: "u128", value: v } })),
  int(128n).map((v): Case => ({ base64: scv.i128(v), value: { type: "i128", value: v } })),
  uint(256n).map((v): Case => ({ base64: scv.u256(v), value: { type: "u256", value: v } })),
  int(256n).map((v): Case => ({ base64: scv.i256(v), value: { type: "i256", value: v } })),
  bytes.map((v): Case => ({ base64: scv.bytes(v), value: { type: "bytes", value: v } })),
  fc
    .string({ unit: "grapheme", maxLength: 20 })
    .map((v): Case => ({ base64: scv.str(v), value: { type: "string", value: v } })),
  fc
    .stringMatching(/^[A-Za-z0-9_]{0,32}$/)
    .map((v): Case => ({ base64: scv.sym(v), value: { type: "symbol", value: v } })),
  fc
    .constantFrom(...ADDRESSES)
    .map((v): Case => ({ base64: scv.address(v), value: { type: "address", value: v } })),
);

const anyCase = fc.letrec<{ any: Case }>((tie) => ({
  any: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    { weight: 4, arbitrary: leaf },
    fc.array(tie("any"), { maxLength: 4 }).map(
      (items): Case => ({
        base64: scv.vec(items.map((item) => item.base64)),
        value: { type: "vec", value: items.map((item) => item.value) },
      }),
    ),
    fc.array(fc.tuple(tie("any"), tie("any")), { maxLength: 4 }).map(
      (entries): Case => ({
        base64: scv.map(entries.map(([key, value]) => [key.base64, value.base64])),
        value: { type: "map", value: entries.map(([key, value]) => [key.value, value.value] as const) },
      }),
    ),
  ),
})).any;

test("every value, of every type and nested in any way, comes back as it was, with its type", () => {
  fc.assert(
    fc.property(anyCase, ({ base64, value }) => {
      expect(decoder.decode(base64)).toEqual(value);
    }),
    { numRuns: 500 },
  );
});

test.each([
  ["u64", scv.u64(2n ** 64n - 1n), 2n ** 64n - 1n],
  ["i64", scv.i64(-(2n ** 63n)), -(2n ** 63n)],
  ["u128", scv.u128(2n ** 128n - 1n), 2n ** 128n - 1n],
  ["i128", scv.i128(-(2n ** 127n)), -(2n ** 127n)],
  ["i128", scv.i128(-1n), -1n],
  ["u256", scv.u256(2n ** 256n - 1n), 2n ** 256n - 1n],
  ["i256", scv.i256(-(2n ** 255n)), -(2n ** 255n)],
  ["i256", scv.i256(-(2n ** 64n)), -(2n ** 64n)],
] as const)("the ends of %s keep their value and sign", (type, base64, value) => {
  expect(decoder.decode(base64)).toEqual({ type, value });
});

test.each(ADDRESSES.map((address) => [address[0], address]))("an address %s… is its strkey", (_, address) => {
  expect(decoder.decode(scv.address(address))).toEqual({ type: "address", value: address });
});

test("a symbol and a string of the same letters are told apart", () => {
  expect(decoder.decode(scv.sym("a"))).not.toEqual(decoder.decode(scv.str("a")));
});

test("a string that is not UTF-8 is its bytes, and one that is may hold any character", () => {
  const notText = new Uint8Array([0xff, 0xfe, 0]);
  expect(decoder.decode(scv.str(notText))).toEqual({ type: "string", value: notText });
  expect(decoder.decode(scv.str("naïve 🦊\0"))).toEqual({ type: "string", value: "naïve 🦊\0" });
});

test("values that only ledgers hold come as their SEP-51 JSON", () => {
  const xdr = (...words: number[]): string =>
    Buffer.from(words.flatMap((w) => [0, 0, 0, w])).toString("base64");
  expect(decoder.decode(xdr(2, 0, 7))).toEqual({ type: "other", value: '{"error":{"contract":7}}' });
  expect(decoder.decode(xdr(20))).toEqual({ type: "other", value: '"ledger_key_contract_instance"' });
});

describe("what cannot be decoded", () => {
  const nested = (depth: number): string =>
    Buffer.concat([
      ...Array.from({ length: depth }, () => Buffer.from([0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1])),
      Buffer.from(scv.u32(1), "base64"),
    ]).toString("base64");

  test.each<[string, string, RegExp]>([
    ["no base64", "not base64!", /base64/],
    ["nothing", "", /incomplete/],
    ["too little", scv.i128(5n).slice(0, 8), /incomplete/],
    [
      "too much",
      Buffer.concat([Buffer.from(scv.u32(1), "base64"), Buffer.alloc(4)]).toString("base64"),
      /trailing/,
    ],
    ["an unknown type", Buffer.from([0, 0, 0, 99]).toString("base64"), /unknown enum value 99/],
    [
      "a symbol that is no text",
      Buffer.from([0, 0, 0, 15, 0, 0, 0, 1, 255, 0, 0, 0]).toString("base64"),
      /utf-8/,
    ],
    ["deep nesting", nested(1_000), /depth/],
    ["nesting without end", nested(500_000), /depth/],
  ])("%s is refused by name, with a short reason", (_, base64, reason) => {
    const decode = () => decoder.decode(base64);
    expect(decode).toThrow(UndecodableValueError);
    expect(decode).toThrow(reason);
    try {
      decode();
    } catch (error) {
      expect((error as Error).message.length).toBeLessThan(310);
    }
  });

  test("may be any bytes: they decode, or are refused by name, with a reason that a database can keep", () => {
    const mutated = fc.tuple(anyCase, fc.nat(), fc.nat({ max: 255 })).map(([{ base64 }, at, byte]) => {
      const raw = Buffer.from(base64, "base64");
      raw[at % raw.length] = byte;
      return raw;
    });
    fc.assert(
      fc.property(fc.oneof(fc.uint8Array({ maxLength: 80 }), mutated), (raw) => {
        try {
          toNative(decoder.decode(Buffer.from(raw).toString("base64")));
        } catch (error) {
          expect(error).toBeInstanceOf(UndecodableValueError);
          expect((error as Error).message).not.toMatch(/\0|\p{Surrogate}/u);
        }
      }),
      { numRuns: 1_000 },
    );
  });
});

test("values nested as deep as the decoder allows can be made native", () => {
  let value = scv.u32(1);
  for (let i = 0; i < 150; i++) value = i % 2 ? scv.vec([value]) : scv.map([[scv.sym("k"), value]]);
  let native = toNative(decoder.decode(value));
  for (let i = 149; i >= 0; i--) native = i % 2 ? (native as never)[0] : (native as { k: never }).k;
  expect(native).toBe(1);
});
