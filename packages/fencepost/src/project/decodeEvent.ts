import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { EventShape } from "../config/contract.ts";
import type { ProjectedEvent } from "../config/projection.ts";
import type { StoredEvent } from "../store/postgres/projections.ts";
import type { Decoder } from "../xdr/decode.ts";
import { type NativeValue, type ScValue, toNative } from "../xdr/scValue.ts";

/** An event's values and the name in its first topic; null where there is no such name. */
export interface DecodedEvent {
  readonly name: string | null;
  readonly topics: readonly ScValue[];
  readonly value: ScValue;
}

export function decodeEvent(event: Pick<StoredEvent, "topics" | "value">, decoder: Decoder): DecodedEvent {
  const topics = event.topics.map((topic) => decoder.decode(topic));
  const first = topics[0];
  const named = first?.type === "symbol" || first?.type === "string";
  const name = named && typeof first.value === "string" ? first.value : null;
  return { name, topics, value: decoder.decode(event.value) };
}

/**
 * What the schema of an event is given: one object with the fields of the value, where it is a map with text
 * keys, and the named topics. Without named parts a value that is no map is given as it is.
 */
export function schemaInput(shape: EventShape, { topics, value }: DecodedEvent): unknown {
  const native = toNative(value);
  if ("~standard" in shape || (shape.topics === undefined && shape.value === undefined)) return native;
  const fields: Record<string, NativeValue> = {};
  shape.topics?.forEach((name, i) => {
    const topic = topics[i + 1];
    if (topic) fields[name] = toNative(topic);
  });
  if (shape.value !== undefined) return { ...fields, [shape.value]: native };
  return isFields(native) ? { ...native, ...fields } : fields;
}

/** The data a handler gets, or why it does not fit the declared shape. */
export async function readData(
  shape: EventShape,
  decoded: DecodedEvent,
): Promise<{ readonly data: unknown } | { readonly misfit: string }> {
  const schema = "~standard" in shape ? shape : shape.schema;
  const result = await schema["~standard"].validate(schemaInput(shape, decoded));
  return result.issues ? { misfit: describeIssues(result.issues) } : { data: result.value };
}

export function describeIssues(issues: readonly StandardSchemaV1.Issue[]): string {
  return issues
    .slice(0, 5)
    .map(({ path, message }) => {
      const where = path?.map((part) => String(typeof part === "object" ? part.key : part)).join(".");
      return where ? `${where}: ${message}` : message;
    })
    .join("; ");
}

export function projectedEvent(
  stored: StoredEvent,
  decoded: DecodedEvent,
  name: string,
  data: unknown,
): ProjectedEvent {
  const { token, contractId, ledger, closedAt, txHash } = stored;
  return {
    token,
    name,
    data,
    contractId,
    ledger,
    closedAt,
    txHash,
    topics: decoded.topics,
    value: decoded.value,
  };
}

function isFields(value: NativeValue): value is { readonly [field: string]: NativeValue } {
  return (
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    !(value instanceof Map) &&
    !(value instanceof Uint8Array)
  );
}
