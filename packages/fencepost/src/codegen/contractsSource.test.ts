import { scv } from "@fencepost/simulator";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  eventSpec,
  type FittingValue,
  fitting,
  specArbitrary,
  userTypes,
} from "../xdr/__tests__/specArbitrary.ts";
import { entriesSection, recordedSpec, specSection, wasmModule } from "../xdr/__tests__/specEntries.ts";
import { loadDecoder } from "../xdr/decode.ts";
import type { EventReader } from "../xdr/eventReader.ts";
import type { DecodedEvent } from "../xdr/scValue.ts";
import {
  type ContractSpec,
  readContractSpec,
  type SpecEvent,
  type SpecParam,
  type SpecTypeEntry,
} from "../xdr/spec.ts";
import type { EventSpec, SpecType } from "../xdr/specEvent.ts";
import { createProject, MAP_HELPER, type Project, sourceOf } from "./__tests__/project.ts";
import { runCodegen } from "./codegen.ts";
import { contractsSource } from "./contractsSource.ts";

const decoder = await loadDecoder();
const alice = scv.accountId("alice");
const bob = scv.contractId("bob");

const tokenSpec = recordedSpec("spec-token.json");
const customSpec = recordedSpec("spec-custom-types.json");
const recorded = tokenSpec !== null && customSpec !== null;

let project: Project;
/** What the compiler says of all files together: one run of it takes seconds. */
let diagnostics: readonly string[];
const said = (...files: readonly string[]) =>
  diagnostics.filter((line) => files.some((file) => line.startsWith(`${file}:`)));

beforeAll(async () => {
  project = await createProject();
  const files = ["random.ts", "values.ts", "hostile.ts", "kinds.ts"];
  await generate(
    "random.ts",
    Object.fromEntries(examples.map(({ spec }, i) => [`random${i}`, specSection(spec)])),
  );
  await project.write("values.ts", valuesSource());
  await generate(
    "hostile.ts",
    Object.fromEntries(HOSTILE_NAMES.map((name) => [name, specSection(hostileSpec)])),
  );
  await project.write("kinds.ts", kindsSource);
  if (recorded) {
    const sections = { token: entriesSection(tokenSpec.entries), custom: entriesSection(customSpec.entries) };
    await generate("recorded.ts", sections);
    await project.write("handlers.ts", HANDLERS);
    files.push("recorded.ts", "handlers.ts");
  }
  diagnostics = project.check(files);
});
afterAll(() => project.remove());

test("the compiler has nothing to say of other files", () => {
  expect(
    diagnostics.filter((line) => !/^(random|values|hostile|kinds|recorded|handlers)\.ts:/.test(line)),
  ).toEqual([]);
});

/** Writes the file of these specs, each under its name. */
async function generate(file: string, specs: Readonly<Record<string, Uint8Array>>) {
  const wasmFiles: string[] = [];
  for (const [name, section] of Object.entries(specs)) {
    wasmFiles.push(`${name}=${await project.write(`${name}.wasm`, wasmModule(["contractspecv0", section]))}`);
  }
  return runCodegen({ wasmFiles, out: project.path(file) });
}

type Readers = Readonly<Record<string, EventReader<unknown>>>;

function readEvent(readers: unknown, key: string, topics: readonly string[], value: string) {
  const reader = (readers as Readers)[key];
  if (!reader) throw new Error(`there is no event ${key}`);
  const event: DecodedEvent = {
    topics: [...key.split(":").map((text) => scv.sym(text)), ...topics].map((topic) => decoder.decode(topic)),
    value: decoder.decode(value),
  };
  return reader.read(event);
}

describe.skipIf(!recorded)("the recorded specs", () => {
  const load = () => project.load("recorded.ts");

  test("have every event under its topics: 61 keys for 67 events, and 3", async () => {
    const contracts = await load();
    const keys = new Set(tokenSpec?.events.map(({ prefixTopics }) => prefixTopics.join(":")));
    expect(Object.keys(contracts["tokenEvents"] as object)).toEqual([...keys]);
    expect(Object.keys(contracts["customEvents"] as object)).toEqual(["auth", "swap:pool", "nested"]);
  });

  test.each([
    ["tokenEvents", tokenSpec, 67],
    ["customEvents", customSpec, 3],
  ] as const)(
    "read every event of the list of %s, each part from where the list has it",
    async (name, list, count) => {
      if (!list) throw new Error("skipped where it is absent");
      const { [name]: readers } = await load();
      const spec = await readContractSpec(entriesSection(list.entries), name);
      expect(list.events).toHaveLength(count);
      for (const [i, { prefixTopics, params, dataFormat }] of list.events.entries()) {
        const { topics, data } = eventSpec(spec.events[i] as SpecEvent);
        const typeOf = new Map([...topics, ...data]);
        const arbitrary = fc.tuple(
          ...params.map((param) => fitting(typeOf.get(param.name)!, userTypes(spec))),
        );
        for (const values of fc.sample(arbitrary, { seed: SEED + i, numRuns: 3 })) {
          const at = (location: string) =>
            params.flatMap((param, n) =>
              param.location.endsWith(location) ? [[param.name, values[n]?.base64 ?? ""] as const] : [],
            );
          const parts = at("LocationData");
          const rest = parts.map(([, base64]) => base64);
          const value = new Map([
            ["scSpecEventDataFormatSingleValue", () => rest[0] ?? scv.nothing()],
            ["scSpecEventDataFormatVec", () => scv.vec(rest)],
            ["scSpecEventDataFormatMap", () => scv.struct(Object.fromEntries(parts))],
          ]).get(dataFormat)!();
          const inTopics = at("LocationTopicList").map(([, base64]) => base64);
          const expected = Object.fromEntries(params.map((param, n) => [param.name, values[n]?.data]));
          const key = prefixTopics.join(":");
          expect(readEvent(readers, key, inTopics, value), `event ${i}, ${key}, seed ${SEED + i}`).toEqual({
            data: expected,
          });
        }
      }
    },
  );

  test("read a single value, a map and a list, with the types of the contract", async () => {
    const contracts = await load();
    const read = (key: string, topics: readonly string[], value: string) =>
      readEvent(contracts["customEvents"], key, topics, value);
    const testStruct = scv.struct({ a: scv.u32(1), b: scv.bool(true), c: scv.sym("c") });
    const asset = scv.vec([scv.sym("Asset"), scv.address(bob), scv.i128(-7n)]);
    expect(read("auth", [], scv.sym("hello"))).toEqual({ data: { world: "hello" } });
    expect(
      read(
        "swap:pool",
        [scv.address(alice), scv.u32(12)],
        scv.struct({
          strukt: testStruct,
          complex: asset,
          amounts: scv.vec([scv.i128(1n), scv.i128(2n)]),
          memo: scv.nothing(),
        }),
      ),
    ).toEqual({
      data: {
        from: alice,
        card: 12,
        strukt: { a: 1, b: true, c: "c" },
        complex: { tag: "Asset", values: [bob, -7n] },
        amounts: [1n, 2n],
        memo: null,
      },
    });
    expect(
      read(
        "nested",
        [scv.vec([scv.sym("Second")])],
        scv.vec([scv.vec([testStruct, scv.vec([scv.sym("First")])]), scv.map([[scv.u32(9), testStruct]])]),
      ),
    ).toEqual({
      data: {
        simple: { tag: "Second" },
        tuple_strukt: [{ a: 1, b: true, c: "c" }, { tag: "First" }],
        map: new Map([[9, { a: 1, b: true, c: "c" }]]),
      },
    });
    expect(read("auth", [], scv.str("hello"))).toEqual({
      misfit: "AuthEvent: world is a string, not a symbol",
    });
  });

  test("read the forms of one event, and say of what fits none why it does not", async () => {
    const contracts = await load();
    const read = (value: string) => readEvent(contracts["tokenEvents"], "burn", [scv.address(alice)], value);
    expect(read(scv.struct({ amount: scv.i128(5n) }))).toEqual({ data: { from: alice, amount: 5n } });
    expect(read(scv.struct({ token_id: scv.u32(5) }))).toEqual({ data: { from: alice, token_id: 5 } });
    expect(read(scv.struct({ shares: scv.u32(5) }))).toEqual({
      misfit: "Burn: its value has no amount; Burn: its value has no token_id",
    });
  });

  test("give handlers typed data by the name of the event, and a misspelt one is a type error", () => {
    expect(said("recorded.ts", "handlers.ts")).toEqual([]);
  });
});

const HANDLERS = `
import { defineContract, defineProjection } from "fencepost";
import { customEvents, CustomRoyalCard, type TokenBurn, tokenEvents } from "./recorded.ts";

const token = defineContract({ id: "C…", startLedger: "latest", events: tokenEvents });
const custom = defineContract({ id: "C…", startLedger: 7, events: customEvents });
const start = { name: "all", version: 1, contracts: { token, custom }, tables: {} };

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Same<A, B>): void => {};

defineProjection({
  ...start,
  on: {
    "token:transfer": ({ event }) => {
      same<typeof event.name, "transfer">(true);
      same<typeof event.data.from, string>(true);
      if ("token_id" in event.data) same<typeof event.data.token_id, number>(true);
      else same<typeof event.data.to_muxed_id, bigint | null>(true);
      // @ts-expect-error only one of the forms has an amount
      event.data.amount;
    },
    "token:burn": ({ event }) => {
      if ("amount" in event.data) same<typeof event.data, TokenBurn>(true);
    },
    "custom:swap:pool": ({ event }) => {
      if (event.data.card === CustomRoyalCard.King) same<typeof event.data.card, 13>(true);
      if (event.data.complex.tag === "Asset") same<typeof event.data.complex.values, readonly [string, bigint]>(true);
      same<typeof event.data.amounts, readonly bigint[]>(true);
      same<typeof event.data.memo, string | null>(true);
      // @ts-expect-error 14 is no card
      event.data.card === 14;
      // @ts-expect-error a misspelt field
      event.data.ammounts;
    },
    "custom:nested": ({ event }) => {
      same<typeof event.data.simple.tag, "First" | "Second" | "Third">(true);
      const value = event.data.map.get(9);
      if (value) same<typeof value.b, boolean>(true);
    },
    // @ts-expect-error the event has two fixed topics
    "custom:swap": () => {},
  },
});

// @ts-expect-error a misspelt event
defineProjection({ ...start, on: { "token:trasnfer": () => {} } });
`;

const watched = { id: scv.contractId("pool"), startLedger: 7 };
const kindsSource = `${contractsSource([
  { name: "usdc", origin: "an asset", watched, events: { kind: "asset" } },
  { name: "old", origin: "old code", watched, events: { kind: "raw", names: ["swap", "pool:sync", "a b"] } },
])}
import { defineProjection } from "fencepost";

defineProjection({
  name: "kinds",
  version: 1,
  contracts: { usdc, old },
  tables: {},
  on: {
    "usdc:transfer": ({ event }) => {
      event.data satisfies {
        from: string;
        to: string;
        asset: string;
        amount: bigint;
        to_muxed_id: bigint | string | Uint8Array | null;
      };
      // @ts-expect-error a transfer has no such part
      event.data.sender;
    },
    "usdc:fee": ({ event }) => {
      event.data satisfies { from: string; amount: bigint };
    },
    "old:pool:sync": ({ event }) => {
      const [first] = event.data.topics;
      if (first?.type === "symbol") first.value satisfies string;
      if (event.data.value.type === "u64") event.data.value.value satisfies bigint;
    },
    // @ts-expect-error an event that was not named
    "old:sync": () => {},
  },
});
`;

test("assets and raw events give handlers typed data too", () => {
  expect(said("kinds.ts")).toEqual([]);
});

const SEED = 20_261_129;

interface Example {
  readonly spec: ContractSpec;
  readonly events: readonly { readonly event: EventSpec; readonly values: readonly FittingValue[] }[];
}

const exampleArbitrary: fc.Arbitrary<Example> = specArbitrary.chain((spec) => {
  const types = userTypes(spec);
  const events = spec.events.map((entry) => {
    const event = eventSpec(entry);
    const values = [...event.topics, ...event.data].map(([, type]) => fitting(type, types));
    return fc.record({ event: fc.constant(event), values: fc.tuple(...values) });
  });
  return fc.record({ spec: fc.constant(spec), events: fc.tuple(...events) });
});

const examples = fc.sample(exampleArbitrary, { seed: SEED, numRuns: 40 });

const dataOf = ({ event, values }: Example["events"][number]): object => {
  const names = [...event.topics, ...event.data].map(([name]) => name);
  return Object.fromEntries(values.map(({ data }, i) => [names[i] ?? "", data]));
};

/** The data of every example, each given the type that the generated file has for it. */
function valuesSource(): string {
  const lines = examples.flatMap(({ events }, i) =>
    events.map((example, j) => {
      const type = `Data<"random${i}Events", ${JSON.stringify(example.event.prefix.join(":"))}>`;
      return `export const v${i}_${j}: ${type} = ${sourceOf(dataOf(example))};`;
    }),
  );
  return [
    'import type { EventData } from "fencepost";',
    'import type * as contracts from "./random.ts";',
    "type Contracts = typeof contracts;",
    "type Data<C extends keyof Contracts, E extends keyof Contracts[C]> = EventData<Contracts[C][E]>;",
    MAP_HELPER,
    ...lines,
  ].join("\n");
}

describe(`any spec (seed ${SEED})`, () => {
  test("gives TypeScript whose types are those of the values that are read", () => {
    expect(said("random.ts", "values.ts")).toEqual([]);
  });

  test("gives readers that read every event of it", async () => {
    const contracts = await project.load("random.ts");
    for (const [i, { events }] of examples.entries()) {
      for (const example of events) {
        const { prefix, topics, data, format } = example.event;
        const encoded = example.values.map(({ base64 }) => base64);
        const rest = encoded.slice(topics.length);
        const value = {
          single: () => rest[0] ?? scv.nothing(),
          vec: () => scv.vec(rest),
          map: () => scv.struct(Object.fromEntries(data.map(([name], at) => [name, rest[at] ?? ""]))),
        }[format]();
        const key = prefix.join(":");
        const reading = readEvent(contracts[`random${i}Events`], key, encoded.slice(0, topics.length), value);
        expect(reading, `spec ${i}, event ${key}`).toEqual({ data: dataOf(example) });
      }
    }
  });
});

const param = (name: string, type: SpecType = "u32", doc = ""): SpecParam => ({ name, doc, type });
const event = (name: string, more: Partial<SpecEvent> = {}): SpecEvent => ({
  name,
  doc: "",
  prefix: [name],
  topics: [],
  format: "map",
  data: [],
  ...more,
});
const struct = (name: string, ...fields: SpecParam[]): SpecTypeEntry => ({
  name,
  doc: "",
  kind: "struct",
  fields,
});

const EVIL = '*/ } process.exit(1); // \u2028\n */ ` "\\';
const LONG = "x".repeat(60);
const hostileSpec: ContractSpec = {
  types: [
    struct("class", param("constructor"), param("__proto__"), param('a-b"c'), param("1st")),
    struct("Map<K, V>", param("it", { type: "class" })),
    struct("Map_K_V", param("it", { type: "Map<K, V>" })),
    struct("", param("", { type: LONG })),
    struct(LONG, param("more", { type: `${LONG.slice(0, 59)}y` })),
    struct(`${LONG.slice(0, 59)}y`, param("n", "u32", EVIL)),
    {
      name: "naïve 🦊",
      doc: EVIL,
      kind: "enum",
      cases: [
        { name: "__proto__", doc: EVIL, value: 0 },
        { name: "constructor", doc: "", value: 4_294_967_295 },
        { name: "a b", doc: "", value: 1 },
      ],
    },
    {
      name: "Uint8Array",
      doc: "",
      kind: "union",
      cases: [{ name: EVIL.slice(0, 20), doc: EVIL, types: ["bytes", { type: "naïve 🦊" }] }],
    },
  ],
  events: [
    event("delete", {
      doc: EVIL,
      topics: [param("in", "address", EVIL)],
      data: [param("default", { type: "" })],
    }),
    event("default", {
      data: [param("x", { type: "Map_K_V" }), param("y", { vec: { type: "Uint8Array" } })],
    }),
    event("__proto__", { data: [param("__proto__")] }),
    event("a".repeat(32), { prefix: ["constructor"], data: [param("n")] }),
    event("constructor", { prefix: ["toString", "valueOf"] }),
  ],
};
/** Names of contracts that make names of types which mean something else. */
const HOSTILE_NAMES = ["uint8", "readonly", "sc", "contract"];

describe("names and texts of strangers", () => {
  test("are safe to compile and to run, whatever they are", async () => {
    expect(said("hostile.ts")).toEqual([]);
    const { uint8Events } = await project.load("hostile.ts");
    expect(Object.keys(uint8Events as object)).toEqual([
      "delete",
      "default",
      "__proto__",
      "constructor",
      "toString:valueOf",
    ]);
    expect(readEvent(uint8Events, "__proto__", [], scv.map([[scv.sym("__proto__"), scv.u32(1)]]))).toEqual({
      data: Object.fromEntries([["__proto__", 1]]),
    });
    expect(readEvent(uint8Events, "toString:valueOf", [], scv.map([]))).toEqual({ data: {} });
  });

  test("an event that leaves a question open is left out, and the file and the result say why", async () => {
    const two: SpecTypeEntry = {
      name: "Two",
      doc: "",
      kind: "enum",
      cases: [{ name: "a", doc: "", value: 1 }],
    };
    const spec: ContractSpec = {
      types: [
        two,
        { ...two, kind: "error" },
        struct("Mixed", param("0"), param("a")),
        struct("Twice", param("a"), param("a", "bool")),
        struct("Same", param("a")),
        { ...struct("Same", param("a")), doc: "once more" },
      ],
      events: [
        event("good", { data: [param("it", { type: "Same" })] }),
        event("anonymous", { prefix: [] }),
        event("odd", { prefix: ["a:b"] }),
        event("twins", { topics: [param("to")], data: [param("to")] }),
        event("singles", { format: "single", data: [param("a"), param("b")] }),
        event("unknown", { data: [param("it", { vec: { option: { type: "Nowhere" } } })] }),
        event("ambiguous", { data: [param("it", { map: ["u32", { type: "Two" }] })] }),
        event("mixed", { data: [param("it", { tuple: [{ type: "Mixed" }] })] }),
        event("repeated", { data: [param("it", { type: "Twice" })] }),
        event("unerring", { data: [param("it", { result: ["u32", "u32"] })] }),
      ],
    };
    const { leftOut, source } = await generate("leftOut.ts", { pool: specSection(spec) });
    expect(leftOut.map(({ event, why }) => `${event} ${why}`)).toEqual([
      "anonymous has no fixed first topic, by which a handler could name it",
      "odd has a fixed topic that is no symbol",
      'twins has two parameters "to"',
      "singles has several parameters in data of a single value",
      'unknown names the type "Nowhere", which the contract does not describe',
      'ambiguous names the type "Two", which the contract describes in two ways',
      'mixed names the type "Mixed", some of whose fields are numbers',
      'repeated names the type "Twice", which has "a" twice',
      "unerring has a result whose error is no error type",
    ]);
    expect(new Set(leftOut.map(({ contract }) => contract))).toEqual(new Set(["pool"]));
    for (const { event, why } of leftOut) expect(source).toContain(`  // Left out: ${event} ${why}.`);
    expect(Object.keys((await project.load("leftOut.ts"))["poolEvents"] as object)).toEqual(["good"]);
  });
});
