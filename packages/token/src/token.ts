import { IncomparableTokensError, InvalidTokenError } from "./errors.ts";

declare const brand: unique symbol;

/**
 * Identity and order of an occurrence at its source: `stream-epoch-position`, for example
 * `pubnet-20150930-0063092990-0000027-0006-0000000002`. Fixed width for a kind of stream, so the order of
 * the strings (by code unit, or collation "C" in SQL) is the order of the chain.
 */
export type FencingToken = string & { readonly [brand]: "FencingToken" };

/** Where an event stands in its chain: the fields of the RPC event id (Stellar RPC v23 and later). */
export interface LedgerPosition {
  /** Ledger sequence, 0 to 2147483647. */
  readonly ledger: number;
  /** Transaction in the ledger, 0 to 1048575; 0 and 1048575 stand for before and after all transactions. */
  readonly tx: number;
  /** Operation in the transaction, 0 to 4095; 4095 stands for after the transaction. */
  readonly op: number;
  /** Event in the operation, 0 to 4294967295. */
  readonly event: number;
}

/** A chain, and the day its current life began: a reset of the chain begins a new epoch. */
export interface StreamEpoch {
  /** 1 to 32 of `a-z 0-9 _`: `pubnet`, `testnet`, `standalone`, or a producer's own name. */
  readonly stream: string;
  /** 8 digits, a date: `20150930`. */
  readonly epoch: string;
}

export type ParsedToken =
  | ({ readonly kind: "ledger" } & StreamEpoch & LedgerPosition)
  | ({ readonly kind: "sequence"; readonly n: bigint } & StreamEpoch);

const TOKEN = /^([a-z0-9_]{1,32})-(\d{8})-(?:(\d{10})-(\d{7})-(\d{4})-(\d{10})|(\d{20}))$/;
const STREAM_NAME = /^[a-z0-9_]{1,32}$/;
// TOID is a signed 64-bit number, so a ledger in an RPC id has 31 bits.
const MAX_LEDGER = 2_147_483_647;
const MAX_TX = 1_048_575;
const MAX_OP = 4_095;
const MAX_EVENT = 4_294_967_295;
const MAX_N = 99_999_999_999_999_999_999n;

/** Builds the token of a ledger event. Throws {@link InvalidTokenError} for a field out of range. */
export function ledgerToken(parts: StreamEpoch & LedgerPosition): FencingToken {
  const head = streamHead(parts);
  const ledger = digits("ledger", parts.ledger, MAX_LEDGER, 10);
  const tx = digits("tx", parts.tx, MAX_TX, 7);
  const op = digits("op", parts.op, MAX_OP, 4);
  const event = digits("event", parts.event, MAX_EVENT, 10);
  return `${head}-${ledger}-${tx}-${op}-${event}` as FencingToken;
}

/** Builds the token of a producer that counts its own events. `n` is 0 to 10^20 - 1. */
export function sequenceToken(parts: StreamEpoch & { readonly n: bigint }): FencingToken {
  if (typeof parts.n !== "bigint" || parts.n < 0n || parts.n > MAX_N) {
    throw new InvalidTokenError(`n must be a bigint from 0 to ${MAX_N}; it is wrong`, parts.n, 0);
  }
  return `${streamHead(parts)}-${parts.n.toString().padStart(20, "0")}` as FencingToken;
}

/** Takes a token apart. Throws {@link InvalidTokenError}, which says what is wrong and where. */
export function parseToken(text: string): ParsedToken {
  const match = typeof text === "string" ? TOKEN.exec(text) : null;
  if (!match) throw explain(text);
  const [, stream = "", epoch = "", ledger, tx, op, event, n] = match;
  if (!isDate(epoch)) {
    throw new InvalidTokenError(`The epoch ${epoch} is not a date (yyyymmdd)`, text, stream.length + 1);
  }
  if (n !== undefined) return { kind: "sequence", stream, epoch, n: BigInt(n) };
  const start = stream.length + 10;
  return {
    kind: "ledger",
    stream,
    epoch,
    ledger: bounded("ledger", ledger, MAX_LEDGER, text, start),
    tx: bounded("tx", tx, MAX_TX, text, start + 11),
    op: bounded("op", op, MAX_OP, text, start + 19),
    event: bounded("event", event, MAX_EVENT, text, start + 24),
  };
}

/** True for exactly the strings that {@link parseToken} accepts. */
export function isToken(text: unknown): text is FencingToken {
  if (typeof text !== "string") return false;
  try {
    parseToken(text);
    return true;
  } catch {
    return false;
  }
}

/** Checks a text and gives it the type of a token. Throws {@link InvalidTokenError}. */
export function asToken(text: string): FencingToken {
  parseToken(text);
  return text as FencingToken;
}

/**
 * Orders two tokens of one stream: negative, 0 or positive, for `Array.prototype.sort`. A later epoch comes
 * after an earlier one. Throws {@link IncomparableTokensError} across streams: there is no order.
 */
export function compareTokens(a: FencingToken, b: FencingToken): -1 | 0 | 1 {
  const left = parseToken(a);
  const right = parseToken(b);
  if (left.stream !== right.stream || left.kind !== right.kind) throw new IncomparableTokensError(a, b);
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The sha-256 input and other texts hold `stream-epoch`; checked here, once. */
function streamHead({ stream, epoch }: StreamEpoch): string {
  if (typeof stream !== "string" || !STREAM_NAME.test(stream)) {
    throw new InvalidTokenError("A stream is 1 to 32 of a-z 0-9 _; it is wrong", stream, 0);
  }
  if (typeof epoch !== "string" || !isDate(epoch)) {
    throw new InvalidTokenError("An epoch is a date of 8 digits (yyyymmdd); it is wrong", epoch, 0);
  }
  return `${stream}-${epoch}`;
}

function digits(field: string, value: number, max: number, width: number): string {
  if (!Number.isInteger(value) || value < 0 || value > max) {
    throw new InvalidTokenError(`${field} must be an integer from 0 to ${max}; it is wrong`, value, 0);
  }
  return value.toString().padStart(width, "0");
}

function bounded(field: string, text: string | undefined, max: number, input: string, at: number): number {
  const value = Number(text);
  if (value > max) throw new InvalidTokenError(`${field} ${text} is above ${max}`, input, at);
  return value;
}

/** The last epoch that was seen to be a date: mostly it is the same one. */
let lastDate = "";

function isDate(epoch: string): boolean {
  if (epoch === lastDate) return true;
  if (!/^\d{8}$/.test(epoch)) return false;
  const iso = `${epoch.slice(0, 4)}-${epoch.slice(4, 6)}-${epoch.slice(6, 8)}`;
  const time = Date.parse(`${iso}T00:00:00Z`);
  if (Number.isNaN(time) || !new Date(time).toISOString().startsWith(iso)) return false;
  lastDate = epoch;
  return true;
}

/** Finds the first character that breaks the form, so that the error can point at it. */
function explain(text: unknown): InvalidTokenError {
  if (typeof text !== "string") return new InvalidTokenError("A token is a string; this is not one", text, 0);
  const stream = /^[a-z0-9_]*/.exec(text)?.[0] ?? "";
  if (stream.length === 0) return new InvalidTokenError("A stream name (a-z 0-9 _) is missing", text, 0);
  if (stream.length > 32) return new InvalidTokenError("The stream name is longer than 32", text, 32);
  const rest = text.slice(stream.length);
  const shapes = ["-dddddddd-dddddddddd-ddddddd-dddd-dddddddddd", "-dddddddd-dddddddddddddddddddd"];
  const at = stream.length + Math.max(...shapes.map((shape) => agreement(rest, shape)));
  const what = at >= text.length ? "The token ends too early" : "The token has a wrong character";
  return new InvalidTokenError(`${what} (the form is stream-epoch-position)`, text, at);
}

function agreement(text: string, shape: string): number {
  for (let i = 0; i < shape.length; i++) {
    const c = text[i];
    if (c === undefined || (shape[i] === "d" ? !/\d/.test(c) : c !== "-")) return i;
  }
  return shape.length;
}
