import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";
import { scv } from "@fencepost/simulator";
import fc from "fast-check";
import { beforeAll, expect, test } from "vitest";
import { type Decoder, loadDecoder } from "./decode.ts";
import { isPlainValue } from "./plainValue.ts";

let decoder: Decoder;
beforeAll(async () => {
  decoder = await loadDecoder();
});

/** One of each kind; M, B and L are the examples of SEP-23. */
const ADDRESSES = [
  scv.accountId("a"),
  scv.contractId("a"),
  "MA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJVAAAAAAAAAAAAAJLK",
  "BAAD6DBUX6J22DMZOHIEZTEQ64CVCHEDRKWZONFEUL5Q26QD7R76RGR4TU",
  "LA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJUPJN",
];

const leaf = fc.oneof(
  fc.boolean().map((v) => scv.bool(v)),
  fc.constant(scv.nothing()),
  fc.nat({ max: 0xffffffff }).map((v) => scv.u32(v)),
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map((v) => scv.u64(v)),
  fc.bigInt({ min: -(2n ** 127n), max: 2n ** 127n - 1n }).map((v) => scv.i128(v)),
  fc.bigInt({ min: 0n, max: 2n ** 256n - 1n }).map((v) => scv.u256(v)),
  fc.uint8Array({ maxLength: 9 }).map((v) => scv.bytes(v)),
  fc.string({ unit: "binary", maxLength: 9 }).map((v) => scv.str(v)),
  fc.stringMatching(/^[A-Za-z0-9_]{0,32}$/).map((v) => scv.sym(v)),
  fc.constantFrom(...ADDRESSES).map((v) => scv.address(v)),
);
const value = fc.letrec<{ any: string }>((tie) => ({
  any: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    leaf,
    fc.array(tie("any"), { maxLength: 4 }).map((items) => scv.vec(items)),
    fc.array(fc.tuple(tie("any"), tie("any")), { maxLength: 3 }).map((items) => scv.map(items)),
  ),
})).any;

test("every value of the ordinary kinds is plain", () => {
  fc.assert(
    fc.property(value, (base64) => {
      expect(isPlainValue(Buffer.from(base64, "base64"))).toBe(true);
    }),
  );
});

test("whatever is plain can be decoded, however its bytes were changed", () => {
  const changed = fc.record({
    base64: value,
    at: fc.nat(),
    byte: fc.nat({ max: 255 }),
    cut: fc.option(fc.nat({ max: 12 }), { nil: 0 }),
  });
  fc.assert(
    fc.property(changed, ({ base64, at, byte, cut }) => {
      const whole = Buffer.from(base64, "base64");
      const bytes = Buffer.from(whole.subarray(0, whole.length - cut));
      if (bytes.length > 0) bytes[at % bytes.length] = byte;
      if (isPlainValue(bytes)) decoder.decode(bytes.toString("base64"));
    }),
    { numRuns: 2_000 },
  );
});

test("a symbol that is no UTF-8, or longer than one may be, is not plain", () => {
  const symbol = Buffer.from(scv.sym("abcd"), "base64");
  symbol[8] = 0xff;
  expect(isPlainValue(symbol)).toBe(false);
  const long = Buffer.from(scv.str("a".repeat(33)), "base64");
  long.writeInt32BE(15, 0);
  expect(isPlainValue(long)).toBe(false);
});

test("nearly all of what real contracts emit is plain", (context) => {
  const file = fileURLToPath(
    new URL("../../../../../shared/data/getEvents-63092988.json.gz", import.meta.url),
  );
  if (!existsSync(file)) return context.skip("the recorded ledgers are not here");
  const { events } = JSON.parse(gunzipSync(readFileSync(file)).toString()) as {
    events: { topic?: string[]; value: string }[];
  };
  const values = events.flatMap(({ topic = [], value }) => [...topic, value]);
  const plain = values.filter((base64) => isPlainValue(Buffer.from(base64, "base64")));
  for (const base64 of plain) decoder.decode(base64);
  expect(plain.length / values.length).toBeGreaterThan(0.99);
});
