import { type DecodedEvent, decodeEvent, eventName } from "../project/decodeEvent.ts";
import type { Source, SourceEvent } from "../source/source.ts";
import { type Decoder, loadDecoder, UndecodableValueError } from "../xdr/decode.ts";
import type { ScValue } from "../xdr/scValue.ts";

/** What `init` knows about an event of a contract: its name, and zod types for its parts, as source text. */
export interface SampledEvent {
  readonly name: string;
  /** Of the topics after the first. */
  readonly topics: readonly string[];
  /** Of each field, where the value is a map with text keys; otherwise of the whole value. */
  readonly value: Readonly<Record<string, string>> | string;
}

export interface Samples {
  readonly events: readonly SampledEvent[];
  /** The ledger of the oldest event seen. */
  readonly fromLedger: number;
}

/** Ledgers that are looked back over: a few first, for contracts with many events. */
const LOOK_BACK = [100, 10_000];
const MAX_EVENTS = 20;
const MAX_PARTS = 30;
const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,63}$/;

/** Asks the source for the newest events of a contract, and takes their shapes. Undefined where there are none. */
export async function sampleEvents(
  source: Source,
  contractId: string,
  signal: AbortSignal,
): Promise<Samples | undefined> {
  const { latestLedger, oldestLedger } = await source.check(signal);
  for (const ledgers of LOOK_BACK) {
    const fromLedger = Math.max(oldestLedger, latestLedger - ledgers + 1);
    const window = await source.window({ fromLedger, contractIds: [contractId] }, signal);
    if (window.kind !== "window") continue;
    const decoder = await loadDecoder();
    const decoded = window.events.flatMap((event) => decodeNamed(event, decoder));
    const events = shapesOf(decoded);
    const first = window.events[0];
    if (first && events.length > 0) return { events, fromLedger: first.ledger };
  }
  return undefined;
}

type NamedEvent = DecodedEvent & { readonly name: string };

/** The event, where it can be decoded and has a name that can stand in source text. */
function decodeNamed(event: SourceEvent, decoder: Decoder): readonly NamedEvent[] {
  try {
    const name = event.type === "contract" ? eventName(event, decoder) : null;
    return name !== null && NAME.test(name) ? [{ ...decodeEvent(event, decoder), name }] : [];
  } catch (error) {
    if (error instanceof UndecodableValueError) return [];
    throw error;
  }
}

/** The shape that all seen events of a name have in common; what differs between them is `z.unknown()`. */
export function shapesOf(decoded: readonly NamedEvent[]): readonly SampledEvent[] {
  const byName = new Map<string, NamedEvent[]>();
  for (const event of decoded) {
    const same = byName.get(event.name);
    if (same) same.push(event);
    else byName.set(event.name, [event]);
  }
  return [...byName].slice(0, MAX_EVENTS).map(([name, events]) => {
    const topics = events.map((event) => event.topics.slice(1, 1 + MAX_PARTS));
    const length = Math.min(...topics.map((list) => list.length));
    return {
      name,
      topics: Array.from({ length }, (_, i) => commonType(topics.map((list) => list[i]))),
      value: valueShape(events.map((event) => event.value)),
    };
  });
}

function valueShape(values: readonly ScValue[]): SampledEvent["value"] {
  const maps = values.map(fieldsOf);
  const first = maps[0];
  if (!first || maps.some((map) => map === undefined)) return commonType(values);
  const names = [...new Set(maps.flatMap((map) => [...(map?.keys() ?? [])]))].slice(0, MAX_PARTS);
  return Object.fromEntries(names.map((name) => [name, commonType(maps.map((map) => map?.get(name)))]));
}

/** The fields of a map that becomes an object; undefined for every other value. */
function fieldsOf(value: ScValue): ReadonlyMap<string, ScValue> | undefined {
  if (value.type !== "map" || value.value.length === 0) return undefined;
  const fields = new Map<string, ScValue>();
  for (const [key, item] of value.value) {
    if (key.type !== "symbol" || !NAME.test(key.value)) return undefined;
    fields.set(key.value, item);
  }
  return fields;
}

function commonType(values: readonly (ScValue | undefined)[]): string {
  const types = new Set(values.flatMap((value) => (value ? [zodType(value)] : [])));
  const [only = "z.unknown()"] = types;
  const type = types.size === 1 ? only : "z.unknown()";
  return values.includes(undefined) ? `${type}.optional()` : type;
}

function zodType(value: ScValue): string {
  switch (value.type) {
    case "bool":
      return "z.boolean()";
    case "u32":
    case "i32":
      return "z.number()";
    case "u64":
    case "i64":
    case "timepoint":
    case "duration":
    case "u128":
    case "i128":
    case "u256":
    case "i256":
      return "z.bigint()";
    case "symbol":
    case "string":
    case "address":
      return typeof value.value === "string" ? "z.string()" : "z.unknown()";
    case "void":
      return "z.null()";
    default:
      return "z.unknown()";
  }
}
