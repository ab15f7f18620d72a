import { createHash } from "node:crypto";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { EventReader } from "../xdr/eventReader.ts";

/**
 * How an event of a contract reads: a schema for its data, or that with names for what has none on the chain.
 * The schema sees one object: the fields of the value where it is a map, and the named topics beside them. Or what
 * `specEvent()` and `rawEvent()` return, as `fencepost codegen` writes it.
 */
export type EventShape = EventReader<unknown> | SchemaShape;

export type SchemaShape =
  | StandardSchemaV1
  | {
      /** Names for the topics after the first, in their order. */
      readonly topics?: readonly string[];
      /** A name for the value as a whole, a map too: it is then one field beside the topics. */
      readonly value?: string;
      readonly schema: StandardSchemaV1;
    };

export type EventShapes = { readonly [eventName: string]: EventShape };

export type StartLedger = number | "latest" | "oldest";

interface WithId<Events extends EventShapes> extends Declared<Events> {
  /** C…, the contract's address. */
  readonly id: string;
  /** Where to begin: a ledger, "latest" (the newest when first seen) or "oldest" (the oldest the source has). */
  readonly startLedger: StartLedger;
}

interface WithDiscovery<Events extends EventShapes> extends Declared<Events> {
  /** The contracts that an event of another one names: each is read from the ledger that made it. */
  readonly id: DiscoveredBy;
  readonly startLedger?: never;
}

interface Declared<Events extends EventShapes> {
  /**
   * By the name in the first topic (a symbol or a string), or by the first two with a colon between them, as
   * `pool:deposit`: that one goes before. Events of other names are not stored for handlers.
   */
  readonly events: Events;
}

export type ContractInput<Events extends EventShapes> = WithId<Events> | WithDiscovery<Events>;

/** A contract with an address of its own: what may be a factory of others. */
export interface ContractWithId<Events extends EventShapes = EventShapes> extends WithId<Events> {
  readonly kind: "contract";
  /** The stream of a producer that is no chain, which is then also its id. */
  readonly stream?: string;
}

/** The contracts that a rule finds: one declaration for all of them. */
export interface DiscoveredContract<Events extends EventShapes = EventShapes> extends WithDiscovery<Events> {
  readonly kind: "contract";
}

export type Contract<Events extends EventShapes = EventShapes> =
  | ContractWithId<Events>
  | DiscoveredContract<Events>;

/** How contracts are found: what {@link discoveredBy} returns. */
export interface DiscoveredBy {
  readonly kind: "discoveredBy";
  /** Tells the rule from others, also in the database: factory, event, and what is picked. */
  readonly rule: string;
  readonly factory: ContractWithId;
  readonly event: string;
  /** What the event's data names; what is neither a contract id nor null is set aside with its reason. */
  readonly pick: (data: unknown) => unknown;
}

/** What is read from an event: the type of `event.data`. */
export type EventData<Shape> = Shape extends StandardSchemaV1
  ? StandardSchemaV1.InferOutput<Shape>
  : Shape extends EventReader<infer Data>
    ? Data
    : Shape extends { readonly schema: infer Schema extends StandardSchemaV1 }
      ? StandardSchemaV1.InferOutput<Schema>
      : never;

/**
 * Declares a contract to watch. Throws a `TypeError` for an id or a start ledger that cannot be.
 *
 * @example
 * export const pool = defineContract({
 *   id: "CAS3J7GYLGXMF6TDJBBYYSE3HQ6BBSMLNUQ34T6TZMYMW2EVH34XOWMA",
 *   startLedger: "latest",
 *   events: { assets_locked: z.object({ pool_id: z.string(), amount: z.bigint() }) },
 * });
 */
export function defineContract<const Events extends EventShapes>(
  input: WithId<Events>,
): ContractWithId<Events>;
export function defineContract<const Events extends EventShapes>(
  input: WithDiscovery<Events>,
): DiscoveredContract<Events>;
export function defineContract<const Events extends EventShapes>(
  input: ContractInput<Events>,
): Contract<Events> {
  if (isDiscovered(input)) {
    const { id, events } = input;
    if (input.startLedger !== undefined) {
      throw new TypeError(
        `A contract found by ${id.rule} starts at the ledger that made it: leave startLedger out.`,
      );
    }
    checkShapes(`found by ${id.rule}`, events);
    return { kind: "contract", id, events };
  }
  const { id, startLedger, events } = input;
  if (!isContractId(id)) {
    throw new TypeError(`A contract id is C and 55 of A-Z 2-7, but this is ${JSON.stringify(id)}.`);
  }
  if (!isStartLedger(startLedger)) {
    throw new TypeError(
      `startLedger of ${id} is ${JSON.stringify(startLedger)}: use a ledger number, "latest" or "oldest".`,
    );
  }
  checkShapes(id, events);
  return { kind: "contract", id, startLedger, events };
}

/**
 * Declares the events of a producer that counts its own, for projections: by their type, each with the schema of its
 * data, which is JSON. A projection follows one stream, so it takes a producer alone. Throws a `TypeError` for a stream
 * or a schema that cannot be.
 *
 * @example
 * export const billing = defineProducer({
 *   stream: "billing",
 *   events: { "invoice.paid": z.object({ amount: z.string() }) },
 * });
 */
export function defineProducer<const Events extends { readonly [type: string]: StandardSchemaV1 }>({
  stream,
  events,
}: {
  readonly stream: string;
  readonly events: Events;
}): ContractWithId<Events> {
  if (!/^[a-z0-9_]{1,32}$/.test(stream)) {
    throw new TypeError(`A stream is 1 to 32 of a-z 0-9 _, but this is ${JSON.stringify(stream)}.`);
  }
  checkShapes(stream, events);
  return { kind: "contract", id: stream, stream, startLedger: "oldest", events };
}

function checkShapes(contract: string, events: EventShapes): void {
  const shapes = Object.entries(events ?? {});
  if (shapes.length === 0) throw new TypeError(`Contract ${contract} declares no events.`);
  for (const [name, shape] of shapes) checkShape(`Event ${JSON.stringify(name)} of ${contract}`, shape);
}

/**
 * Finds contracts by an event of another one, their factory: each is watched from the ledger of the event that names
 * it. `pick` gets the event's data and returns a contract id, or null where the event names none. Throws a `TypeError` for a factory without an id of its own, or an event that it does not declare.
 *
 * @example
 * export const pools = defineContract({
 *   id: discoveredBy(factory, "pool_created", (e) => e.pool),
 *   events: { swap: z.object({ amount: z.bigint() }) },
 * });
 */
export function discoveredBy<Events extends EventShapes, Name extends keyof Events & string>(
  factory: ContractWithId<Events>,
  event: Name,
  pick: (data: EventData<Events[Name]>) => string | null,
): DiscoveredBy {
  if (!isContractId(factory?.id)) {
    throw new TypeError("discoveredBy needs a factory with an id of its own, C…, from defineContract().");
  }
  if (!Object.hasOwn(factory.events, event)) {
    throw new TypeError(`The factory ${factory.id} declares no event ${JSON.stringify(event)}.`);
  }
  // It gets what the shape of that event reads, and nothing else, so the loss of its type is sound.
  const anyPick = pick as (data: unknown) => unknown;
  const rule = `${factory.id}/${event}/${nameOfPick(anyPick)}`;
  return { kind: "discoveredBy", rule, factory, event, pick: anyPick };
}

/** Whether the contract is known by an event of another one, not by an id. */
export function isDiscovered<Events extends EventShapes>(
  contract: ContractInput<Events>,
): contract is WithDiscovery<Events> {
  return typeof contract.id === "object" && contract.id?.kind === "discoveredBy";
}

/** The field that is picked, as `pool` or `pair.pool`, however it is written; otherwise the hash of the function's text. */
function nameOfPick(pick: (data: unknown) => unknown): string {
  const pathOf = new Map<unknown, readonly string[]>();
  const fieldAt = (path: readonly string[]): object => {
    const field = new Proxy({}, { get: (_, key) => fieldAt([...path, String(key)]) });
    pathOf.set(field, path);
    return field;
  };
  try {
    const path = pathOf.get(pick(fieldAt([]))) ?? [];
    const lookedAtNothingElse = pathOf.size === path.length + 1;
    if (path.length > 0 && lookedAtNothingElse) return path.join(".");
  } catch {
    // it does more than name a field
  }
  return createHash("sha256").update(String(pick)).digest("hex").slice(0, 16);
}

export function isContractId(id: unknown): id is string {
  return typeof id === "string" && /^C[A-Z2-7]{55}$/.test(id);
}

export function isStartLedger(start: unknown): start is StartLedger {
  if (start === "latest" || start === "oldest") return true;
  return Number.isInteger(start) && Number(start) >= 1 && Number(start) <= MAX_LEDGER;
}

// Ledger numbers have 31 bits.
const MAX_LEDGER = 2_147_483_647;

function checkShape(event: string, shape: EventShape): void {
  if (isReader(shape)) return;
  const schema = schemaOf(shape);
  if (typeof schema?.["~standard"]?.validate !== "function") {
    throw new TypeError(`${event} has no schema: use a Standard Schema, as z.object({ … }).`);
  }
  if ("~standard" in shape) return;
  const names = [...(shape.topics ?? []), ...(shape.value === undefined ? [] : [shape.value])];
  if (new Set(names).size < names.length) {
    throw new TypeError(`${event} gives one name to two of ${names.join(", ")}.`);
  }
}

/** Whether the event is read by a function, not by a schema. */
export function isReader(shape: EventShape): shape is EventReader<unknown> {
  return !("~standard" in shape) && "read" in shape && typeof shape.read === "function";
}

/** The schema of an event, which may stand alone or beside names. */
export function schemaOf(shape: SchemaShape): StandardSchemaV1 {
  return "~standard" in shape ? shape : shape.schema;
}
