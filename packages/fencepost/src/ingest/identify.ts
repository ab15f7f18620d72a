import { hash } from "node:crypto";
import { type FencingToken, type StreamEpoch, tokenFromRpcId } from "@fencepost/token";
import type { SourceEvent } from "../source/source.ts";
import { type Decoder, UndecodableValueError } from "../xdr/decode.ts";
import { isPlainValue } from "../xdr/plainValue.ts";

/** An event with its identity: what is stored. */
export interface IdentifiedEvent extends SourceEvent {
  readonly token: FencingToken;
  readonly contentHash: Buffer;
  /** Why its topics or value cannot be decoded; null where they can. */
  readonly quarantineReason: string | null;
}

/** Gives an event its token and content hash, and finds out whether it can be decoded. */
export function identifyEvent(chain: StreamEpoch, event: SourceEvent, decoder: Decoder): IdentifiedEvent {
  const values = valuesOf(event);
  return {
    ...event,
    token: tokenFromRpcId(chain, event.id),
    contentHash: hashOf(event, values),
    quarantineReason: whyUndecodable(event, values, decoder),
  };
}

/**
 * sha-256 over type, contract id, transaction hash, ledger, close time, topics and value as XDR bytes, each with
 * its length before it. Close times are compared as instants: sources write them in several forms.
 */
export function contentHash(event: SourceEvent): Buffer {
  return hashOf(event, valuesOf(event));
}

/** Topics and value as bytes. */
function valuesOf({ topics, value }: SourceEvent): readonly Buffer[] {
  return [...topics, value].map((base64) => Buffer.from(base64, "base64"));
}

function hashOf(event: SourceEvent, values: readonly Buffer[]): Buffer {
  const closedAt = Math.floor(Date.parse(event.closedAt) / 1000);
  const texts = [event.type, event.contractId ?? "", event.txHash, `${event.ledger}`, `${closedAt}`];
  const parts = [...texts.map((text) => Buffer.from(text)), ...values];
  // One update and not two for each part: the call costs more than the bytes.
  const framed = Buffer.allocUnsafe(parts.reduce((sum, { length }) => sum + 4 + length, 0));
  let at = 0;
  for (const part of parts) {
    at = framed.writeUInt32BE(part.length, at);
    at += part.copy(framed, at);
  }
  return hash("sha256", framed, "buffer");
}

function whyUndecodable(
  { topics, value }: SourceEvent,
  values: readonly Buffer[],
  decoder: Decoder,
): string | null {
  for (const [i, base64] of [...topics, value].entries()) {
    const bytes = values[i];
    if (bytes && isPlainValue(bytes) && bytes.toString("base64") === base64) continue;
    try {
      decoder.decode(base64);
    } catch (error) {
      if (!(error instanceof UndecodableValueError)) throw error;
      return `${i < topics.length ? `topic ${i}` : "value"}: ${error.message}`;
    }
  }
  return null;
}
