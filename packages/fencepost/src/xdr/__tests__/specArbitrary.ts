// Random specs of events, and for each type the values that fit it and those that do not.
import { scv } from "@fencepost/simulator";
import fc from "fast-check";
import type { ContractSpec, SpecEvent, SpecParam, SpecTypeEntry } from "../spec.ts";
import type { EventSpec, SpecPlainType, SpecType, SpecUserType, SpecUserTypes } from "../specEvent.ts";

/** A value as it is on the chain, and as it must be read. */
export interface FittingValue {
  readonly base64: string;
  readonly data: unknown;
}

const name = fc.stringMatching(/^[a-z][a-z0-9_]{0,8}$/);
const doc = fc.constantFrom("", "A text.", "Two\nlines */ and more");

const PLAIN_TYPES: readonly SpecPlainType[] = [
  "val",
  "bool",
  "void",
  "error",
  "u32",
  "i32",
  "u64",
  "i64",
  "timepoint",
  "duration",
  "u128",
  "i128",
  "u256",
  "i256",
  "bytes",
  "string",
  "symbol",
  "address",
  "muxedAddress",
];

/** A type that may name the types of the contract's own, whose names are given. */
function typeArbitrary(named: readonly string[], errors: readonly string[]): fc.Arbitrary<SpecType> {
  const user = named.map((type) => fc.constant<SpecType>({ type }));
  const error = fc.constantFrom<SpecType>("error", ...errors.map((type) => ({ type })));
  return fc.letrec<{ any: SpecType }>((tie) => ({
    any: fc.oneof(
      { maxDepth: 2, depthSize: "small" },
      { weight: 4, arbitrary: fc.constantFrom<SpecType>(...PLAIN_TYPES) },
      { weight: 3, arbitrary: user.length > 0 ? fc.oneof(...user) : fc.constant<SpecType>("u32") },
      { weight: 1, arbitrary: fc.nat({ max: 40 }).map((bytesN): SpecType => ({ bytesN })) },
      { weight: 1, arbitrary: notVoid(tie("any")).map((option): SpecType => ({ option })) },
      {
        weight: 1,
        arbitrary: fc.tuple(notError(tie("any"), errors), error).map((result): SpecType => ({ result })),
      },
      { weight: 1, arbitrary: tie("any").map((vec): SpecType => ({ vec })) },
      { weight: 1, arbitrary: fc.tuple(tie("any"), tie("any")).map((map): SpecType => ({ map })) },
      { weight: 1, arbitrary: fc.array(tie("any"), { maxLength: 3 }).map((tuple): SpecType => ({ tuple })) },
    ),
  })).any;
}

/** An option of what may be void itself is void for two reasons, which could not be told apart. */
function notVoid(types: fc.Arbitrary<SpecType>): fc.Arbitrary<SpecType> {
  const mayBeVoid = (type: SpecType): boolean =>
    type === "void" ||
    (typeof type === "object" && "result" in type && mayBeVoid(type.result[0])) ||
    (typeof type === "object" && "option" in type);
  return types.map((type) => (mayBeVoid(type) ? "i128" : type));
}

/** The value of a result may not be an error itself: the two could not be told apart. */
function notError(types: fc.Arbitrary<SpecType>, errors: readonly string[]): fc.Arbitrary<SpecType> {
  const mayBeError = (type: SpecType): boolean =>
    type === "val" ||
    type === "error" ||
    (typeof type === "object" && "option" in type && mayBeError(type.option)) ||
    (typeof type === "object" && "result" in type) ||
    (typeof type === "object" && "type" in type && errors.includes(type.type));
  return types.map((type) => (mayBeError(type) ? "u32" : type));
}

const uniqueNames = (size: { minLength?: number; maxLength: number }) => fc.uniqueArray(name, size);

function params(types: fc.Arbitrary<SpecType>, names: readonly string[]): fc.Arbitrary<SpecParam[]> {
  return fc.tuple(...names.map((each) => fc.record({ name: fc.constant(each), doc, type: types })));
}

function entryArbitrary(
  entry: string,
  named: readonly string[],
  errors: readonly string[],
): fc.Arbitrary<SpecTypeEntry> {
  const types = typeArbitrary(named, errors);
  const head = { name: fc.constant(entry), doc };
  const struct = uniqueNames({ maxLength: 4 }).chain((names) =>
    fc.record({ ...head, kind: fc.constant("struct" as const), fields: params(types, names) }),
  );
  const tupleStruct = fc.integer({ min: 1, max: 3 }).chain((size) => {
    const names = Array.from({ length: size }, (_, i) => String(i));
    return fc.record({ ...head, kind: fc.constant("struct" as const), fields: params(types, names) });
  });
  const union = uniqueNames({ minLength: 1, maxLength: 4 }).chain((names) => {
    const cases = names.map((each) =>
      fc.record({ name: fc.constant(each), doc, types: fc.array(types, { maxLength: 3 }) }),
    );
    return fc.record({ ...head, kind: fc.constant("union" as const), cases: fc.tuple(...cases) });
  });
  return fc.oneof(struct, tupleStruct, union, enumArbitrary(entry, "enum"));
}

function enumArbitrary(entry: string, kind: "enum" | "error"): fc.Arbitrary<SpecTypeEntry> {
  return uniqueNames({ minLength: 1, maxLength: 4 }).chain((names) => {
    const value = fc.nat({ max: 2 ** 31 });
    const cases = names.map((each) => fc.record({ name: fc.constant(each), doc, value }));
    return fc.record({
      name: fc.constant(entry),
      doc,
      kind: fc.constant(kind),
      cases: fc.tuple(...cases),
    });
  });
}

/** A type that holds itself. */
const TREE: SpecTypeEntry = {
  name: "Tree",
  doc: "",
  kind: "union",
  cases: [
    { name: "leaf", doc: "", types: ["u32"] },
    { name: "node", doc: "", types: [{ vec: { type: "Tree" } }, { option: { type: "Tree" } }] },
    { name: "none", doc: "", types: [] },
  ],
};

/** Up to three types of its own beside one that holds itself and an error, and up to four events with keys of their own. */
export const specArbitrary: fc.Arbitrary<ContractSpec> = enumArbitrary("Broken", "error").chain((broken) =>
  fc
    .nat({ max: 3 })
    .chain((count) => {
      const names = Array.from({ length: count }, (_, i) => `Own${i}`);
      const own = names.map((each, i) =>
        entryArbitrary(each, ["Tree", "Broken", ...names.slice(0, i)], ["Broken"]),
      );
      return fc.tuple(fc.constant(names), fc.tuple(...own), uniqueNames({ minLength: 1, maxLength: 4 }));
    })
    .chain(([names, own, keys]) => {
      const types = typeArbitrary(["Tree", "Broken", ...names], ["Broken"]);
      const events = keys.map((key) => eventArbitrary(key, types));
      return fc.record({ types: fc.constant([TREE, broken, ...own]), events: fc.tuple(...events) });
    }),
);

function eventArbitrary(key: string, types: fc.Arbitrary<SpecType>): fc.Arbitrary<SpecEvent> {
  return fc
    .tuple(fc.constantFrom("single", "vec", "map"), uniqueNames({ maxLength: 6 }), fc.nat({ max: 3 }))
    .chain(([format, names, topics]) => {
      const data = names.slice(topics, format === "single" ? topics + 1 : undefined);
      return fc.record({
        name: fc.constant(`${key}_happened`),
        doc,
        prefix: fc.boolean().map((two) => (two ? [key, "done"] : [key])),
        topics: params(types, names.slice(0, topics)),
        format: fc.constant(format),
        data: params(types, data),
      });
    });
}

/** The types of a spec as `specEvent` takes them, under their own names. */
export function userTypes(spec: ContractSpec): SpecUserTypes {
  return Object.fromEntries(spec.types.map((entry) => [entry.name, userType(entry)]));
}

function userType(entry: SpecTypeEntry): SpecUserType {
  switch (entry.kind) {
    case "struct":
      return entry.fields[0]?.name === "0"
        ? { tuple: entry.fields.map(({ type }) => type) }
        : { struct: entry.fields.map(({ name, type }) => [name, type]) };
    case "union":
      return { union: entry.cases.map(({ name, types }) => [name, types]) };
    case "enum":
      return { enum: entry.cases.map(({ value }) => value) };
    case "error":
      return { error: entry.cases.map(({ value }) => value) };
  }
}

export function eventSpec({ name, prefix, topics, format, data }: SpecEvent): EventSpec {
  const fields = (list: readonly SpecParam[]) => list.map((param) => [param.name, param.type] as const);
  return { name, prefix, topics: fields(topics), format, data: fields(data) };
}

const int = (bits: bigint) => fc.bigInt({ min: -(2n ** (bits - 1n)), max: 2n ** (bits - 1n) - 1n });
const uint = (bits: bigint) => fc.bigInt({ min: 0n, max: 2n ** bits - 1n });
const words = (...list: readonly number[]): string =>
  Buffer.from(
    list.flatMap((word) => [word >>> 24, (word >>> 16) & 255, (word >>> 8) & 255, word & 255]),
  ).toString("base64");

const ACCOUNT = scv.accountId("a");
const CONTRACT = scv.contractId("a");
const MUXED = "MA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJVAAAAAAAAAAAAAJLK";
const BALANCE = "BAAD6DBUX6J22DMZOHIEZTEQ64CVCHEDRKWZONFEUL5Q26QD7R76RGR4TU";
const POOL = "LA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJUPJN";

/** A value of the ledger itself, which no type but `val` takes. */
const NOTHING_FITS = words(20);
const contractError = (code: number): string => words(2, 0, code);

function each<V>(values: fc.Arbitrary<V>, encode: (value: V) => string): fc.Arbitrary<FittingValue> {
  return values.map((data) => ({ base64: encode(data), data }));
}

const PLAIN: Readonly<Record<SpecPlainType, fc.Arbitrary<FittingValue>>> = {
  val: fc.oneof(
    uint(64n).map((value) => ({ base64: scv.u64(value), data: { type: "u64", value } })),
    fc.constant({ base64: scv.vec([scv.nothing()]), data: { type: "vec", value: [{ type: "void" }] } }),
  ),
  bool: each(fc.boolean(), scv.bool),
  void: fc.constant({ base64: scv.nothing(), data: null }),
  error: fc.oneof(
    each(fc.nat({ max: 1_000 }), contractError).map(({ base64, data }) => ({
      base64,
      data: { contract: data },
    })),
    fc.constant({ base64: words(2, 1, 2), data: { wasm_vm: "invalid_input" } }),
  ),
  u32: each(fc.nat({ max: 0xffffffff }), scv.u32),
  i32: each(fc.integer(), scv.i32),
  u64: each(uint(64n), scv.u64),
  i64: each(int(64n), scv.i64),
  timepoint: each(uint(64n), scv.timepoint),
  duration: each(uint(64n), scv.duration),
  u128: each(uint(128n), scv.u128),
  i128: each(int(128n), scv.i128),
  u256: each(uint(256n), scv.u256),
  i256: each(int(256n), scv.i256),
  bytes: each(fc.uint8Array({ maxLength: 40 }), scv.bytes),
  string: each(
    fc.oneof(fc.string({ unit: "grapheme", maxLength: 10 }), fc.constant(Uint8Array.of(0xff, 0))),
    scv.str,
  ),
  symbol: each(fc.stringMatching(/^[A-Za-z0-9_]{0,32}$/), scv.sym),
  address: each(fc.constantFrom(ACCOUNT, CONTRACT), scv.address),
  muxedAddress: each(fc.constantFrom(ACCOUNT, CONTRACT, MUXED), scv.address),
};

/** Values that fit a type, with what must be read from them. Types that hold themselves end after `depth` turns. */
export function fitting(type: SpecType, types: SpecUserTypes, depth = 3): fc.Arbitrary<FittingValue> {
  if (typeof type === "string") return PLAIN[type];
  const inner = (each: SpecType) => fitting(each, types, depth);
  if ("option" in type) return fc.oneof(PLAIN.void, inner(type.option));
  if ("result" in type) {
    return fc.oneof(
      inner(type.result[0]).map(({ base64, data }) => ({ base64, data: { ok: data } })),
      inner(type.result[1]).map(({ base64, data }) => ({ base64, data: { err: data } })),
    );
  }
  if ("vec" in type) {
    return fc.array(inner(type.vec), { maxLength: 3 }).map(listOf);
  }
  if ("map" in type) {
    const [key, value] = type.map;
    return fc
      .uniqueArray(fc.tuple(inner(key), inner(value)), { maxLength: 3, selector: ([{ base64 }]) => base64 })
      .map((entries) => ({
        base64: scv.map(entries.map(([k, v]) => [k.base64, v.base64])),
        data: new Map(entries.map(([k, v]) => [k.data, v.data])),
      }));
  }
  if ("tuple" in type) return fittingAll(type.tuple, types, depth).map(listOf);
  if ("bytesN" in type)
    return each(fc.uint8Array({ minLength: type.bytesN, maxLength: type.bytesN }), scv.bytes);
  return fittingUser(types[type.type]!, types, depth);
}

function listOf(items: readonly FittingValue[]): FittingValue {
  return { base64: scv.vec(items.map(({ base64 }) => base64)), data: items.map(({ data }) => data) };
}

function fittingAll(
  list: readonly SpecType[],
  types: SpecUserTypes,
  depth: number,
): fc.Arbitrary<FittingValue[]> {
  return fc.tuple(...list.map((type) => fitting(type, types, depth)));
}

function fittingUser(type: SpecUserType, types: SpecUserTypes, depth: number): fc.Arbitrary<FittingValue> {
  if ("struct" in type) {
    const names = type.struct.map(([field]) => field);
    return fittingAll(
      type.struct.map(([, field]) => field),
      types,
      depth,
    ).map((values) => ({
      base64: scv.struct(Object.fromEntries(values.map(({ base64 }, i) => [names[i]!, base64]))),
      data: Object.fromEntries(values.map(({ data }, i) => [names[i]!, data])),
    }));
  }
  if ("tuple" in type) return fittingAll(type.tuple, types, depth).map(listOf);
  if ("union" in type) {
    const short = type.union.filter(([, values]) => values.length < 2);
    const cases = (depth > 0 || short.length === 0 ? type.union : short).map(([tag, values]) =>
      fittingAll(values, types, depth - 1).map((items) => ({
        base64: scv.vec([scv.sym(tag), ...items.map(({ base64 }) => base64)]),
        data: values.length === 0 ? { tag } : { tag, values: items.map(({ data }) => data) },
      })),
    );
    return fc.oneof(...cases);
  }
  return "enum" in type
    ? each(fc.constantFrom(...type.enum), scv.u32)
    : each(fc.constantFrom(...type.error), contractError);
}

/** Values that a type does not take, wrong in one place; null where it takes every value. */
export function misfitting(type: SpecType, types: SpecUserTypes, depth = 3): fc.Arbitrary<string> | null {
  if (isOpen(type)) return null;
  const wrong: fc.Arbitrary<string>[] = [fc.constant(NOTHING_FITS)];
  /** Fitting values, with a wrong one in the place of one of them. */
  const oneWrong = (list: readonly SpecType[], build: (items: readonly string[]) => string): void => {
    for (const [at, each] of list.entries()) {
      const bad = misfitting(each, types, depth - 1);
      if (!bad) continue;
      const good = fittingAll(list, types, depth - 1);
      wrong.push(
        fc
          .tuple(good, bad)
          .map(([items, item]) => build(items.map(({ base64 }, i) => (i === at ? item : base64)))),
      );
    }
  };
  /** A list with one item too many, and one with too few. */
  const wrongLength = (list: readonly SpecType[], build: (items: readonly string[]) => string): void => {
    const good = fittingAll(list, types, depth - 1).map((items) => items.map(({ base64 }) => base64));
    wrong.push(good.map((items) => build([...items, scv.u32(1)])));
    if (list.length > 0) wrong.push(good.map((items) => build(items.slice(1))));
  };
  if (depth < 0) return fc.oneof(...wrong);

  if (typeof type === "string") {
    const others = PLAIN_TYPES.filter((other) => other !== "val" && other !== type && !/ddress/.test(other));
    wrong.push(...others.map((other) => PLAIN[other].map(({ base64 }) => base64)));
    const kinds = { address: [MUXED, BALANCE, POOL], muxedAddress: [BALANCE, POOL] };
    if (type === "address" || type === "muxedAddress")
      wrong.push(fc.constantFrom(...kinds[type]).map(scv.address));
  } else if ("option" in type) {
    return misfitting(type.option, types, depth)?.filter((value) => value !== scv.nothing()) ?? null;
  } else if ("result" in type) {
    const error = type.result[1];
    const own = typeof error === "object" && "type" in error ? types[error.type] : undefined;
    if (own && "error" in own) wrong.push(unknownCode(own.error));
  } else if ("vec" in type) {
    oneWrong([type.vec, type.vec], scv.vec);
  } else if ("map" in type) {
    oneWrong(type.map, ([key = "", value = ""]) => scv.map([[key, value]]));
  } else if ("tuple" in type) {
    oneWrong(type.tuple, scv.vec);
    wrongLength(type.tuple, scv.vec);
  } else if ("bytesN" in type) {
    const { bytesN } = type;
    wrong.push(
      fc
        .uint8Array({ maxLength: 50 })
        .filter(({ length }) => length !== bytesN)
        .map(scv.bytes),
    );
  } else {
    const own = types[type.type]!;
    if ("struct" in own) {
      const names = own.struct.map(([field]) => field);
      const fields = own.struct.map(([, field]) => field);
      const build = (items: readonly string[]) =>
        scv.struct(Object.fromEntries(items.map((item, i) => [names[i] ?? "zz_more", item])));
      oneWrong(fields, build);
      wrongLength(fields, build);
      const [first] = names;
      if (first !== undefined) {
        wrong.push(
          fittingAll(fields, types, depth - 1).map((items) =>
            scv.map(
              items.map(({ base64 }, i) => [i === 0 ? scv.str(first) : scv.sym(names[i] ?? ""), base64]),
            ),
          ),
        );
      }
    } else if ("tuple" in own) {
      oneWrong(own.tuple, scv.vec);
      wrongLength(own.tuple, scv.vec);
    } else if ("union" in own) {
      wrong.push(fc.constant(scv.vec([])), fc.constant(scv.vec([scv.sym("zz_unknown")])));
      for (const [tag, values] of own.union) {
        const build = (items: readonly string[]) => scv.vec([scv.sym(tag), ...items]);
        oneWrong(values, build);
        wrongLength(values, build);
        wrong.push(
          fittingAll(values, types, depth - 1).map((items) =>
            scv.vec([scv.str(tag), ...items.map(({ base64 }) => base64)]),
          ),
        );
      }
    } else if ("enum" in own) {
      wrong.push(
        fc
          .nat({ max: 0xffffffff })
          .filter((value) => !own.enum.includes(value))
          .map(scv.u32),
      );
      wrong.push(fc.constantFrom(...own.enum).map((value) => scv.u64(BigInt(value))));
    } else {
      wrong.push(unknownCode(own.error));
      wrong.push(fc.constant(words(2, 1, 2)));
    }
  }
  return fc.oneof(...wrong);
}

function unknownCode(known: readonly number[]): fc.Arbitrary<string> {
  return fc
    .nat({ max: 0xffffffff })
    .filter((code) => !known.includes(code))
    .map(contractError);
}

/** Whether a type takes every value: `val`, also behind an option. */
function isOpen(type: SpecType): boolean {
  return type === "val" || (typeof type === "object" && "option" in type && isOpen(type.option));
}
