import type { StandardSchemaV1 } from "@standard-schema/spec";
import {
  type EventShape,
  type EventShapes,
  isReader,
  type SchemaShape,
  schemaOf,
} from "../config/contract.ts";
import type { ProjectedEvent } from "../config/projection.ts";
import type { StoredEvent } from "../store/postgres/projections.ts";
import type { Decoder } from "../xdr/decode.ts";
import { type EventReading, textOf } from "../xdr/eventReader.ts";
import { type DecodedEvent, type NativeValue, toNative } from "../xdr/scValue.ts";

export type { DecodedEvent } from "../xdr/scValue.ts";

/** The name in the first topic, a symbol or a string; null where there is none. Decodes nothing else. */
export function eventName({ topics }: Pick<StoredEvent, "topics">, decoder: Decoder): string | null {
  return topics[0] === undefined ? null : textOf(decoder.decode(topics[0]));
}

/**
 * The name under which a contract declares the event: that of its first two topics with a colon between them, or of
 * the first; null where neither is declared.
 */
export function declaredName(
  event: Pick<StoredEvent, "topics">,
  shapes: EventShapes,
  decoder: Decoder,
): string | null {
  const first = eventName(event, decoder);
  if (first === null) return null;
  const [, topic] = event.topics;
  if (topic !== undefined && Object.keys(shapes).some((name) => name.startsWith(`${first}:`))) {
    const second = textOf(decoder.decode(topic));
    if (second !== null && Object.hasOwn(shapes, `${first}:${second}`)) return `${first}:${second}`;
  }
  return Object.hasOwn(shapes, first) ? first : null;
}

export function decodeEvent(event: Pick<StoredEvent, "topics" | "value">, decoder: Decoder): DecodedEvent {
  return { topics: event.topics.map((topic) => decoder.decode(topic)), value: decoder.decode(event.value) };
}

/**
 * What the schema of an event is given: one object with the fields of the value, where it is a map with text
 * keys, and the named topics. Without named parts the value as it is.
 */
export function schemaInput(shape: SchemaShape, { topics, value }: DecodedEvent): unknown {
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
export async function readData(shape: EventShape, decoded: DecodedEvent): Promise<EventReading<unknown>> {
  if (isReader(shape)) return shape.read(decoded);
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
