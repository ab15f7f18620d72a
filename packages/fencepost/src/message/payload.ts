import { createHash } from "node:crypto";
import type { EventId, FencingToken } from "@fencepost/token";
import stringify from "safe-stable-stringify";

/** A message that is ready to be stored: its identity, its content hash, and the exact bytes that are sent. */
export interface Message {
  readonly eventId: EventId;
  readonly type: string;
  readonly token: FencingToken | null;
  /** ISO time of the event: the ledger's close, or when a caller dispatched it. */
  readonly occurredAt: string;
  readonly contentHash: Buffer;
  readonly body: Buffer;
}

/** Where an event of a chain comes from, in the payload. */
interface MessageSource {
  readonly network: string;
  readonly contract_id: string;
  readonly ledger: number;
  readonly tx_hash: string;
}

export interface MessageContent {
  readonly eventId: EventId;
  readonly type: string;
  readonly token: FencingToken | null;
  readonly occurredAt: string;
  readonly data: unknown;
  readonly source?: MessageSource;
}

/** The largest body of a message, in bytes. Standard Webhooks advises less than 20 kB. */
export const MAX_BODY_BYTES = 256 * 1024;
/** The longest message type, in characters. */
const MAX_TYPE_LENGTH = 128;

/** Data that cannot be sent as JSON, or a body that is too large. Nothing was stored. */
export class InvalidMessageError extends Error {
  override readonly name = "InvalidMessageError";
  readonly eventId: string;

  constructor(eventId: string, what: string) {
    super(`The message ${eventId} cannot be sent: ${what}`);
    this.eventId = eventId;
  }
}

/** The same event id was used with another type or other data. The first content stays. */
export class EventContentMismatchError extends Error {
  override readonly name = "EventContentMismatchError";
  readonly eventId: EventId;
  readonly token: FencingToken | null;

  constructor(eventId: EventId, token: FencingToken | null) {
    super(
      `The event id ${eventId} is on record with another type or other data, and one id stands for one content. ` +
        "Use a new event id, or raise the version of the projection that changed.",
    );
    this.eventId = eventId;
    this.token = token;
  }
}

/**
 * Builds the bytes of a message, once: they are stored, signed and sent as they are. Throws
 * {@link InvalidMessageError} for data that has no JSON form, a wrong type, or a body over the limit.
 */
export function buildMessage({ eventId, type, token, occurredAt, data, source }: MessageContent): Message {
  if (!isMessageType(type)) {
    throw new InvalidMessageError(
      eventId,
      `its type ${JSON.stringify(type)} is not 1 to ${MAX_TYPE_LENGTH} of a-z A-Z 0-9 _ . -`,
    );
  }
  const json = toJson(data, eventId);
  const payload = {
    type,
    event_id: eventId,
    ...(token !== null && { fencing_token: token }),
    timestamp: occurredAt,
    data: json,
    ...(source && { source }),
  };
  const body = Buffer.from(JSON.stringify(payload));
  if (body.length > MAX_BODY_BYTES) {
    throw new InvalidMessageError(
      eventId,
      `its body has ${body.length} bytes and the limit is ${MAX_BODY_BYTES}.`,
    );
  }
  const content = createHash("sha256")
    .update(`${type}\n${stringify(json)}`)
    .digest();
  return { eventId, type, token, occurredAt, contentHash: content, body };
}

/** 1 to 128 of `a-z A-Z 0-9 _ . -`, in parts between dots that are not empty. */
export function isMessageType(type: unknown): type is string {
  return typeof type === "string" && type.length <= MAX_TYPE_LENGTH && /^[\w-]+(?:\.[\w-]+)*$/.test(type);
}

const MAX_DEPTH = 64;
const MAX_SHOWN_PATH = 200;

/**
 * The JSON form of data, which loses nothing: a bigint is a decimal string (whatever its size, so that a field
 * has one type), bytes are base64, a `Map` is a list of pairs, a `Date` is an ISO time. A number that JSON or a
 * reader could not keep (beyond 2^53, NaN, infinite) is refused, and so is anything that is not data. A field
 * that is undefined is left out. Ends when there is more than a body may hold, however often data repeats itself.
 */
function toJson(data: unknown, eventId: string): unknown {
  let bytesLeft = MAX_BODY_BYTES;

  function convert(value: unknown, path: string, depth: number): unknown {
    const refuse = (what: string): never => {
      throw new InvalidMessageError(eventId, `${path.slice(0, MAX_SHOWN_PATH)} ${what}.`);
    };
    const spend = (bytes: number): void => {
      bytesLeft -= bytes;
      if (bytesLeft < 0) refuse(`goes beyond the limit of ${MAX_BODY_BYTES} bytes`);
    };
    const inner = (item: unknown, key: string | number): unknown => {
      spend(1);
      return convert(item, `${path}.${key}`, depth + 1);
    };
    if (depth > MAX_DEPTH) return refuse(`is nested deeper than ${MAX_DEPTH}`);
    switch (typeof value) {
      case "string":
        spend(value.length);
        return value;
      case "boolean":
        return value;
      case "bigint":
        return value.toString();
      case "number":
        if (!Number.isFinite(value)) return refuse(`is ${value}, which JSON cannot hold`);
        if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
          return refuse("is an integer beyond 2^53 as a number: use a bigint");
        }
        return value;
      case "object":
        break;
      default:
        return refuse(`is ${typeof value}, which JSON cannot hold`);
    }
    if (value === null) return null;
    if (value instanceof Uint8Array) {
      spend(value.length);
      return Buffer.from(value).toString("base64");
    }
    if (value instanceof Date) {
      return Number.isNaN(value.getTime()) ? refuse("is an invalid date") : value.toISOString();
    }
    if (value instanceof Map) return Array.from(value, (pair, i) => inner(pair, i));
    if (Array.isArray(value)) {
      spend(value.length);
      return Array.from(value, (item: unknown, i) => inner(item, i)); // a hole is an undefined item
    }
    const prototype: unknown = Object.getPrototypeOf(value);
    if (prototype !== Object.prototype && prototype !== null) return refuse("is not plain data");
    const fields: [string, unknown][] = [];
    for (const [key, item] of Object.entries(value)) {
      if (item === undefined) continue;
      spend(key.length);
      fields.push([key, inner(item, key)]);
    }
    return Object.fromEntries(fields);
  }

  return convert(data, "data", 0);
}
