import { InvalidTokenError } from "./errors.ts";
import { sha256 } from "./sha256.ts";
import { type FencingToken, parseToken } from "./token.ts";

declare const brand: unique symbol;

/** The id of a message, the same over all deliveries and retries: what a customer deduplicates by. */
export type EventId = string & { readonly [brand]: "EventId" };

const CALLER_ID = /^[A-Za-z0-9_:~-]{1,256}$/;
const RESERVED_ID = /^(?:evt|test)_[a-z2-7]{26}$/;
const TYPE = /^[^\n]{1,256}$/;
const BASE32 = "abcdefghijklmnopqrstuvwxyz234567";

/**
 * Derives the id of a message from the event that caused it: `evt_` and lower-case unpadded base32 of the
 * first 16 bytes of sha-256 over UTF-8 `token "\n" type "\n" key`. The same event through the same mapping has
 * the same id after a crash, a re-scan or a rebuild, on any machine.
 *
 * `key` tells apart two messages of one type for one event; it may be any text.
 */
export function deriveEventId(token: FencingToken, type: string, key = ""): EventId {
  parseToken(token);
  if (!TYPE.test(type)) {
    throw new InvalidTokenError("A message type is 1 to 256 characters without a newline; wrong", type, 0);
  }
  const digest = sha256(new TextEncoder().encode(`${token}\n${type}\n${key}`));
  return `evt_${base32(digest.subarray(0, 16))}` as EventId;
}

/** A test id from 16 random bytes that the caller draws. Test ids never meet the ids of messages. */
export function testEventId(random: Uint8Array): EventId {
  if (random.length !== 16)
    throw new InvalidTokenError("A test id takes 16 random bytes; wrong length", "", 0);
  return `test_${base32(random)}` as EventId;
}

/**
 * Checks an event id that a caller of `dispatch()` brings: 1 to 256 of `A-Z a-z 0-9 _ : ~ -`, and not in the
 * exact form of a derived or a test id. No dot: it would shift the signed content of a webhook.
 */
export function asCallerEventId(text: string): EventId {
  if (typeof text !== "string" || !CALLER_ID.test(text)) {
    const at = typeof text === "string" ? Math.max(0, text.search(/[^A-Za-z0-9_:~-]/)) : 0;
    throw new InvalidTokenError("An event id is 1 to 256 of A-Z a-z 0-9 _ : ~ - ; it is wrong", text, at);
  }
  if (RESERVED_ID.test(text)) {
    throw new InvalidTokenError("This form of event id is kept for derived and test ids; reserved", text, 0);
  }
  return text as EventId;
}

function base32(bytes: Uint8Array): string {
  let bits = 0n;
  for (const byte of bytes) bits = (bits << 8n) | BigInt(byte);
  const length = Math.ceil((bytes.length * 8) / 5);
  bits <<= BigInt(length * 5 - bytes.length * 8);
  let out = "";
  for (let i = length - 1; i >= 0; i--) out += BASE32[Number((bits >> BigInt(i * 5)) & 31n)] ?? "";
  return out;
}
