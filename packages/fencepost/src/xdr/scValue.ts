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

/** What a handler gets: plain JavaScript values. Maps with other keys than texts become a `Map`. */
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
 * void null. A map whose keys are all symbols, or all strings, is an object; any other map is a `Map`.
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
  const keys = new Set(
    entries.map(([key]) => (key.type === "symbol" || key.type === "string" ? key.type : "")),
  );
  const plain = keys.size === 0 || (keys.size === 1 && !keys.has(""));
  const fields = entries.map(([key, value]) => [toNative(key), toNative(value)] as const);
  const names = fields.filter(([key]) => typeof key === "string").map(([key]) => key as string);
  if (!plain || new Set(names).size !== entries.length) return new Map(fields);
  // fromEntries defines own properties, so a key such as __proto__ is a field like any other.
  return Object.fromEntries(fields as readonly (readonly [string, NativeValue])[]);
}
