// Messages on their way to scripts, and the record of those that callers dispatch, each in its home shard.
import type { EventId, FencingToken } from "@fencepost/token";
import { EventContentMismatchError, type Message } from "../../message/payload.ts";
import { DRAW_POSITION, KEEP_MESSAGE, LIST_MESSAGES, READ_MESSAGES } from "./lua/dispatching.ts";
import { ALL_SHARDS, type Argument, groupBy, type Shards, shardOf } from "./shards.ts";

/** A message as it is offered to webhooks. Times are in milliseconds. */
export interface StoredMessage {
  readonly eventId: EventId;
  readonly type: string;
  /** When its event occurred. */
  readonly at: number;
  /** When it was put on record. */
  readonly made: number;
  /** Its place in the order in which messages were made. */
  readonly position: bigint;
  readonly token: FencingToken | null;
  /** Null: it was pruned. */
  readonly body: Buffer | null;
}

/** `n`: it is new, so no delivery of it was pruned. `b`: it has no body. `a`: it is offered again. */
export type MessageFlag = "" | "n" | "b" | "a";

/** The arguments that are one message to a script. */
export function messageArguments(message: StoredMessage, flag: MessageFlag = ""): readonly Argument[] {
  const { eventId, type, at, made, position, token, body } = message;
  const content = body ? joinContent(token, body) : "";
  return [
    eventId,
    type,
    at,
    made,
    String(position).padStart(19, "0"),
    body ? flag : "b",
    content,
    body ? filteredText(body) : "",
  ];
}

/**
 * The text in which filters look, where it is not the body itself. NUL and a lone surrogate, which PostgreSQL's jsonb
 * does not hold, read as U+FFFD in both stores. JSON.stringify writes a surrogate as an escape only where it is alone.
 */
function filteredText(body: Buffer): string {
  if (!body.includes("\\u")) return "";
  return body.toString().replace(/(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})/g, "$1\\ufffd");
}

/** Token and body, as they are kept beside deliveries. */
function joinContent(token: FencingToken | null, body: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`${token ?? ""}\n`), body]);
}

export function splitContent(content: Buffer): {
  readonly token: FencingToken | null;
  readonly body: Buffer;
} {
  const end = content.indexOf("\n");
  const token = content.toString("utf8", 0, end);
  return { token: token === "" ? null : (token as FencingToken), body: content.subarray(end + 1) };
}

/** A place in the order of messages that callers dispatch. */
export async function drawPosition(shards: Shards): Promise<bigint> {
  return BigInt((await shards.run({ script: DRAW_POSITION, shard: 0, args: [] })) as string);
}

/**
 * Puts a message on record, unless it is: then the record is returned, whose bytes may be others, with the same
 * content. Throws {@link EventContentMismatchError} where it has another one.
 */
export async function keepMessage(
  shards: Shards,
  message: Message,
  position: bigint,
  isTest: boolean,
): Promise<{ readonly isNew: boolean; readonly stored: StoredMessage }> {
  const { eventId, type, token, occurredAt, contentHash, body } = message;
  const at = Date.parse(occurredAt);
  const args = [
    eventId,
    contentHash.toString("hex"),
    type,
    at,
    String(position),
    joinContent(token, body),
    isTest ? "1" : "",
  ];
  const reply = await shards.run({ script: KEEP_MESSAGE, shard: shardOf(eventId), args });
  const [found, ...record] = reply as readonly [Buffer, ...StoredReply];
  if (String(found) === "mismatch") throw new EventContentMismatchError(eventId, token);
  const [storedType, storedAt, made, storedPosition, content] = record;
  const isNew = String(found) === "new";
  if (isNew) return { isNew, stored: { eventId, type, at, made, position, token, body } };
  return { isNew, stored: toStored(eventId, [storedType, storedAt, made, storedPosition, content]) };
}

type StoredReply = readonly [type: Buffer, at: Buffer, made: number, position: Buffer, content: Buffer];

function toStored(eventId: EventId, [type, at, made, position, content]: StoredReply): StoredMessage {
  return {
    eventId,
    type: String(type),
    at: Number(String(at)),
    made,
    position: BigInt(String(position)),
    ...splitContent(content),
  };
}

/** Messages that callers dispatched, by the time of their events: a page, and its last place. */
export async function listMessages(
  shards: Shards,
  range: { readonly from: Date; readonly to: Date; readonly after: string; readonly limit: number },
): Promise<{ readonly messages: readonly StoredMessage[]; readonly last: string | null }> {
  const { from, to, after, limit } = range;
  const args = [Math.max(0, from.getTime()), Math.max(0, to.getTime()), after, limit];
  const replies = await shards.runAll(ALL_SHARDS.map((shard) => ({ script: LIST_MESSAGES, shard, args })));
  const places = (replies as readonly string[][]).flat().sort().slice(0, limit);
  const events = places.map((place) => place.slice(place.indexOf("|") + 1));
  const byShard = [...groupBy(events, shardOf)];
  const read = await shards.runAll(
    byShard.map(([shard, ids]) => ({ script: READ_MESSAGES, shard, args: ids })),
  );
  // One that was pruned meanwhile is missing.
  const found = (read as readonly (readonly ([Buffer, ...StoredReply] | null)[])[])
    .flat()
    .flatMap((reply) => (reply ? [reply] : []))
    .map(([event, ...reply]) => toStored(String(event) as EventId, reply));
  const byId = new Map(found.map((message) => [String(message.eventId), message]));
  const messages = events.flatMap((event) => byId.get(event) ?? []);
  return { messages, last: places.length < limit ? null : (places.at(-1) ?? null) };
}
