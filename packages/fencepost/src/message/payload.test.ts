import { asToken, deriveEventId } from "@fencepost/token";
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  buildMessage,
  InvalidMessageError,
  isMessageType,
  MAX_BODY_BYTES,
  type MessageContent,
} from "./payload.ts";

const token = asToken("testnet-20251217-0063092990-0000027-0006-0000000002");
const type = "pool.assets_locked";
const content: MessageContent = {
  eventId: deriveEventId(token, type),
  type,
  token,
  occurredAt: "2026-06-19T00:21:26Z",
  data: { pool_id: "a", amount: 5n },
  source: { network: "testnet", contract_id: "C…", ledger: 63_092_990, tx_hash: "ab" },
};

const build = (data: unknown) => buildMessage({ ...content, data });
const dataOf = (data: unknown): unknown =>
  (JSON.parse(build(data).body.toString("utf8")) as { data: unknown }).data;

test("has exactly the fields of the contract with customers, in their order", () => {
  expect(buildMessage(content).body.toString("utf8")).toBe(
    `{"type":"pool.assets_locked","event_id":"${content.eventId}","fencing_token":"${token}",` +
      '"timestamp":"2026-06-19T00:21:26Z","data":{"pool_id":"a","amount":"5"},' +
      '"source":{"network":"testnet","contract_id":"C…","ledger":63092990,"tx_hash":"ab"}}',
  );
});

test("leaves token and source out where there are none", () => {
  const { source: _, ...rest } = content;
  const body = buildMessage({ ...rest, token: null }).body.toString("utf8");
  expect(Object.keys(JSON.parse(body) as object)).toEqual(["type", "event_id", "timestamp", "data"]);
});

test("is the same bytes each time it is built", () => {
  expect(buildMessage(content)).toEqual(buildMessage(content));
});

test("its content hash does not see the order of keys, nor times and source", () => {
  const hash = build({ a: 1, b: { c: [1, 2], d: 2 } }).contentHash;
  expect(build({ b: { d: 2, c: [1, 2] }, a: 1 }).contentHash).toEqual(hash);
  const later = { ...content, occurredAt: "2026-06-20T00:00:00Z", data: { a: 1, b: { c: [1, 2], d: 2 } } };
  expect(buildMessage(later).contentHash).toEqual(hash);
});

test("its content hash tells type, values, kinds and order of lists apart", () => {
  const different = [
    ...[{}, [], "", null, false, 0, "0", { a: 1 }, { a: "1" }, { a: 1n * 2n }, { a: null }, { b: 1 }],
    ...[[1, 2], [2, 1], [[1], 2], { a: [] }, { a: {} }],
  ];
  const hashes = different.map((data) => build(data).contentHash.toString("hex"));
  hashes.push(buildMessage({ ...content, type: "other", data: {} }).contentHash.toString("hex"));
  expect(new Set(hashes).size).toBe(hashes.length);
});

test("an integer is the same text whether small or large, bytes are base64, a map is pairs", () => {
  expect(dataOf({ small: 1n, large: 2n ** 127n, bytes: Uint8Array.of(0, 255, 16) })).toEqual({
    small: "1",
    large: "170141183460469231731687303715884105728",
    bytes: "AP8Q",
  });
  expect(
    dataOf(
      new Map<unknown, unknown>([
        [1n, "a"],
        [{ k: 2 }, null],
      ]),
    ),
  ).toEqual([
    ["1", "a"],
    [{ k: 2 }, null],
  ]);
  expect(dataOf(new Date("2026-06-19T00:21:26.5Z"))).toBe("2026-06-19T00:21:26.500Z");
  expect(dataOf({ kept: 1, gone: undefined })).toEqual({ kept: 1 });
});

function refusal(run: () => unknown): Error {
  try {
    run();
  } catch (error) {
    return error as Error;
  }
  throw new Error("It was accepted.");
}

const cyclic: { self?: unknown } = {};
cyclic.self = cyclic;
// 2^60 values, if each place where a list stands is visited.
let repeating: unknown = [];
for (let i = 0; i < 60; i++) repeating = [repeating, repeating];
class Account {
  readonly id = 1;
}

test.each<[string, unknown, RegExp]>([
  ["NaN", { a: [Number.NaN] }, /data.a.0 is NaN, which JSON cannot hold/],
  ["an infinite number", Number.POSITIVE_INFINITY, /data is Infinity/],
  [
    "an integer that a number does not hold",
    { a: 2 ** 53 },
    /data.a is an integer beyond 2\^53 .* use a bigint/,
  ],
  ["a function", { a: () => 1 }, /data.a is function/],
  ["a symbol", { a: Symbol("x") }, /data.a is symbol/],
  ["nothing", undefined, /data is undefined/],
  ["an undefined item of a list", [1, undefined], /data.1 is undefined/],
  ["a hole in a list", new Array(2), /data.0 is undefined/],
  ["an object of a class", { a: new Account() }, /data.a is not plain data/],
  ["a set", new Set([1]), /data is not plain data/],
  ["other typed arrays", Uint16Array.of(1), /data is not plain data/],
  ["an invalid date", new Date(Number.NaN), /data is an invalid date/],
  ["data inside itself", cyclic, /data(?:\.self)+\S* is nested deeper than 64/],
  ["data that repeats itself without end", repeating, /goes beyond the limit of 262144 bytes/],
  ["a list longer than a body", new Array(1e9), /data goes beyond the limit/],
  ["a text longer than a body", "x".repeat(MAX_BODY_BYTES + 1), /data goes beyond the limit/],
  ["bytes longer than a body", new Uint8Array(MAX_BODY_BYTES + 1), /data goes beyond the limit/],
  ["a body over the limit", "x".repeat(MAX_BODY_BYTES - 100), /body has \d+ bytes and the limit is 262144/],
  ["a text that is long in UTF-8 alone", "€".repeat(MAX_BODY_BYTES / 2), /body has \d+ bytes/],
])("refuses %s, and names where", (_, data, message) => {
  const refused = refusal(() => build(data));
  expect(refused).toBeInstanceOf(InvalidMessageError);
  expect(refused.message).toMatch(message);
  expect(refused.message).toContain(content.eventId);
});

test("a body may be as long as the limit", () => {
  const empty = build("").body.length;
  expect(build("x".repeat(MAX_BODY_BYTES - empty)).body.length).toBe(MAX_BODY_BYTES);
  expect(() => build("x".repeat(MAX_BODY_BYTES - empty + 1))).toThrow(InvalidMessageError);
});

test("a message type is parts between dots", () => {
  expect(["a", "a.b", "A_1.b-c", "x".repeat(128)].every(isMessageType)).toBe(true);
  const wrong = ["", ".", "a.", ".a", "a..b", "a b", "a\n", "ä", "x".repeat(129), 5, null, undefined];
  expect(wrong.filter(isMessageType)).toEqual([]);
  expect(() => buildMessage({ ...content, type: "a b" })).toThrow(InvalidMessageError);
});

/** What a receiver must find again for each value that is accepted. */
type Pair = { readonly data: unknown; readonly json: unknown };
const leaf = fc.oneof(
  fc.string({ unit: "binary" }).map((value): Pair => ({ data: value, json: value })),
  fc.boolean().map((value): Pair => ({ data: value, json: value })),
  fc.constant<Pair>({ data: null, json: null }),
  fc.bigInt().map((value): Pair => ({ data: value, json: `${value}` })),
  fc.maxSafeInteger().map((value): Pair => ({ data: value, json: value })),
  fc
    .double({ noNaN: true, noDefaultInfinity: true })
    .filter((value) => !Number.isInteger(value) || Number.isSafeInteger(value))
    .map((value): Pair => ({ data: value, json: value === 0 ? 0 : value })), // JSON has no -0
  fc.uint8Array().map((value): Pair => ({ data: value, json: Buffer.from(value).toString("base64") })),
);
const { tree } = fc.letrec<{ tree: Pair }>((tie) => ({
  tree: fc.oneof(
    { maxDepth: 4 },
    leaf,
    fc.array(tie("tree"), { maxLength: 5 }).map((items) => ({
      data: items.map((item) => item.data),
      json: items.map((item) => item.json),
    })),
    fc.array(fc.tuple(fc.string(), tie("tree")), { maxLength: 5 }).map((fields) => ({
      data: Object.fromEntries(fields.map(([key, item]) => [key, item.data])),
      json: Object.fromEntries(fields.map(([key, item]) => [key, item.json])),
    })),
    fc.array(fc.tuple(leaf, tie("tree")), { maxLength: 4 }).map((pairs) => {
      const map = new Map(pairs.map(([key, item]) => [key.data, [key.json, item.json]]));
      const values = new Map(pairs.map(([key, item]) => [key.data, item.data]));
      return { data: values, json: [...map.values()] };
    }),
  ),
}));

test("what is accepted reads as the same values at the receiver", () => {
  fc.assert(
    fc.property(tree, ({ data, json }) => {
      expect(dataOf(data)).toStrictEqual(json);
    }),
    { numRuns: 300 },
  );
});
