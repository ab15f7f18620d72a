import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type EventShape, schemaOf } from "../config/contract.ts";
import type { ProjectedEvent } from "../config/projection.ts";
import type { StoredEvent } from "../store/postgres/projections.ts";
import type { Decoder } from "../xdr/decode.ts";
import { type NativeValue, type ScValue, toNative } from "../xdr/scValue.ts";

/** Topics and value of an event, with their types. */
export interface DecodedEvent {
  readonly topics: readonly ScValue[];
  readonly value: ScValue;
}

/** The name in the first topic, a symbol or a string; null where there is none. Decodes nothing else. */
export function eventName({ topics }: Pick<StoredEvent, "topics">, decoder: Decoder): string | null {
  if (topics[0] === undefined) return null;
  const first = decoder.decode(topics[0]);
  const named = first.type === "symbol" || first.type === "string";
  return named && typeof first.value === "string" ? first.value : null;
}

export function decodeEvent(event: Pick<StoredEvent, "topics" | "value">, decoder: Decoder): DecodedEvent {
  return { topics: event.topics.map((topic) => decoder.decode(topic)), value: decoder.decode(event.value) };
}

/**
 * What the schema of an event is given: one object with the fields of the value, where it is a map with text
 * keys, and the named topics. Without named parts the value as it is.
 */
export function schemaInput(shape: EventShape, { topics, value }: DecodedEvent): unknown {
  const native = toNative(value);
  if ("~standard" in shape || (shape.topics === undefined && shape.value === undefined)) return native;
  const named = (shape.topics ?? []).flatMap((name, i) => {
    const topic = topics[i + 1];
    return topic ? [[name, toNative(topic)] as const] : [];
  });
  if (shape.value !== undefined) named.push([shape.value, native]);
  const fields = shape.value === undefined && isFields(native) ? Object.entries(native) : [];
  return Object.fromEntries([...fields, ...named]);
}

/** The data a handler gets, or why it does not fit the declared shape. */
export async function readData(
  shape: EventShape,
  decoded: DecodedEvent,
): Promise<{ readonly data: unknown } | { readonly misfit: string }> {
  const result = await schemaOf(shape)["~standard"].validate(schemaInput(shape, decoded));
  return result.issues ? { misfit: describeIssues(result.issues) } : { data: result.value };
}

const MAX_ISSUES = 5;
const MAX_ISSUE_LENGTH = 200;

export function describeIssues(issues: readonly StandardSchemaV1.Issue[]): string {
  const texts = issues.slice(0, MAX_ISSUES).map(({ path, message }) => {
    const where = path?.map((part) => String(typeof part === "object" ? part.key : part)).join(".");
    return (where ? `${where}: ${message}` : message).slice(0, MAX_ISSUE_LENGTH);
  });
  if (issues.length > MAX_ISSUES) texts.push(`and ${issues.length - MAX_ISSUES} more`);
  return texts.join("; ");
}

export function projectedEvent(
  stored: StoredEvent,
  decoded: DecodedEvent,
  name: string,
  data: unknown,
): ProjectedEvent {
  const { token, contractId, ledger, closedAt, txHash } = stored;
  return { token, name, data, contractId, ledger, closedAt, txHash, ...decoded };
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
