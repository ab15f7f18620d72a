import { scv } from "@fencepost/simulator";
import fc from "fast-check";
import { describe, expect, expectTypeOf, test } from "vitest";
import { eventSpec, fitting, misfitting, specArbitrary, userTypes } from "./__tests__/specArbitrary.ts";
import { loadDecoder } from "./decode.ts";
import { type EventReader, rawEvent } from "./eventReader.ts";
import type { DecodedEvent } from "./scValue.ts";
import { type EventSpec, type SpecType, type SpecUserTypes, specEvent } from "./specEvent.ts";

const decoder = await loadDecoder();
const alice = scv.accountId("alice");
const pool = scv.contractId("pool");

const decoded = (topics: readonly string[], value: string): DecodedEvent => ({
  topics: topics.map((topic) => decoder.decode(topic)),
  value: decoder.decode(value),
});

/** Reads an event by one spec. */
function read(spec: Partial<EventSpec>, topics: readonly string[], value: string, types: SpecUserTypes = {}) {
  const whole: EventSpec = { name: "Moved", prefix: ["moved"], topics: [], format: "map", data: [], ...spec };
  return specEvent<object>([whole], types).read(decoded([scv.sym("moved"), ...topics], value));
}

/** Reads one value of a type. */
const readValue = (type: SpecType, value: string, types: SpecUserTypes = {}) =>
  read({ format: "single", data: [["it", type]] }, [], value, types);

describe("where the parts of an event are", () => {
  test("topics come after the fixed ones, in their order, and fields of a map by their names", () => {
    const spec = {
      prefix: ["moved", "pool"],
      topics: [
        ["from", "address"],
        ["kind", "u32"],
      ] as const,
      data: [
        ["amount", "i128"],
        ["memo", { option: "symbol" }],
      ] as const,
    };
    const topics = [scv.sym("pool"), scv.address(alice), scv.u32(7)];
    const value = scv.struct({ memo: scv.nothing(), amount: scv.i128(-5n) });
    expect(read(spec, topics, value)).toEqual({ data: { from: alice, kind: 7, amount: -5n, memo: null } });
  });

  test("a list has the data in its order", () => {
    const spec = {
      format: "vec",
      data: [
        ["a", "u32"],
        ["b", "bool"],
      ],
    } as const;
    expect(read(spec, [], scv.vec([scv.u32(1), scv.bool(true)]))).toEqual({ data: { a: 1, b: true } });
    expect(read({ format: "vec" }, [], scv.vec([]))).toEqual({ data: {} });
  });

  test("a single value stands for itself, and nothing is void", () => {
    expect(readValue({ vec: "u32" }, scv.vec([scv.u32(1)]))).toEqual({ data: { it: [1] } });
    expect(read({ format: "single" }, [], scv.nothing())).toEqual({ data: {} });
    expect(read({ format: "single" }, [], scv.vec([]))).toEqual({
      misfit: "Moved: its value is a vec, not a void",
    });
  });

  test("a fixed topic may be a string, as SEP-48 has it, and is not taken for another", () => {
    const spec: EventSpec = { name: "Moved", prefix: ["moved"], topics: [], format: "map", data: [] };
    const value = scv.map([]);
    const reader = specEvent([spec]);
    expect(reader.read(decoded([scv.str("moved")], value))).toEqual({ data: {} });
    expect(reader.read(decoded([scv.sym("move")], value))).toEqual({ misfit: "Moved: topic 1 is not moved" });
    expect(reader.read(decoded([scv.u32(1)], value))).toEqual({ misfit: "Moved: topic 1 is not moved" });
    expect(reader.read(decoded([], value))).toEqual({ misfit: "Moved: topic 1 is not moved" });
  });

  test.each<[string, Partial<EventSpec>, readonly string[], string, string]>([
    ["a topic too many", {}, [scv.u32(1)], scv.map([]), "its list of topics has 1 items instead of 0"],
    [
      "a topic too few",
      { topics: [["who", "address"]] },
      [],
      scv.map([]),
      "its list of topics has 0 items instead of 1",
    ],
    ["a field too many", {}, [], scv.struct({ a: scv.u32(1) }), "its value has 1 entries instead of 0"],
    [
      "a field of another name",
      { data: [["a", "u32"]] },
      [],
      scv.struct({ b: scv.u32(1) }),
      "its value has no a",
    ],
    [
      "a field that may be void but is not there",
      {
        data: [
          ["a", "u32"],
          ["b", { option: "u32" }],
        ],
      },
      [],
      scv.struct({ a: scv.u32(1) }),
      "its value has 1 entries instead of 2",
    ],
    [
      "a key that is a string",
      { data: [["a", "u32"]] },
      [],
      scv.map([[scv.str("a"), scv.u32(1)]]),
      "its value has no a",
    ],
    ["no map", { data: [["a", "u32"]] }, [], scv.u32(1), "its value is a u32, not a map"],
    ["no list", { format: "vec" }, [], scv.map([]), "its value is a map, not a list"],
    [
      "a topic of another type",
      { topics: [["n", "u32"]] },
      [scv.i32(1)],
      scv.map([]),
      "n is an i32, not a u32",
    ],
  ])("%s is a misfit", (_, spec, topics, value, why) => {
    expect(read(spec, topics, value)).toEqual({ misfit: `Moved: ${why}` });
  });

  test("a parameter called __proto__ is a field like any other", () => {
    const value = scv.map([[scv.sym("__proto__"), scv.struct({ admin: scv.bool(true) })]]);
    const reading = read({ data: [["__proto__", "val"]] }, [], value) as { data: object };
    expect(Object.keys(reading.data)).toEqual(["__proto__"]);
    expect(Object.getPrototypeOf(reading.data)).toBe(Object.prototype);
  });
});

describe("types", () => {
  const types: SpecUserTypes = {
    Card: { enum: [11, 12] },
    Broken: { error: [1, 2] },
    Point: {
      struct: [
        ["x", "i32"],
        ["y", "i32"],
      ],
    },
    Pair: { tuple: [{ type: "Point" }, "bool"] },
    Tree: {
      union: [
        ["Leaf", ["u32"]],
        ["Node", [{ vec: { type: "Tree" } }]],
        ["None", []],
      ],
    },
  };
  const point = scv.struct({ x: scv.i32(1), y: scv.i32(-1) });
  const error = (...words: number[]) =>
    Buffer.from([2, ...words].flatMap((w) => [0, 0, 0, w])).toString("base64");

  test.each<[string, SpecType, string, unknown]>([
    ["an option that is set", { option: "u64" }, scv.u64(5n), 5n],
    ["an option that is not", { option: "u64" }, scv.nothing(), null],
    ["a result", { result: ["u32", "error"] }, scv.u32(5), { ok: 5 }],
    ["a result that is an error", { result: ["u32", "error"] }, error(0, 7), { err: { contract: 7 } }],
    [
      "a result that is an error of the contract's",
      { result: ["u32", { type: "Broken" }] },
      error(0, 2),
      { err: 2 },
    ],
    ["an error of the host", "error", error(1, 2), { wasm_vm: "invalid_input" }],
    ["an error of the contract's", { type: "Broken" }, error(0, 1), 1],
    ["a case of an enum", { type: "Card" }, scv.u32(12), 12],
    ["a struct", { type: "Point" }, point, { x: 1, y: -1 }],
    ["a struct without names", { type: "Pair" }, scv.vec([point, scv.bool(false)]), [{ x: 1, y: -1 }, false]],
    ["a union without values", { type: "Tree" }, scv.vec([scv.sym("None")]), { tag: "None" }],
    [
      "a union that holds itself",
      { type: "Tree" },
      scv.vec([scv.sym("Node"), scv.vec([scv.vec([scv.sym("Leaf"), scv.u32(3)])])]),
      { tag: "Node", values: [[{ tag: "Leaf", values: [3] }]] },
    ],
    [
      "a map with keys of any type",
      { map: [{ tuple: ["u32", "bool"] }, "symbol"] },
      scv.map([[scv.vec([scv.u32(1), scv.bool(true)]), scv.sym("a")]]),
      new Map([[[1, true], "a"]]),
    ],
    ["bytes of a length", { bytesN: 2 }, scv.bytes(Uint8Array.of(1, 2)), Uint8Array.of(1, 2)],
    ["a string that is no text", "string", scv.str(Uint8Array.of(0xff)), Uint8Array.of(0xff)],
    [
      "any value, with its types",
      "val",
      scv.vec([scv.u32(1)]),
      { type: "vec", value: [{ type: "u32", value: 1 }] },
    ],
    ["an account", "address", scv.address(alice), alice],
    ["a contract", "muxedAddress", scv.address(pool), pool],
  ])("%s", (_, type, value, data) => {
    expect(readValue(type, value, types)).toEqual({ data: { it: data } });
  });

  test.each<[string, SpecType, string, string]>([
    ["an integer of another width", "i128", scv.i64(1n), "it is an i64, not an i128"],
    ["a symbol for a string", "string", scv.sym("a"), "it is a symbol, not a string"],
    ["bytes of another length", { bytesN: 2 }, scv.bytes(Uint8Array.of(1)), "it is 1 bytes, not 2 bytes"],
    ["a case that is not there", { type: "Card" }, scv.u32(13), "it is 13, which is no case of the enum"],
    [
      "a tag that is not there",
      { type: "Tree" },
      scv.vec([scv.sym("X")]),
      "it begins with none of the tags that there are",
    ],
    [
      "a nested value",
      { vec: { type: "Point" } },
      scv.vec([point, scv.struct({ x: scv.i32(1), y: scv.u32(1) })]),
      "it[1].y is a u32, not an i32",
    ],
    [
      "a muxed account for an account",
      "address",
      scv.address("MA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJVAAAAAAAAAAAAAJLK"),
      "it is an address M…, which an address cannot be",
    ],
    [
      "one key twice",
      { map: ["u32", "u32"] },
      scv.map([
        [scv.u32(1), scv.u32(1)],
        [scv.u32(1), scv.u32(2)],
      ]),
      "it has one key twice",
    ],
    [
      "an error without its code",
      { type: "Broken" },
      error(1, 2),
      "it is a value of the ledger, not a case of an enum",
    ],
  ])("%s is a misfit that says where", (_, type, value, why) => {
    expect(readValue(type, value, types)).toEqual({ misfit: `Moved: ${why}` });
  });

  test("a type that is not there is an error at once", () => {
    expect(() => readValue({ vec: { type: "Pare" } }, scv.vec([]), types)).toThrow(
      "The spec of Moved names the type Pare, which is not there.",
    );
    expect(() => readValue({ type: "toString" }, scv.vec([]), types)).toThrow(TypeError);
    expect(() => readValue({ type: "A" }, scv.vec([]), { A: { union: [["b", [{ type: "B" }]]] } })).toThrow(
      "type B",
    );
  });
});

describe("several forms of one event", () => {
  const burn = (data: EventSpec["data"], format: EventSpec["format"] = "map"): EventSpec => ({
    name: "Burn",
    prefix: ["burn"],
    topics: [["from", "address"]],
    format,
    data,
  });
  const topics = [scv.sym("burn"), scv.address(alice)];

  test("the one that fits is taken, whichever stands first", () => {
    const forms = [burn([["amount", "i128"]]), burn([["token_id", "u32"]])];
    for (const order of [forms, forms.toReversed()]) {
      const reader = specEvent<{ amount: bigint } | { token_id: number }>(order);
      expectTypeOf(reader).toEqualTypeOf<EventReader<{ amount: bigint } | { token_id: number }>>();
      const amount = reader.read(decoded(topics, scv.struct({ amount: scv.i128(5n) })));
      expect(amount).toEqual({ data: { from: alice, amount: 5n } });
      const id = reader.read(decoded(topics, scv.struct({ token_id: scv.u32(5) })));
      expect(id).toEqual({ data: { from: alice, token_id: 5 } });
    }
  });

  test("where none fits, the reason of each is told, once", () => {
    const reader = specEvent([
      burn([["amount", "i128"]]),
      burn([["token_id", "u32"]]),
      burn([["amount", "i128"]]),
    ]);
    expect(reader.read(decoded(topics, scv.struct({ amount: scv.u32(5) })))).toEqual({
      misfit: "Burn: amount is a u32, not an i128; Burn: its value has no token_id",
    });
  });

  test("where more than one fits, nothing is guessed", () => {
    const reader = specEvent([
      burn([["amount", "i128"]], "single"),
      { ...burn([["left", "i128"]], "single"), name: "Rest" },
    ]);
    expect(reader.read(decoded(topics, scv.i128(5n)))).toEqual({
      misfit: "fits the specs of Burn and of Rest alike",
    });
  });
});

test("a reason is bounded, however long the names and however many the forms", () => {
  const spec: EventSpec = {
    name: "x".repeat(32),
    prefix: ["moved"],
    topics: [],
    format: "single",
    data: [["y".repeat(5_000), "u32"]],
  };
  const forms = Array.from({ length: 50 }, (_, i) => ({ ...spec, name: `${spec.name}${i}` }));
  const reading = specEvent(forms).read(decoded([scv.sym("moved")], scv.u64(1n)));
  expect("misfit" in reading && reading.misfit.length).toBeLessThan(1_100);
});

test("a raw event is what is on the chain, whatever it is", () => {
  const event = decoded([scv.sym("moved"), scv.u32(1)], scv.struct({ a: scv.str("b") }));
  expect(rawEvent().read(event)).toEqual({ data: event });
  expect(rawEvent().read(decoded([], scv.nothing()))).toEqual({
    data: { topics: [], value: { type: "void" } },
  });
});

describe("for any spec", () => {
  /** Any event of any spec, and for each of its parameters a value that fits. */
  const events = specArbitrary.chain((spec) => {
    const types = userTypes(spec);
    return fc.constantFrom(...spec.events.map(eventSpec)).chain((event) => {
      const all = [...event.topics, ...event.data];
      return fc.record({
        types: fc.constant(types),
        event: fc.constant(event),
        values: fc.tuple(...all.map(([, type]) => fitting(type, types))),
      });
    });
  });

  function onChain({ prefix, topics, format, data }: EventSpec, values: readonly string[]): DecodedEvent {
    const rest = values.slice(topics.length);
    const named = Object.fromEntries(data.map(([name], i) => [name, rest[i] ?? ""]));
    const value = {
      single: () => rest[0] ?? scv.nothing(),
      vec: () => scv.vec(rest),
      map: () => scv.struct(named),
    };
    return decoded(
      [...prefix.map((text) => scv.sym(text)), ...values.slice(0, topics.length)],
      value[format](),
    );
  }

  test("what fits gives the values, each under its name", () => {
    fc.assert(
      fc.property(events, ({ types, event, values }) => {
        const names = [...event.topics, ...event.data].map(([name]) => name);
        const reading = specEvent([event], types).read(
          onChain(
            event,
            values.map(({ base64 }) => base64),
          ),
        );
        expect(reading).toEqual({
          data: Object.fromEntries(values.map(({ data }, i) => [names[i], data])),
        });
      }),
      { numRuns: 500 },
    );
  });

  test("what is wrong in one place is a misfit", () => {
    const mutated = events.chain(({ types, event, values }) => {
      const all = [...event.topics, ...event.data];
      const good = values.map(({ base64 }) => base64);
      const whole = onChain(event, good);
      const inOnePlace = all.flatMap(([, type], at) => {
        const bad = misfitting(type, types);
        return bad ? [bad.map((item) => onChain(event, good.with(at, item)))] : [];
      });
      const wholly: DecodedEvent[] = [
        { ...whole, topics: [...whole.topics, { type: "u32", value: 1 }] },
        { ...whole, topics: whole.topics.slice(0, -1) },
        { ...whole, topics: [{ type: "symbol", value: "Other" }, ...whole.topics.slice(1)] },
        ...(event.format === "single" && event.data.length > 0
          ? []
          : [{ ...whole, value: { type: "bool", value: true } as const }]),
      ];
      const event$ = fc.oneof(fc.constantFrom(...wholly), ...inOnePlace);
      return fc.record({ types: fc.constant(types), event: fc.constant(event), wrong: event$ });
    });
    fc.assert(
      fc.property(mutated, ({ types, event, wrong }) => {
        expect(specEvent([event], types).read(wrong)).toEqual({ misfit: expect.any(String) });
      }),
      { numRuns: 500 },
    );
  });

  test("any event at all is read or is a misfit, and nothing is thrown", () => {
    fc.assert(
      fc.property(events, events, ({ types, event }, { event: other, values }) => {
        const reading = specEvent([event], types).read(
          onChain(
            other,
            values.map(({ base64 }) => base64),
          ),
        );
        expect("data" in reading || reading.misfit.length > 0).toBe(true);
      }),
      { numRuns: 200 },
    );
  });
});
