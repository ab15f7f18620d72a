import fc from "fast-check";
import { expect, test } from "vitest";
import { type NativeValue, type ScValue, toNative } from "./scValue.ts";

const symbol = (value: string): ScValue => ({ type: "symbol", value });
const string = (value: string | Uint8Array): ScValue => ({ type: "string", value });
const u32 = (value: number): ScValue => ({ type: "u32", value });
const i32 = (value: number): ScValue => ({ type: "i32", value });
const u64 = (value: bigint): ScValue => ({ type: "u64", value });
const map = (...value: (readonly [ScValue, ScValue])[]): ScValue => ({ type: "map", value });

test.each<[string, ScValue, NativeValue]>([
  ["void is null", { type: "void" }, null],
  ["a bool is a boolean", { type: "bool", value: true }, true],
  ["a u32 is a number", u32(4_294_967_295), 4_294_967_295],
  ["a u64 is a bigint", u64(2n ** 64n - 1n), 2n ** 64n - 1n],
  ["bytes are bytes", { type: "bytes", value: new Uint8Array([1, 2]) }, new Uint8Array([1, 2])],
  ["a symbol is a text", symbol("a"), "a"],
  ["an address is a text", { type: "address", value: "GA…" }, "GA…"],
  ["a vector is a list", { type: "vec", value: [u32(1), { type: "void" }] }, [1, null]],
  [
    "a map with symbols as keys is an object",
    map([symbol("a"), u32(1)], [symbol("b"), u32(2)]),
    { a: 1, b: 2 },
  ],
  ["a map with strings as keys is an object", map([string("a b"), u32(1)]), { "a b": 1 }],
  ["an empty map is an object", map(), {}],
  [
    "a map with numbers as keys is a Map",
    map([u32(1), symbol("x")], [u32(2), symbol("y")]),
    new Map([
      [1, "x"],
      [2, "y"],
    ]),
  ],
  [
    "a map with keys of several types is a Map",
    map([u32(1), u32(1)], [u64(1n), u32(2)]),
    new Map<NativeValue, NativeValue>([
      [1, 1],
      [1n, 2],
    ]),
  ],
  [
    "a map with a symbol and a string is a Map",
    map([symbol("a"), u32(1)], [string("b"), u32(2)]),
    new Map([
      ["a", 1],
      ["b", 2],
    ]),
  ],
  [
    "a map with a key that is no text is a Map",
    map([string("a"), u32(1)], [string(new Uint8Array([255])), u32(2)]),
    new Map<NativeValue, NativeValue>([
      ["a", 1],
      [new Uint8Array([255]), 2],
    ]),
  ],
  [
    "a map whose keys look alike is a list of pairs",
    map([symbol("a"), u32(1)], [string("a"), u32(2)]),
    [
      ["a", 1],
      ["a", 2],
    ],
  ],
  [
    "a map whose numbers look alike is a list of pairs",
    map([u32(1), u32(1)], [i32(1), u32(2)]),
    [
      [1, 1],
      [1, 2],
    ],
  ],
  [
    "a map with one key twice is a list of pairs",
    map([symbol("a"), u32(1)], [symbol("a"), u32(2)]),
    [
      ["a", 1],
      ["a", 2],
    ],
  ],
])("%s", (_, value, native) => {
  expect(toNative(value)).toStrictEqual(native);
});

test("a key such as __proto__ or constructor is a field like any other, and changes no prototype", () => {
  const value = map(
    [symbol("__proto__"), map([symbol("polluted"), u32(1)])],
    [symbol("constructor"), u32(2)],
  );
  const native = toNative(value) as Record<string, NativeValue>;
  expect(Object.getPrototypeOf(native)).toBe(Object.prototype);
  expect(Object.keys(native)).toEqual(["__proto__", "constructor"]);
  expect(native["polluted"]).toBeUndefined();
  expect(Object.getOwnPropertyDescriptor(native, "__proto__")?.value).toEqual({ polluted: 1 });
});

test("no entry of any map is lost", () => {
  const key = fc.oneof(
    fc.constantFrom("a", "b", "1", "__proto__").map(symbol),
    fc.constantFrom("a", "b", "1").map(string),
    fc.constant(string(new Uint8Array([255]))),
    fc.nat({ max: 2 }).map(u32),
    fc.nat({ max: 2 }).map(i32),
    fc.constantFrom(0n, 1n).map(u64),
    fc.constant<ScValue>({ type: "void" }),
  );
  fc.assert(
    fc.property(fc.array(key, { maxLength: 6 }), (keys) => {
      const native = toNative(map(...keys.map((each, i) => [each, u32(i)] as const)));
      const values = Array.isArray(native)
        ? native.map((pair) => (pair as NativeValue[])[1])
        : native instanceof Map
          ? [...native.values()]
          : Object.values(native as object);
      expect(values.sort()).toEqual(keys.map((_, i) => i));
    }),
  );
});
