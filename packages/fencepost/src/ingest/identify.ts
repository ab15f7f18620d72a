import { createHash } from "node:crypto";
import { type FencingToken, type StreamEpoch, tokenFromRpcId } from "@fencepost/token";
import type { SourceEvent } from "../source/source.ts";
import { type Decoder, UndecodableValueError } from "../xdr/decode.ts";

/** An event with its identity: what is stored. */
export interface IdentifiedEvent extends SourceEvent {
  readonly token: FencingToken;
  readonly contentHash: Buffer;
  /** Why its topics or value cannot be decoded; null where they can. */
  readonly quarantineReason: string | null;
}

/** Gives an event its token and content hash, and finds out whether it can be decoded. */
export function identifyEvent(chain: StreamEpoch, event: SourceEvent, decoder: Decoder): IdentifiedEvent {
  return {
    ...event,
    token: tokenFromRpcId(chain, event.id),
    contentHash: contentHash(event),
    quarantineReason: whyUndecodable(event, decoder),
  };
}

/**
 * sha-256 over type, contract id, transaction hash, ledger, close time, topics and value as XDR bytes, each with
 * its length before it. Close times are compared as instants: sources write them in several forms.
 */
export function contentHash(event: SourceEvent): Buffer {
  const hash = createHash("sha256");
  const closedAt = Math.floor(Date.parse(event.closedAt) / 1000);
  const texts = [event.type, event.contractId ?? "", event.txHash, `${event.ledger}`, `${closedAt}`];
  const parts = [
    ...texts.map((text) => Buffer.from(text)),
    ...event.topics.map((topic) => Buffer.from(topic, "base64")),
    Buffer.from(event.value, "base64"),
  ];
  for (const part of parts) {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(part.length);
    hash.update(length).update(part);
  }
  return hash.digest();
}

function whyUndecodable(event: SourceEvent, decoder: Decoder): string | null {
  const values = [
    ...event.topics.map((topic, i) => [`topic ${i}`, topic] as const),
    ["value", event.value] as const,
  ];
  for (const [where, base64] of values) {
    try {
      decoder.decode(base64);
    } catch (error) {
      if (!(error instanceof UndecodableValueError)) throw error;
      return `${where}: ${error.message}`;
    }
  }
  return null;
}
