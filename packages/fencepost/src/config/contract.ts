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

export interface ContractInput<Events extends EventShapes> {
  /** C…, the contract's address. */
  readonly id: string;
  /** Where to begin: a ledger, "latest" (the newest when first seen) or "oldest" (the oldest the source has). */
  readonly startLedger: number | "latest" | "oldest";
  /**
   * By the name in the first topic (a symbol or a string), or by the first two with a colon between them, as
   * `pool:deposit`: that one goes before. Events of other names are not stored for handlers.
   */
  readonly events: Events;
}

export interface Contract<Events extends EventShapes = EventShapes> extends ContractInput<Events> {
  readonly kind: "contract";
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
  input: ContractInput<Events>,
): Contract<Events> {
  const { id, startLedger, events } = input;
  if (!isContractId(id)) {
    throw new TypeError(`A contract id is C and 55 of A-Z 2-7, but this is ${JSON.stringify(id)}.`);
  }
  if (!isStartLedger(startLedger)) {
    throw new TypeError(
      `startLedger of ${id} is ${JSON.stringify(startLedger)}: use a ledger number, "latest" or "oldest".`,
    );
  }
  const shapes = Object.entries(events ?? {});
  if (shapes.length === 0) throw new TypeError(`Contract ${id} declares no events.`);
  for (const [name, shape] of shapes) checkShape(`Event ${JSON.stringify(name)} of ${id}`, shape);
  return { kind: "contract", id, startLedger, events };
}

export function isContractId(id: unknown): id is string {
  return typeof id === "string" && /^C[A-Z2-7]{55}$/.test(id);
}

export function isStartLedger(start: unknown): start is ContractInput<EventShapes>["startLedger"] {
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
