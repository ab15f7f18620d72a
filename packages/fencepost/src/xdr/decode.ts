// The one module that touches XDR. The SDK is imported on first use: it takes half a second.
import type { xdr } from "@stellar/stellar-sdk/base";
import type { ScValue } from "./scValue.ts";

type Sdk = typeof import("@stellar/stellar-sdk/base");

/** Longest beginning and end of a reason that are kept: the place in a deep value can be long. */
const REASON_ENDS = 150;

export interface Decoder {
  /** Decodes one base64 ScVal. Throws {@link UndecodableValueError}. */
  decode(base64: string): ScValue;
}

/** A text that is not the base64 XDR of an ScVal, or an ScVal of a kind that this version does not know. */
export class UndecodableValueError extends Error {
  override readonly name = "UndecodableValueError";

  constructor(cause: unknown) {
    const { message } = cause as Error;
    const tooLong = message.length > 2 * REASON_ENDS;
    super(tooLong ? `${message.slice(0, REASON_ENDS)} … ${message.slice(-REASON_ENDS)}` : message, { cause });
  }
}

let loading: Promise<Decoder> | undefined;

/** Loads the SDK once and returns a decoder of contract values. */
export function loadDecoder(): Promise<Decoder> {
  loading ??= import("@stellar/stellar-sdk/base").then((sdk) => ({
    decode(base64) {
      try {
        return read(sdk, sdk.xdr.ScVal.fromXdr(base64, "base64"));
      } catch (error) {
        throw new UndecodableValueError(error);
      }
    },
  }));
  return loading;
}

function read(sdk: Sdk, scVal: xdr.ScVal): ScValue {
  switch (scVal.type) {
    case "scvBool":
      return { type: "bool", value: scVal.value };
    case "scvVoid":
      return { type: "void" };
    case "scvU32":
      return { type: "u32", value: scVal.value };
    case "scvI32":
      return { type: "i32", value: scVal.value };
    case "scvU64":
      return { type: "u64", value: scVal.value };
    case "scvI64":
      return { type: "i64", value: scVal.value };
    case "scvTimepoint":
      return { type: "timepoint", value: scVal.value };
    case "scvDuration":
      return { type: "duration", value: scVal.value };
    case "scvU128":
      return { type: "u128", value: join(scVal.value.hi, scVal.value.lo) };
    case "scvI128":
      return { type: "i128", value: join(scVal.value.hi, scVal.value.lo) };
    case "scvU256":
    case "scvI256": {
      const { hiHi, hiLo, loHi, loLo } = scVal.value;
      return { type: scVal.type === "scvU256" ? "u256" : "i256", value: join(hiHi, hiLo, loHi, loLo) };
    }
    case "scvBytes":
      return { type: "bytes", value: Uint8Array.from(scVal.value.value) };
    case "scvString":
      return { type: "string", value: scVal.str.asStringOrBytes() };
    case "scvSymbol":
      return { type: "symbol", value: scVal.sym.toStringStrict() };
    case "scvVec":
      return { type: "vec", value: (scVal.value ?? []).map((item) => read(sdk, item)) };
    case "scvMap":
      return {
        type: "map",
        value: (scVal.value ?? []).map(({ key, val }) => [read(sdk, key), read(sdk, val)] as const),
      };
    case "scvAddress":
      return { type: "address", value: sdk.Address.fromScAddress(scVal.value).toString() };
    default:
      return { type: "other", value: JSON.stringify(scVal.toJson()) };
  }
}

/** Puts 64-bit words together, the highest first; the sign is that of the highest word. */
function join(high: bigint, ...low: readonly bigint[]): bigint {
  return low.reduce((sum, word) => (sum << 64n) | word, high);
}
