import { type EventReader, textOf } from "./eventReader.ts";
import type { DecodedEvent, ScValue } from "./scValue.ts";

/**
 * A type of a contract's interface (SEP-48). `val` is any value, given as {@link ScValue}. An `address` is an account
 * or a contract; a `muxedAddress` may be a muxed account too. `{ type }` is a type of the contract's own.
 */
export type SpecType =
  | SpecPlainType
  | { readonly option: SpecType }
  /** The value, or an error in its place. */
  | { readonly result: readonly [value: SpecType, error: SpecType] }
  | { readonly vec: SpecType }
  | { readonly map: readonly [key: SpecType, value: SpecType] }
  | { readonly tuple: readonly SpecType[] }
  /** Bytes of exactly this length. */
  | { readonly bytesN: number }
  | { readonly type: string };

export type SpecPlainType =
  | "val"
  | "bool"
  | "void"
  | "error"
  | "u32"
  | "i32"
  | "u64"
  | "i64"
  | "timepoint"
  | "duration"
  | "u128"
  | "i128"
  | "u256"
  | "i256"
  | "bytes"
  | "string"
  | "symbol"
  | "address"
  | "muxedAddress";

/** A type of the contract's own. `enum` and `error` list the values that there are; `tuple` is a struct without names. */
export type SpecUserType =
  | { readonly struct: readonly SpecField[] }
  | { readonly tuple: readonly SpecType[] }
  | { readonly union: readonly (readonly [tag: string, values: readonly SpecType[]])[] }
  | { readonly enum: readonly number[] }
  | { readonly error: readonly number[] };

export type SpecUserTypes = { readonly [name: string]: SpecUserType };

type SpecField = readonly [name: string, type: SpecType];

/** An event of a contract's interface: fixed topics, then those with a value each, then the data in its format. */
export interface EventSpec {
  readonly name: string;
  readonly prefix: readonly string[];
  readonly topics: readonly SpecField[];
  readonly format: "single" | "vec" | "map";
  readonly data: readonly SpecField[];
}

/** An error value of a contract: `{ contract: 7 }`, or a kind of the host with its code, `{ value: "invalid_input" }`. */
export type ContractError = { readonly [kind: string]: number | string };

/**
 * Reads an event by its spec: everything must be as the spec says, the topics, their number, the form of the data and
 * each type in it, or the event is a misfit. `fencepost codegen` writes the calls, and `Data` with them. Several specs
 * are the forms of one event; an event that more than one of them fits is a misfit too. Throws a `TypeError` for a
 * type that is not in `types`.
 *
 * @example
 * specEvent<{ readonly from: string; readonly amount: bigint }>([
 *   { name: "Burn", prefix: ["burn"], topics: [["from", "address"]], format: "single", data: [["amount", "i128"]] },
 * ])
 */
export function specEvent<Data>(specs: readonly EventSpec[], types: SpecUserTypes = {}): EventReader<Data> {
  for (const spec of specs) {
    const fields = [...spec.topics, ...spec.data];
    checkTypes(
      fields.map(([, type]) => type),
      types,
      spec.name,
    );
  }
  return {
    read(event) {
      const readings = specs.map((spec) => readBySpec(spec, types, event));
      const fitting = readings.filter((reading) => "data" in reading);
      // What a spec describes is what codegen wrote as Data.
      if (fitting[0] && fitting.length === 1) return { data: fitting[0].data as Data };
      if (fitting.length > 1) {
        const names = specs.filter((_, i) => readings[i] && "data" in readings[i]).map(({ name }) => name);
        return { misfit: cut(`fits the specs of ${names.join(" and of ")} alike`) };
      }
      const reasons = readings.flatMap((reading) => ("misfit" in reading ? [reading.misfit] : []));
      return { misfit: cut([...new Set(reasons)].join("; ")) };
    },
  };
}

/** The longest reason that is kept, in characters. */
const MAX_REASON = 1_000;
/** The longest that one spec, or one place in a value, may add to it. */
const MAX_PART = 250;

function cut(reason: string, max = MAX_REASON): string {
  return reason.length > max ? `${reason.slice(0, max)} …` : reason;
}

/** Says why a value does not fit. Never leaves this module. */
class Misfit extends Error {
  override readonly name = "Misfit";
}

function misfit(where: string, why: string): never {
  throw new Misfit(cut(`${cut(where, MAX_PART)} ${why}`, 2 * MAX_PART));
}

function readBySpec(
  spec: EventSpec,
  types: SpecUserTypes,
  event: DecodedEvent,
): { readonly data: object } | { readonly misfit: string } {
  try {
    // fromEntries defines own properties, so a parameter such as __proto__ is a field like any other.
    return {
      data: Object.fromEntries([...topicFields(spec, types, event), ...dataFields(spec, types, event)]),
    };
  } catch (error) {
    if (error instanceof Misfit) return { misfit: `${spec.name}: ${error.message}` };
    throw error;
  }
}

type Field = readonly [name: string, value: unknown];

function topicFields(spec: EventSpec, types: SpecUserTypes, { topics }: DecodedEvent): Field[] {
  const { prefix } = spec;
  for (const [i, text] of prefix.entries()) {
    if (textOf(topics[i]) !== text) misfit(`topic ${i + 1}`, `is not ${text}`);
  }
  const rest = topics.slice(prefix.length);
  return zip(
    rest,
    spec.topics,
    (topic, [name, type]) => [name, read(topic, type, types, name)],
    "its list of topics",
  );
}

function dataFields(spec: EventSpec, types: SpecUserTypes, { value }: DecodedEvent): Field[] {
  const field = (item: ScValue, [name, type]: SpecField): Field => [name, read(item, type, types, name)];
  switch (spec.format) {
    case "single": {
      const [first] = spec.data;
      if (first) return [field(value, first)];
      expectType(value, "void", "its value");
      return [];
    }
    case "vec":
      return zip(items(value, "its value"), spec.data, field, "its value");
    case "map":
      return readFields(value, spec.data, types, "");
  }
}

/** A map with exactly these symbols as keys. */
function readFields(
  value: ScValue,
  fields: readonly SpecField[],
  types: SpecUserTypes,
  where: string,
): Field[] {
  const place = where === "" ? "its value" : where;
  if (value.type !== "map") return misfit(place, `is ${a(value.type)}, not a map`);
  if (value.value.length !== fields.length) {
    misfit(place, `has ${value.value.length} entries instead of ${fields.length}`);
  }
  return fields.map(([name, type]) => {
    const entry = value.value.find(([key]) => key.type === "symbol" && key.value === name);
    if (!entry) return misfit(place, `has no ${name}`);
    return [name, read(entry[1], type, types, where === "" ? name : `${where}.${name}`)];
  });
}

function read(value: ScValue, type: SpecType, types: SpecUserTypes, where: string): unknown {
  if (typeof type === "string") return readPlain(value, type, where);
  if ("option" in type) return value.type === "void" ? null : read(value, type.option, types, where);
  if ("result" in type) {
    const [ok, err] = type.result;
    return errorOf(value) ? { err: read(value, err, types, where) } : { ok: read(value, ok, types, where) };
  }
  if ("vec" in type) {
    return items(value, where).map((item, i) => read(item, type.vec, types, `${where}[${i}]`));
  }
  if ("map" in type) return readMap(value, type.map, types, where);
  if ("tuple" in type) return readTuple(items(value, where), type.tuple, types, where);
  if ("bytesN" in type) {
    if (value.type !== "bytes" || value.value.length !== type.bytesN) {
      const what = value.type === "bytes" ? `${value.value.length} bytes` : a(value.type);
      return misfit(where, `is ${what}, not ${type.bytesN} bytes`);
    }
    return value.value;
  }
  return readUserType(value, userType(type.type, types), types, where);
}

function readPlain(value: ScValue, type: SpecPlainType, where: string): unknown {
  switch (type) {
    case "val":
      return value;
    case "void":
      expectType(value, "void", where);
      return null;
    case "error":
      return errorOf(value) ?? misfit(where, `is ${a(value.type)}, not an error`);
    case "address":
    case "muxedAddress": {
      const kinds = type === "address" ? /^[GC]/ : /^[GCM]/;
      if (value.type !== "address") return misfit(where, `is ${a(value.type)}, not an address`);
      return kinds.test(value.value)
        ? value.value
        : misfit(where, `is an address ${value.value.slice(0, 1)}…, which ${a(type)} cannot be`);
    }
    default:
      return value.type === type ? value.value : misfit(where, `is ${a(value.type)}, not ${a(type)}`);
  }
}

function readUserType(value: ScValue, type: SpecUserType, types: SpecUserTypes, where: string): unknown {
  if ("struct" in type) return Object.fromEntries(readFields(value, type.struct, types, where));
  if ("tuple" in type) return readTuple(items(value, where), type.tuple, types, where);
  if ("union" in type) {
    const [tag, ...values] = items(value, where);
    const found = tag?.type === "symbol" ? type.union.find(([name]) => name === tag.value) : undefined;
    if (!found) return misfit(where, "begins with none of the tags that there are");
    const [name, wanted] = found;
    const read = readTuple(values, wanted, types, `${where}.${name}`);
    return wanted.length === 0 ? { tag: name } : { tag: name, values: read };
  }
  const [known, found] =
    "enum" in type
      ? [type.enum, value.type === "u32" ? value.value : undefined]
      : [type.error, errorOf(value)?.["contract"]];
  if (typeof found !== "number") return misfit(where, `is ${a(value.type)}, not a case of an enum`);
  return known.includes(found) ? found : misfit(where, `is ${found}, which is no case of the enum`);
}

function readMap(
  value: ScValue,
  [keyType, valueType]: readonly [SpecType, SpecType],
  types: SpecUserTypes,
  where: string,
): ReadonlyMap<unknown, unknown> {
  if (value.type !== "map") return misfit(where, `is ${a(value.type)}, not a map`);
  const entries = value.value.map(
    ([key, item], i) =>
      [
        read(key, keyType, types, `${where} key ${i}`),
        read(item, valueType, types, `${where}[${i}]`),
      ] as const,
  );
  const map = new Map(entries);
  return map.size === entries.length ? map : misfit(where, "has one key twice");
}

function readTuple(
  values: readonly ScValue[],
  wanted: readonly SpecType[],
  types: SpecUserTypes,
  where: string,
): readonly unknown[] {
  let i = 0;
  return zip(values, wanted, (item, type) => read(item, type, types, `${where}[${i++}]`), where);
}

/** Each item with its type; a misfit where one has no other. */
function zip<T, R>(
  values: readonly ScValue[],
  wanted: readonly T[],
  each: (value: ScValue, wanted: T) => R,
  where: string,
): R[] {
  if (values.length !== wanted.length) {
    misfit(where, `has ${values.length} items instead of ${wanted.length}`);
  }
  return wanted.flatMap((type, i) => {
    const value = values[i];
    return value === undefined ? [] : [each(value, type)];
  });
}

function items(value: ScValue, where: string): readonly ScValue[] {
  return value.type === "vec" ? value.value : misfit(where, `is ${a(value.type)}, not a list`);
}

function expectType(value: ScValue, type: ScValue["type"], where: string): void {
  if (value.type !== type) misfit(where, `is ${a(value.type)}, not ${a(type)}`);
}

/** The error that a value is, from its SEP-51 form; null for any other value. */
function errorOf(value: ScValue): ContractError | null {
  if (value.type !== "other") return null;
  const json: unknown = JSON.parse(value.value);
  const isError = typeof json === "object" && json !== null && "error" in json;
  return isError ? (json.error as ContractError) : null;
}

function a(type: string): string {
  if (type === "other") return "a value of the ledger";
  return `${/^[aei]/.test(type) ? "an" : "a"} ${type}`;
}

/** Throws for a type that is not there, on whatever way it is reached. */
function checkTypes(open: SpecType[], types: SpecUserTypes, event: string): void {
  const seen = new Set<string>();
  // Bounded: a type of the contract's own is opened once.
  for (let type = open.pop(); type !== undefined; type = open.pop()) {
    open.push(...innerTypes(type));
    if (typeof type === "string" || !("type" in type) || seen.has(type.type)) continue;
    seen.add(type.type);
    const own = Object.hasOwn(types, type.type) ? types[type.type] : undefined;
    if (!own) throw new TypeError(`The spec of ${event} names the type ${type.type}, which is not there.`);
    if ("struct" in own) open.push(...own.struct.map(([, field]) => field));
    if ("tuple" in own) open.push(...own.tuple);
    if ("union" in own) open.push(...own.union.flatMap(([, values]) => values));
  }
}

/** The types that a type is written with; a type of the contract's own is not opened. */
export function innerTypes(type: SpecType): readonly SpecType[] {
  if (typeof type === "string") return [];
  if ("option" in type) return [type.option];
  if ("vec" in type) return [type.vec];
  if ("result" in type) return type.result;
  if ("map" in type) return type.map;
  if ("tuple" in type) return type.tuple;
  return [];
}

function userType(name: string, types: SpecUserTypes): SpecUserType {
  const type = types[name];
  if (!type) throw new TypeError(`There is no type ${name}.`);
  return type;
}
