/**
 * A contract value with its type, without any loss: integers keep their width, symbols and strings are told
 * apart, a map keeps its keys of any type and their order.
 */
export type ScValue =
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "void" }
  | { readonly type: "u32" | "i32"; readonly value: number }
  | {
      readonly type: "u64" | "i64" | "timepoint" | "duration" | "u128" | "i128" | "u256" | "i256";
      readonly value: bigint;
    }
  | { readonly type: "bytes"; readonly value: Uint8Array }
  /** Bytes where the text is not UTF-8. */
  | { readonly type: "string"; readonly value: string | Uint8Array }
  | { readonly type: "symbol"; readonly value: string }
  | { readonly type: "vec"; readonly value: readonly ScValue[] }
  | { readonly type: "map"; readonly value: readonly (readonly [ScValue, ScValue])[] }
  /** A strkey: G, C, M, B or L. */
  | { readonly type: "address"; readonly value: string }
  /** Errors and ledger internals: their SEP-51 JSON. */
  | { readonly type: "other"; readonly value: string };

/** Topics and value of an event, with their types. */
export interface DecodedEvent {
  readonly topics: readonly ScValue[];
  readonly value: ScValue;
}

/** What a handler gets: plain JavaScript values. */
export type NativeValue =
  | boolean
  | null
  | number
  | bigint
  | string
  | Uint8Array
  | readonly NativeValue[]
  | ReadonlyMap<NativeValue, NativeValue>
  | { readonly [field: string]: NativeValue };

/**
 * The convenient form: u32 and i32 are numbers, wider integers bigint, symbols, strings and addresses texts,
 * void null. A map whose keys are all symbols, or all strings, is an object; any other map is a `Map`, or a list
 * of pairs where two keys would look alike (symbol and string `a`, u32 and i32 `1`): no entry is ever lost.
 */
export function toNative(scValue: ScValue): NativeValue {
  switch (scValue.type) {
    case "void":
      return null;
    case "vec":
      return scValue.value.map(toNative);
    case "map":
      return mapToNative(scValue.value);
    default:
      return scValue.value;
  }
}

function mapToNative(entries: readonly (readonly [ScValue, ScValue])[]): NativeValue {
  const pairs = entries.map(([key, value]) => [toNative(key), toNative(value)] as const);
  if (new Set(pairs.map(([key]) => key)).size < pairs.length) return pairs;
  const [first] = entries;
  const named = !first || first[0].type === "symbol" || first[0].type === "string";
  const alike = entries.every(([{ type }]) => type === first?.[0].type);
  if (named && alike && pairs.every(isField)) {
    // fromEntries defines own properties, so a key such as __proto__ is a field like any other.
    return Object.fromEntries(pairs.filter(isField));
  }
  return new Map(pairs);
}

/** A string of a contract need not be UTF-8: then its key is bytes. */
function isField(pair: readonly [NativeValue, NativeValue]): pair is readonly [string, NativeValue] {
  return typeof pair[0] === "string";
}
