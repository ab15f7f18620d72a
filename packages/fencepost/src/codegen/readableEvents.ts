import type { ContractSpec, SpecEvent, SpecParam, SpecTypeEntry } from "../xdr/spec.ts";
import { innerTypes, type SpecType } from "../xdr/specEvent.ts";

/** The events of a contract that can be read for sure, the types they need, and the events that cannot. */
export interface ReadableEvents {
  /** By the key under which a contract declares them. Several under one key are the forms of one event. */
  readonly events: ReadonlyMap<string, readonly SpecEvent[]>;
  readonly types: ReadonlyMap<string, SpecTypeEntry>;
  readonly leftOut: readonly LeftOutEvent[];
}

export interface LeftOutEvent {
  readonly event: string;
  /** Why no handler can be given it: the rest of a sentence that begins with the event. */
  readonly why: string;
}

/** Sorts the events of a spec: nothing is guessed, so an event whose spec leaves a question open is left out. */
export function readableEvents(spec: ContractSpec): ReadableEvents {
  const byName = new Map<string, SpecTypeEntry | null>();
  for (const type of spec.types) {
    const other = byName.get(type.name);
    byName.set(type.name, other === undefined || isSame(other, type) ? type : null);
  }
  const events = new Map<string, SpecEvent[]>();
  const used = new Set<SpecTypeEntry>();
  const leftOut: LeftOutEvent[] = [];
  for (const event of spec.events) {
    const needed = new Map<string, SpecTypeEntry>();
    const why = question(event) ?? neededTypes([...event.topics, ...event.data], byName, needed);
    if (why !== null) {
      leftOut.push({ event: event.name, why });
      continue;
    }
    for (const type of needed.values()) used.add(type);
    const key = event.prefix.join(":");
    const forms = events.get(key) ?? [];
    // Libraries that are compiled in bring the same event again.
    if (!forms.some((form) => isSame(form, event))) events.set(key, [...forms, event]);
  }
  const types = new Map(spec.types.filter((type) => used.has(type)).map((type) => [type.name, type]));
  return { events, types, leftOut };
}

function isSame(a: unknown, b: unknown): boolean {
  return withoutDocs(a) === withoutDocs(b);
}

function withoutDocs(value: unknown): string {
  return JSON.stringify(value, (key, item) => (key === "doc" ? undefined : item));
}

/** What keeps an event from being told by its topics, or its fields apart; null for nothing. */
function question({ prefix, topics, format, data }: SpecEvent): string | null {
  if (prefix.length === 0) return "has no fixed first topic, by which a handler could name it";
  if (!prefix.every((topic) => /^[A-Za-z0-9_]{1,32}$/.test(topic)))
    return "has a fixed topic that is no symbol";
  const twice = repeated([...topics, ...data]);
  if (twice !== undefined) return `has two parameters ${JSON.stringify(twice)}`;
  if (format === "single" && data.length > 1) return "has several parameters in data of a single value";
  return null;
}

/** Collects the types that these fields lead to; says why, where one cannot be read for sure. */
function neededTypes(
  fields: readonly { readonly type: SpecType }[],
  known: ReadonlyMap<string, SpecTypeEntry | null>,
  needed: Map<string, SpecTypeEntry>,
): string | null {
  const open = fields.map(({ type }) => type);
  // Bounded: a named type is opened once, and the others are as long as the section.
  for (let type = open.pop(); type !== undefined; type = open.pop()) {
    open.push(...innerTypes(type));
    if (typeof type === "string") continue;
    if ("result" in type && !isErrorType(type.result[1], known)) {
      return "has a result whose error is no error type";
    }
    if ("type" in type && !needed.has(type.type)) {
      const name = JSON.stringify(type.type);
      const entry = known.get(type.type);
      if (entry === undefined) return `names the type ${name}, which the contract does not describe`;
      if (entry === null) return `names the type ${name}, which the contract describes in two ways`;
      const twice = repeated(entry.kind === "struct" ? entry.fields : entry.cases);
      if (twice !== undefined) return `names the type ${name}, which has ${JSON.stringify(twice)} twice`;
      if (entry.kind === "struct" && !isTupleStruct(entry.fields) && entry.fields.some(isNumbered)) {
        return `names the type ${name}, some of whose fields are numbers`;
      }
      needed.set(type.type, entry);
      if (entry.kind === "struct") open.push(...entry.fields.map((field) => field.type));
      if (entry.kind === "union") open.push(...entry.cases.flatMap(({ types }) => types));
    }
  }
  return null;
}

function isErrorType(type: SpecType, known: ReadonlyMap<string, SpecTypeEntry | null>): boolean {
  return (
    type === "error" || (typeof type === "object" && "type" in type && known.get(type.type)?.kind === "error")
  );
}

/** A struct whose fields are numbered 0, 1, 2 … is a list on the chain, and has no names there. */
export function isTupleStruct(fields: readonly SpecParam[]): boolean {
  return fields.length > 0 && fields.every(({ name }, i) => name === String(i));
}

function isNumbered({ name }: SpecParam): boolean {
  return /^\d+$/.test(name);
}

function repeated(named: readonly { readonly name: string }[]): string | undefined {
  const seen = new Set<string>();
  for (const { name } of named) {
    if (seen.has(name)) return name;
    seen.add(name);
  }
  return undefined;
}
