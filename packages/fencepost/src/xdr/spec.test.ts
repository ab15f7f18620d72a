import fc from "fast-check";
import { expect, test } from "vitest";
import { specArbitrary } from "./__tests__/specArbitrary.ts";
import {
  entriesSection,
  metaSection,
  recordedSpec,
  specSection,
  wasmModule,
} from "./__tests__/specEntries.ts";
import { type ContractSpec, GarbledSectionError, readContractMeta, readContractSpec } from "./spec.ts";
import type { SpecType } from "./specEvent.ts";
import { customSection } from "./wasm.ts";

/** The kind of a type, as the lists of the recorded specs name it. */
function kindOf(type: SpecType): string {
  const kind =
    typeof type === "string" ? type : Object.keys(type)[0] === "type" ? "udt" : Object.keys(type)[0]!;
  return `scSpecType${kind.charAt(0).toUpperCase()}${kind.slice(1)}`;
}

const FORMATS = { single: "SingleValue", vec: "Vec", map: "Map" };

const tokenSpec = recordedSpec("spec-token.json");
const customSpec = recordedSpec("spec-custom-types.json");

test.skipIf(!tokenSpec || !customSpec).each([
  ["spec-token.json", tokenSpec, 67],
  ["spec-custom-types.json", customSpec, 3],
])("the events of the recorded %s read as its list says", async (name, recorded, count) => {
  if (!recorded) throw new Error("skipped where it is absent");
  const wasm = wasmModule(["contractspecv0", entriesSection(recorded.entries)]);
  const spec = await readContractSpec(customSection(wasm, "contractspecv0", name)!, name);
  expect(spec.events).toHaveLength(count);
  const read = spec.events.map(({ name, prefix, topics, data, format }) => ({
    name,
    prefixTopics: prefix,
    topics: topics.map((param) => [param.name, kindOf(param.type)]),
    data: data.map((param) => [param.name, kindOf(param.type)]),
    dataFormat: `scSpecEventDataFormat${FORMATS[format]}`,
  }));
  const expected = recorded.events.map(({ params, ...event }) => {
    const at = (location: string) =>
      params.filter((param) => param.location.endsWith(location)).map((param) => [param.name, param.type]);
    return { ...event, topics: at("TopicList"), data: at("Data") };
  });
  expect(read).toEqual(expected);
});

test.skipIf(!customSpec)(
  "the types of the recorded contract have their fields, cases and values",
  async () => {
    const { types } = await readContractSpec(entriesSection(customSpec?.entries ?? []), "custom");
    const byName = Object.fromEntries(types.map((type) => [type.name, type]));
    expect(byName["Test"]).toEqual({
      name: "Test",
      doc: "This is from the rust doc above the struct Test",
      kind: "struct",
      fields: [
        { name: "a", doc: "", type: "u32" },
        { name: "b", doc: "", type: "bool" },
        { name: "c", doc: "", type: "symbol" },
      ],
    });
    expect(byName["RoyalCard"]).toMatchObject({
      kind: "enum",
      cases: [
        { name: "Jack", value: 11 },
        { name: "Queen", value: 12 },
        { name: "King", value: 13 },
      ],
    });
    expect(byName["Erroneous"]).toMatchObject({
      kind: "error",
      cases: [{ name: "HowCouldYou", value: 100 }],
    });
    expect(byName["ComplexEnum"]).toMatchObject({
      kind: "union",
      cases: [
        { name: "Struct", types: [{ type: "Test" }] },
        { name: "Tuple", types: [{ type: "TupleStruct" }] },
        { name: "Enum", types: [{ type: "SimpleEnum" }] },
        { name: "Asset", types: ["address", "i128"] },
        { name: "Void", types: [] },
      ],
    });
  },
);

test("every spec, with any types and events, reads as it was written", async () => {
  await fc.assert(
    fc.asyncProperty(specArbitrary, async (spec) => {
      expect(await readContractSpec(specSection(spec), "pool")).toEqual(spec);
    }),
    { numRuns: 200 },
  );
});

test("what people wrote for people may be any bytes, and hurts nobody", async () => {
  const spec = { events: [event("moved", "doc: \u{fffd} */ \u0007")], types: [] };
  const section = specSection(spec);
  section[section.indexOf("doc: ") + 5] = 0xff;
  const read = await readContractSpec(section, "pool");
  expect(read.events[0]?.doc).toMatch(/^doc: \u{fffd}/u);
});

test.each<[string, (section: Buffer) => Buffer]>([
  ["cut in the middle of an entry", (section) => section.subarray(0, section.length - 6)],
  [
    "with a kind of entry that is not known",
    (section) => Buffer.concat([section, Buffer.from([0, 0, 0, 99])]),
  ],
  ["with a few bytes too many", (section) => Buffer.concat([section, Buffer.alloc(3)])],
  ["that is text", () => Buffer.from("not a section at all")],
  [
    "that claims a list of four billion",
    (section) =>
      Buffer.concat([
        section,
        Buffer.from([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]),
      ]),
  ],
  [
    "with a type nested without end",
    (section) => {
      // struct, doc, lib, name and one field: doc, name, then option of option of …
      const head = [1, 0, 0, 0, 1, 0, 0].flatMap((word) => [0, 0, 0, word]);
      return Buffer.concat([
        section,
        Buffer.from(head),
        ...Array<Buffer>(30_000).fill(Buffer.from([0, 0, 3, 232])),
      ]);
    },
  ],
])("a section %s is refused by name", async (_, garble) => {
  const garbled = garble(specSection({ events: [event("moved", "")], types: [] }));
  const reading = readContractSpec(garbled, "pool");
  await expect(reading).rejects.toThrow(GarbledSectionError);
  await expect(reading).rejects.toThrow(
    /^pool has a section contractspecv0 that cannot be read: .{1,310}\. The file/,
  );
});

test("a section with any byte changed is read or refused by name", async () => {
  await fc.assert(
    fc.asyncProperty(specArbitrary, fc.nat(), fc.nat({ max: 255 }), async (spec, at, byte) => {
      const section = specSection(spec);
      section[at % section.length] = byte;
      try {
        await readContractSpec(section, "pool");
      } catch (error) {
        expect(error).toBeInstanceOf(GarbledSectionError);
      }
    }),
    { numRuns: 300 },
  );
});

test("what a contract says of how it was built is read by name", async () => {
  const meta = await readContractMeta(metaSection({ rssdkver: "22.0.1#abc", rsver: "1.81.0" }), "pool");
  expect([...meta]).toEqual([
    ["rssdkver", "22.0.1#abc"],
    ["rsver", "1.81.0"],
  ]);
  await expect(readContractMeta(Buffer.from([1, 2, 3]), "pool")).rejects.toThrow(GarbledSectionError);
});

function event(name: string, doc: string): ContractSpec["events"][number] {
  return { name, doc, prefix: [name], topics: [], format: "map", data: [] };
}
