import { scv } from "@fencepost/simulator";
import { expect, test } from "vitest";
import { z } from "zod";
import type { SchemaShape } from "../config/contract.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { rawEvent } from "../xdr/eventReader.ts";
import {
  declaredName,
  decodeEvent,
  describeIssues,
  eventName,
  readData,
  schemaInput,
} from "./decodeEvent.ts";

const decoder = await loadDecoder();
const alice = scv.accountId("alice");
const bob = scv.accountId("bob");

/** What the schema of a shape is given for an event. */
function input(
  shape: Partial<Exclude<SchemaShape, { readonly "~standard": unknown }>>,
  topics: readonly string[],
  value: string,
) {
  const decoded = decodeEvent({ topics: [scv.sym("moved"), ...topics], value }, decoder);
  return schemaInput({ schema: z.unknown(), ...shape }, decoded);
}

test("an event is called by its first topic, a symbol or a string", () => {
  expect(eventName({ topics: [scv.sym("moved"), scv.u32(1)] }, decoder)).toBe("moved");
  expect(eventName({ topics: [scv.str("moved")] }, decoder)).toBe("moved");
});

test("an event without a name in its first topic has none", () => {
  const others = [scv.u32(1), scv.address(alice), scv.vec([scv.sym("moved")]), scv.str(Uint8Array.of(0xff))];
  expect(others.map((topic) => eventName({ topics: [topic] }, decoder))).toEqual([null, null, null, null]);
  expect(eventName({ topics: [] }, decoder)).toBe(null);
});

test("finding the name decodes nothing but the first topic", () => {
  expect(eventName({ topics: [scv.sym("moved"), "garbage"] }, decoder)).toBe("moved");
});

test("an event is declared by its first two topics, or else by its first", () => {
  const declared = (names: readonly string[], ...topics: string[]) =>
    declaredName({ topics }, Object.fromEntries(names.map((name) => [name, rawEvent()])), decoder);
  const deposit = [scv.sym("pool"), scv.str("deposit"), scv.u32(1)];
  expect(declared(["pool", "pool:deposit"], ...deposit)).toBe("pool:deposit");
  expect(declared(["pool", "pool:withdraw"], ...deposit)).toBe("pool");
  expect(declared(["pool:withdraw"], ...deposit)).toBe(null);
  expect(declared(["pool:deposit"], scv.sym("pool"))).toBe(null);
  expect(declared(["pool:deposit", "pool:null"], scv.sym("pool"), scv.u32(1))).toBe(null);
  expect(declared(["pool", "pools:deposit"], scv.sym("pool"), "garbage")).toBe("pool");
  expect(declared(["pool"], scv.sym("toString"))).toBe(null);
  expect(declared(["null"], scv.u32(1))).toBe(null);
});

test("topics and value keep their types: a symbol is not a string, and no integer is rounded", () => {
  const decoded = decodeEvent(
    { topics: [scv.sym("moved"), scv.str("moved")], value: scv.vec([scv.i128(2n ** 100n), scv.u32(5)]) },
    decoder,
  );
  expect(decoded).toEqual({
    topics: [
      { type: "symbol", value: "moved" },
      { type: "string", value: "moved" },
    ],
    value: {
      type: "vec",
      value: [
        { type: "i128", value: 2n ** 100n },
        { type: "u32", value: 5 },
      ],
    },
  });
});

test("a value that is a map with symbol keys is an object", () => {
  const value = scv.struct({ amount: scv.i128(2n ** 60n), note: scv.str("x"), from: scv.address(alice) });
  expect(input({}, [], value)).toEqual({ amount: 2n ** 60n, note: "x", from: alice });
});

test("named topics stand beside the fields of the value, before a field of the same name", () => {
  const value = scv.struct({ amount: scv.i128(5n), to: scv.sym("in the value") });
  expect(input({ topics: ["from", "to"] }, [scv.address(alice), scv.address(bob)], value)).toEqual({
    from: alice,
    to: bob,
    amount: 5n,
  });
});

test("a single value is named, and so is a list or a map that is to stay whole", () => {
  const topics = ["from"];
  expect(input({ topics, value: "amount" }, [scv.address(alice)], scv.i128(-5n))).toEqual({
    from: alice,
    amount: -5n,
  });
  expect(input({ value: "parts" }, [], scv.vec([scv.u32(1), scv.u64(2n)]))).toEqual({ parts: [1, 2n] });
  expect(input({ value: "all" }, [], scv.struct({ a: scv.u32(1) }))).toEqual({ all: { a: 1 } });
});

test("an unnamed value that is no map is given alone, or left out beside named topics", () => {
  expect(input({}, [], scv.u64(7n))).toBe(7n);
  expect(input({}, [], scv.vec([scv.u32(1)]))).toEqual([1]);
  expect(input({}, [], scv.nothing())).toBe(null);
  expect(input({ topics: ["from"] }, [scv.address(alice)], scv.u64(7n))).toEqual({ from: alice });
});

test("a topic that the event does not have is a field that is missing", () => {
  expect(input({ topics: ["from", "to"] }, [scv.address(alice)], scv.nothing())).toEqual({ from: alice });
});

test("a map with other keys is a Map, with its keys as they are", () => {
  const value = scv.map([
    [scv.u64(2n), scv.sym("two")],
    [scv.u64(2n ** 63n), scv.sym("large")],
  ]);
  expect(input({}, [], value)).toEqual(
    new Map([
      [2n, "two"],
      [2n ** 63n, "large"],
    ]),
  );
  expect(input({ value: "balances" }, [], value)).toEqual({ balances: expect.any(Map) });
});

test("a field called __proto__ is a field like any other", () => {
  const value = scv.struct({ __proto: scv.u32(1) });
  const hostile = scv.map([[scv.sym("__proto__"), scv.struct({ admin: scv.bool(true) })]]);
  expect(input({ topics: ["__proto__"] }, [scv.u32(5)], value)).not.toHaveProperty("admin");
  const fields = input({ topics: ["from"] }, [scv.u32(5)], hostile) as object;
  expect(Object.getPrototypeOf(fields)).toBe(Object.prototype);
  expect(Object.keys(fields)).toEqual(["__proto__", "from"]);
});

test("data is what the schema makes of it, also where it waits", async () => {
  const schema = z.object({ amount: z.bigint().transform(async (amount) => amount * 2n) });
  const decoded = decodeEvent(
    { topics: [scv.sym("moved")], value: scv.struct({ amount: scv.i128(4n) }) },
    decoder,
  );
  expect(await readData(schema, decoded)).toEqual({ data: { amount: 8n } });
});

test("an event with a reader of its own is read by that", async () => {
  const decoded = decodeEvent({ topics: [scv.sym("moved")], value: scv.u32(4) }, decoder);
  expect(await readData(rawEvent(), decoded)).toEqual({ data: decoded });
  const picky = { read: () => ({ misfit: "it is a Monday" }) };
  expect(await readData(picky, decoded)).toEqual({ misfit: "it is a Monday" });
});

test("a misfit says where it does not fit", async () => {
  const schema = z.object({ amount: z.string(), from: z.object({ id: z.bigint() }) });
  const decoded = decodeEvent(
    {
      topics: [scv.sym("moved")],
      value: scv.struct({ amount: scv.i128(4n), from: scv.struct({ id: scv.sym("x") }) }),
    },
    decoder,
  );
  expect(await readData(schema, decoded)).toEqual({
    misfit: expect.stringMatching(/^amount: .*expected string.*; from\.id: .*expected bigint/),
  });
});

test("a reason is bounded, however much does not fit", () => {
  const issues = Array.from({ length: 1_000 }, (_, i) => ({ message: "x".repeat(10_000), path: [i] }));
  const text = describeIssues(issues);
  expect(text).toMatch(/^0: x+; 1: .*; 4: x+; and 995 more$/);
  expect(text.length).toBeLessThan(1_100);
});
