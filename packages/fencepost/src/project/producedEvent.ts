// Events of producers that are no chain: their type is in place of the first topic, and their data is JSON.
import { type EventShape, type EventShapes, isReader, schemaOf } from "../config/contract.ts";
import type { StoredEvent } from "../store/postgres/projections.ts";
import type { EventReading } from "../xdr/eventReader.ts";
import type { DecodedEvent } from "../xdr/scValue.ts";
import { describeIssues } from "./decodeEvent.ts";

/** What a handler is given for topics and value. */
export const NO_XDR: DecodedEvent = { topics: [], value: { type: "void" } };

/** The type, where the producer declares it; null where it does not. */
export function producedName({ topics }: Pick<StoredEvent, "topics">, shapes: EventShapes): string | null {
  const [type] = topics;
  return type !== undefined && Object.hasOwn(shapes, type) ? type : null;
}

/** The data a handler gets, or why it does not fit the declared schema. */
export async function readProduced(
  shape: EventShape,
  { value }: Pick<StoredEvent, "value">,
): Promise<EventReading<unknown>> {
  if (isReader(shape)) throw new TypeError("An event of a producer is declared with a schema.");
  const result = await schemaOf(shape)["~standard"].validate(JSON.parse(value));
  return result.issues ? { misfit: describeIssues(result.issues) } : { data: result.value };
}
