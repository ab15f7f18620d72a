import type { xdr } from "@stellar/stellar-sdk/base";
import type { EventSpec, SpecPlainType, SpecType } from "./specEvent.ts";

/** What a contract says of its own interface (SEP-48), as far as its events need it. */
export interface ContractSpec {
  readonly events: readonly SpecEvent[];
  /** In the order of the section. A crafted one may hold a name twice. */
  readonly types: readonly SpecTypeEntry[];
}

/** A field, a parameter, or a case, with what its author says of it. */
export interface SpecParam {
  readonly name: string;
  readonly doc: string;
  readonly type: SpecType;
}

export interface SpecEvent extends Pick<EventSpec, "name" | "prefix" | "format"> {
  readonly doc: string;
  readonly topics: readonly SpecParam[];
  readonly data: readonly SpecParam[];
}

export type SpecTypeEntry = { readonly name: string; readonly doc: string } & (
  | { readonly kind: "struct"; readonly fields: readonly SpecParam[] }
  | {
      readonly kind: "union";
      readonly cases: readonly {
        readonly name: string;
        readonly doc: string;
        readonly types: readonly SpecType[];
      }[];
    }
  | {
      readonly kind: "enum" | "error";
      readonly cases: readonly { readonly name: string; readonly doc: string; readonly value: number }[];
    }
);

/** A section that cannot be read as what it should be. Nothing of it is used. */
export class GarbledSectionError extends Error {
  override readonly name = "GarbledSectionError";

  constructor(what: string, section: string, cause: unknown) {
    super(
      `${what} has a section ${section} that cannot be read: ${(cause as Error).message.slice(0, 300)}. ` +
        "The file may be damaged, or newer than this version knows.",
      { cause },
    );
  }
}

/**
 * Reads a `contractspecv0` section: entries one behind the other. `what` names the contract in the
 * {@link GarbledSectionError} that is thrown where one of them cannot be read.
 */
export async function readContractSpec(section: Uint8Array, what: string): Promise<ContractSpec> {
  const { xdr } = await import("@stellar/stellar-sdk/base");
  try {
    const entries: readonly xdr.ScSpecEntry[] = xdr.decodeStream(xdr.ScSpecEntry, section);
    return {
      events: entries.flatMap((entry) => (entry.type === "scSpecEntryEventV0" ? [eventOf(entry.value)] : [])),
      types: entries.flatMap(typeEntry),
    };
  } catch (error) {
    throw new GarbledSectionError(what, "contractspecv0", error);
  }
}

/** Reads a `contractmetav0` section (SEP-46): names and texts, as the version of the SDK under `rssdkver`. */
export async function readContractMeta(
  section: Uint8Array,
  what: string,
): Promise<ReadonlyMap<string, string>> {
  const { xdr } = await import("@stellar/stellar-sdk/base");
  try {
    const entries: readonly xdr.ScMetaEntry[] = xdr.decodeStream(xdr.ScMetaEntry, section);
    return new Map(entries.map(({ value }) => [value.key.toString(), value.val.toString()]));
  } catch (error) {
    throw new GarbledSectionError(what, "contractmetav0", error);
  }
}

function eventOf(event: xdr.ScSpecEventV0): SpecEvent {
  const at = (place: xdr.ScSpecEventParamLocationV0["name"]): SpecParam[] =>
    event.params.filter(({ location }) => location.name === place).map(paramOf);
  return {
    name: event.name.toStringStrict(),
    doc: event.doc.toString(),
    prefix: event.prefixTopics.map((topic) => topic.toStringStrict()),
    topics: at("scSpecEventParamLocationTopicList"),
    format: FORMATS[event.dataFormat.name],
    data: at("scSpecEventParamLocationData"),
  };
}

const FORMATS = {
  scSpecEventDataFormatSingleValue: "single",
  scSpecEventDataFormatVec: "vec",
  scSpecEventDataFormatMap: "map",
} as const;

function typeEntry(entry: xdr.ScSpecEntry): SpecTypeEntry[] {
  switch (entry.type) {
    case "scSpecEntryUdtStructV0":
      return [{ ...named(entry.value), kind: "struct", fields: entry.value.fields.map(paramOf) }];
    case "scSpecEntryUdtUnionV0": {
      const cases = entry.value.cases.map(({ value }) => ({
        ...named(value),
        types: "type" in value ? value.type.map(typeOf) : [],
      }));
      return [{ ...named(entry.value), kind: "union", cases }];
    }
    case "scSpecEntryUdtEnumV0":
    case "scSpecEntryUdtErrorEnumV0": {
      const cases = entry.value.cases.map((each) => ({ ...named(each), value: each.value }));
      return [
        { ...named(entry.value), kind: entry.type === "scSpecEntryUdtEnumV0" ? "enum" : "error", cases },
      ];
    }
    default:
      return [];
  }
}

function paramOf(param: xdr.ScSpecEventParamV0 | xdr.ScSpecUdtStructFieldV0): SpecParam {
  return { ...named(param), type: typeOf(param.type) };
}

/** A name is a key on the chain, and must be text; what is written for people need not be. */
function named({ name, doc }: { readonly name: xdr.XdrString; readonly doc: xdr.XdrString }) {
  return { name: name.toStringStrict(), doc: doc.toString() };
}

function typeOf(type: xdr.ScSpecTypeDef): SpecType {
  switch (type.type) {
    case "scSpecTypeOption":
      return { option: typeOf(type.value.valueType) };
    case "scSpecTypeResult":
      return { result: [typeOf(type.value.okType), typeOf(type.value.errorType)] };
    case "scSpecTypeVec":
      return { vec: typeOf(type.value.elementType) };
    case "scSpecTypeMap":
      return { map: [typeOf(type.value.keyType), typeOf(type.value.valueType)] };
    case "scSpecTypeTuple":
      return { tuple: type.value.valueTypes.map(typeOf) };
    case "scSpecTypeBytesN":
      return { bytesN: type.value.n };
    case "scSpecTypeUdt":
      return { type: type.value.name.toStringStrict() };
    default:
      return PLAIN[type.type];
  }
}

const PLAIN = {
  scSpecTypeVal: "val",
  scSpecTypeBool: "bool",
  scSpecTypeVoid: "void",
  scSpecTypeError: "error",
  scSpecTypeU32: "u32",
  scSpecTypeI32: "i32",
  scSpecTypeU64: "u64",
  scSpecTypeI64: "i64",
  scSpecTypeTimepoint: "timepoint",
  scSpecTypeDuration: "duration",
  scSpecTypeU128: "u128",
  scSpecTypeI128: "i128",
  scSpecTypeU256: "u256",
  scSpecTypeI256: "i256",
  scSpecTypeBytes: "bytes",
  scSpecTypeString: "string",
  scSpecTypeSymbol: "symbol",
  scSpecTypeAddress: "address",
  scSpecTypeMuxedAddress: "muxedAddress",
} as const satisfies { readonly [name: string]: SpecPlainType };
