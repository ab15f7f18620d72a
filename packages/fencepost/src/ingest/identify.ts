import { hash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { type FencingToken, type StreamEpoch, tokenFromRpcId } from "@fencepost/token";
import type { Source, SourceEvent, WindowReader } from "../source/source.ts";
import { type Decoder, UndecodableValueError } from "../xdr/decode.ts";
import { isPlainValue } from "../xdr/plainValue.ts";

/** An event with its identity: what is stored. */
export interface IdentifiedEvent extends SourceEvent {
  readonly token: FencingToken;
  readonly contentHash: Buffer;
  /** Why its topics or value cannot be decoded; null where they can. */
  readonly quarantineReason: string | null;
}

/** Events that are identified at once, before others may run. */
const AT_ONCE = 256;

/**
 * Reads the windows of a source, and identifies their events as they arrive: those that are read ahead are ready when
 * their turn comes.
 */
export function identifying(source: Source, decoder: Decoder): WindowReader<IdentifiedEvent> {
  return {
    ...source,
    async window(request, signal) {
      const window = await source.window(request, signal);
      if (window.kind !== "window") return window;
      const events: IdentifiedEvent[] = [];
      for (const event of window.events) {
        if (events.length % AT_ONCE === AT_ONCE - 1) await setImmediate();
        events.push(identifyEvent(source.chain, event, decoder));
      }
      return { ...window, events };
    },
  };
}

/** Gives an event its token and content hash, and finds out whether it can be decoded. */
export function identifyEvent(chain: StreamEpoch, event: SourceEvent, decoder: Decoder): IdentifiedEvent {
  const content = frame(event);
  return {
    id: event.id,
    type: event.type,
    ledger: event.ledger,
    closedAt: event.closedAt,
    contractId: event.contractId,
    txHash: event.txHash,
    topics: event.topics,
    value: event.value,
    token: tokenFromRpcId(chain, event.id),
    contentHash: sha256(content.bytes),
    quarantineReason: whyUndecodable(event, content, decoder),
  };
}

/**
 * sha-256 over type, contract id, transaction hash, ledger, close time, topics and value as XDR bytes, each with
 * its length before it. Close times are compared as instants: sources write them in several forms.
 */
export function contentHash(event: SourceEvent): Buffer {
  return sha256(frame(event).bytes);
}

/** By way of a string: a buffer of its own costs more than the hash. */
function sha256(bytes: Buffer): Buffer {
  return Buffer.from(hash("sha256", bytes, "binary"), "binary");
}

/** What is hashed of an event, valid until the next one is framed, and where topics and value begin and end in it. */
interface Frame {
  readonly bytes: Buffer;
  readonly values: readonly (readonly [begin: number, end: number])[];
}

/** Every event is framed in the same memory: its parts would be ten buffers otherwise. */
let memory = Buffer.alloc(64 * 1024);

function frame({ type, contractId, txHash, ledger, closedAt, topics, value }: SourceEvent): Frame {
  const texts = [type, contractId ?? "", txHash, `${ledger}`, `${unixSeconds(closedAt)}`];
  let room = value.length + 4;
  for (const text of topics) room += text.length + 4;
  for (const text of texts) room += text.length * 3 + 4; // UTF-8
  if (memory.length < room) memory = Buffer.alloc(room);

  let at = 0;
  for (const text of texts) at = writePart(text, "utf8", at);
  const values: [number, number][] = [];
  for (let i = 0; i <= topics.length; i++) {
    const begin = at + 4;
    at = writePart(topics[i] ?? value, "base64", at);
    values.push([begin, at]);
  }
  return { bytes: memory.subarray(0, at), values };
}

/** Its length, then its bytes. Returns where they end. */
function writePart(text: string, encoding: "utf8" | "base64", at: number): number {
  const length = memory.write(text, at + 4, encoding);
  memory.writeUInt32BE(length, at);
  return at + 4 + length;
}

/** The last time that was read, and what it is: all events of a ledger have one. */
let lastTime: readonly [text: string, seconds: number] = ["", Number.NaN];

function unixSeconds(time: string): number {
  if (lastTime[0] !== time) lastTime = [time, Math.floor(Date.parse(time) / 1000)];
  return lastTime[1];
}

/** Base64 of which every character stands for its bits: what Node leaves out or reads in another way is not. */
function isWhole(base64: string, bytes: number): boolean {
  const padding = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return (base64.length / 4) * 3 - padding === bytes && !base64.includes("-") && !base64.includes("_");
}

function whyUndecodable(
  { topics, value }: SourceEvent,
  { bytes, values }: Frame,
  decoder: Decoder,
): string | null {
  for (const [i, [begin, end]] of values.entries()) {
    const base64 = topics[i] ?? value;
    if (isWhole(base64, end - begin) && isPlainValue(bytes.subarray(begin, end))) continue;
    try {
      decoder.decode(base64);
    } catch (error) {
      if (!(error instanceof UndecodableValueError)) throw error;
      return `${i < topics.length ? `topic ${i}` : "value"}: ${error.message}`;
    }
  }
  return null;
}
