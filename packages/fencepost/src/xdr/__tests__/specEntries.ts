// Interface specs as a compiler writes them: entries, sections and modules, encoded by the Stellar SDK.
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { xdr } from "@stellar/stellar-sdk/base";
import type { ContractSpec, SpecEvent, SpecParam, SpecTypeEntry } from "../spec.ts";
import type { SpecType } from "../specEvent.ts";

/** A recorded spec of a contract: its entries, and its events as a decoder should read them. */
export interface RecordedSpec {
  readonly entries: readonly string[];
  readonly events: readonly {
    readonly name: string;
    readonly prefixTopics: readonly string[];
    readonly params: readonly { readonly name: string; readonly type: string; readonly location: string }[];
    readonly dataFormat: string;
  }[];
}

const SHARED_DATA = new URL("../../../../../../shared/data/", import.meta.url);

/** The file of recorded data with this name, or null, with a line that says so, where there is none. */
export function recordedFile(name: string): Buffer | null {
  const path = fileURLToPath(new URL(name, SHARED_DATA));
  if (existsSync(path)) return readFileSync(path);
  console.warn(`skipped: the recorded data ${name} is not in ../shared/data`);
  return null;
}

export function recordedSpec(name: string): RecordedSpec | null {
  const file = recordedFile(name);
  return file && (JSON.parse(file.toString("utf8")) as RecordedSpec);
}

export function entriesSection(entries: readonly string[]): Buffer {
  return Buffer.concat(entries.map((entry) => Buffer.from(entry, "base64")));
}

/** The smallest module with these custom sections. */
export function wasmModule(...sections: readonly (readonly [name: string, content: Uint8Array])[]): Buffer {
  const header = Buffer.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
  return Buffer.concat([header, ...sections.map(([name, content]) => customSectionOf(name, content))]);
}

function customSectionOf(name: string, content: Uint8Array): Buffer {
  const body = Buffer.concat([leb128(Buffer.byteLength(name)), Buffer.from(name), content]);
  return Buffer.concat([Buffer.from([0]), leb128(body.length), body]);
}

export function leb128(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  do {
    bytes.push((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    rest = Math.floor(rest / 128);
  } while (rest > 0);
  return Buffer.from(bytes);
}

/** A `contractspecv0` section with these types and events, and a function in front, as every contract has. */
export function specSection(spec: ContractSpec): Buffer {
  const fn = new xdr.ScSpecFunctionV0({ doc: "", name: "init", inputs: [], outputs: [] });
  const entries = [
    xdr.ScSpecEntry.scSpecEntryFunctionV0(fn),
    ...spec.types.map(typeEntry),
    ...spec.events.map((event) => xdr.ScSpecEntry.scSpecEntryEventV0(eventEntry(event))),
  ];
  return Buffer.concat(entries.map((entry) => entry.toXdr()));
}

export function metaSection(texts: Readonly<Record<string, string>>): Buffer {
  const entries = Object.entries(texts).map(([key, val]) =>
    xdr.ScMetaEntry.scMetaV0(new xdr.ScMetaV0({ key, val })).toXdr(),
  );
  return Buffer.concat(entries);
}

const LOCATIONS = xdr.ScSpecEventParamLocationV0;
const FORMATS = {
  single: xdr.ScSpecEventDataFormat.scSpecEventDataFormatSingleValue,
  vec: xdr.ScSpecEventDataFormat.scSpecEventDataFormatVec,
  map: xdr.ScSpecEventDataFormat.scSpecEventDataFormatMap,
};

function eventEntry(event: SpecEvent): xdr.ScSpecEventV0 {
  const params = (list: readonly SpecParam[], location: xdr.ScSpecEventParamLocationV0) =>
    list.map(
      ({ doc, name, type }) => new xdr.ScSpecEventParamV0({ doc, name, type: typeDef(type), location }),
    );
  return new xdr.ScSpecEventV0({
    doc: event.doc,
    lib: "",
    name: event.name,
    prefixTopics: [...event.prefix],
    params: [
      ...params(event.topics, LOCATIONS.scSpecEventParamLocationTopicList),
      ...params(event.data, LOCATIONS.scSpecEventParamLocationData),
    ],
    dataFormat: FORMATS[event.format],
  });
}

function typeEntry(type: SpecTypeEntry): xdr.ScSpecEntry {
  const { doc, name } = type;
  switch (type.kind) {
    case "struct": {
      const fields = type.fields.map(
        (field) =>
          new xdr.ScSpecUdtStructFieldV0({ doc: field.doc, name: field.name, type: typeDef(field.type) }),
      );
      return xdr.ScSpecEntry.scSpecEntryUdtStructV0(
        new xdr.ScSpecUdtStructV0({ doc, lib: "", name, fields }),
      );
    }
    case "union": {
      const cases = type.cases.map(({ doc, name, types }) =>
        types.length === 0
          ? xdr.ScSpecUdtUnionCaseV0.scSpecUdtUnionCaseVoidV0(new xdr.ScSpecUdtUnionCaseVoidV0({ doc, name }))
          : xdr.ScSpecUdtUnionCaseV0.scSpecUdtUnionCaseTupleV0(
              new xdr.ScSpecUdtUnionCaseTupleV0({ doc, name, type: types.map(typeDef) }),
            ),
      );
      return xdr.ScSpecEntry.scSpecEntryUdtUnionV0(new xdr.ScSpecUdtUnionV0({ doc, lib: "", name, cases }));
    }
    case "enum": {
      const cases = type.cases.map((each) => new xdr.ScSpecUdtEnumCaseV0(each));
      return xdr.ScSpecEntry.scSpecEntryUdtEnumV0(new xdr.ScSpecUdtEnumV0({ doc, lib: "", name, cases }));
    }
    case "error": {
      const cases = type.cases.map((each) => new xdr.ScSpecUdtErrorEnumCaseV0(each));
      return xdr.ScSpecEntry.scSpecEntryUdtErrorEnumV0(
        new xdr.ScSpecUdtErrorEnumV0({ doc, lib: "", name, cases }),
      );
    }
  }
}

const T = xdr.ScSpecTypeDef;
const PLAIN = {
  val: T.scSpecTypeVal,
  bool: T.scSpecTypeBool,
  void: T.scSpecTypeVoid,
  error: T.scSpecTypeError,
  u32: T.scSpecTypeU32,
  i32: T.scSpecTypeI32,
  u64: T.scSpecTypeU64,
  i64: T.scSpecTypeI64,
  timepoint: T.scSpecTypeTimepoint,
  duration: T.scSpecTypeDuration,
  u128: T.scSpecTypeU128,
  i128: T.scSpecTypeI128,
  u256: T.scSpecTypeU256,
  i256: T.scSpecTypeI256,
  bytes: T.scSpecTypeBytes,
  string: T.scSpecTypeString,
  symbol: T.scSpecTypeSymbol,
  address: T.scSpecTypeAddress,
  muxedAddress: T.scSpecTypeMuxedAddress,
};

function typeDef(type: SpecType): xdr.ScSpecTypeDef {
  if (typeof type === "string") return PLAIN[type]();
  if ("option" in type) {
    return T.scSpecTypeOption(new xdr.ScSpecTypeOption({ valueType: typeDef(type.option) }));
  }
  if ("result" in type) {
    const [okType, errorType] = [typeDef(type.result[0]), typeDef(type.result[1])];
    return T.scSpecTypeResult(new xdr.ScSpecTypeResult({ okType, errorType }));
  }
  if ("vec" in type) return T.scSpecTypeVec(new xdr.ScSpecTypeVec({ elementType: typeDef(type.vec) }));
  if ("map" in type) {
    const [keyType, valueType] = [typeDef(type.map[0]), typeDef(type.map[1])];
    return T.scSpecTypeMap(new xdr.ScSpecTypeMap({ keyType, valueType }));
  }
  if ("tuple" in type) {
    return T.scSpecTypeTuple(new xdr.ScSpecTypeTuple({ valueTypes: type.tuple.map(typeDef) }));
  }
  if ("bytesN" in type) return T.scSpecTypeBytesN(new xdr.ScSpecTypeBytesN({ n: type.bytesN }));
  return T.scSpecTypeUdt(new xdr.ScSpecTypeUdt({ name: type.type }));
}
