// Tells at a glance that a contract value can be decoded, without decoding it: what most events hold is checked in a
// microsecond, where the SDK takes a hundred. Whatever it does not know is left to the SDK.
import { isUtf8 } from "node:buffer";

/** Deeper values are left to the SDK. */
const MAX_DEPTH = 64;

/**
 * True for bytes that are one ScVal of the ordinary kinds, which `decode` accepts. False says nothing: the SDK must be
 * asked, and tells what is wrong.
 */
export function isPlainValue(bytes: Buffer): boolean {
  return endOfValue(bytes, 0, 0) === bytes.length;
}

/** Where the value that begins at `at` ends; -1 where that is not plain to see. */
function endOfValue(bytes: Buffer, at: number, depth: number): number {
  if (at < 0 || depth > MAX_DEPTH || at + 4 > bytes.length) return -1;
  const body = at + 4;
  switch (bytes.readInt32BE(at)) {
    case 0: // bool
      return body + 4 <= bytes.length && bytes.readUInt32BE(body) <= 1 ? body + 4 : -1;
    case 1: // void
      return body;
    case 3: // u32
    case 4: // i32
      return within(bytes, body + 4);
    case 5: // u64
    case 6: // i64
    case 7: // timepoint
    case 8: // duration
      return within(bytes, body + 8);
    case 9: // u128
    case 10: // i128
      return within(bytes, body + 16);
    case 11: // u256
    case 12: // i256
      return within(bytes, body + 32);
    case 13: // bytes
    case 14: // string
      return endOfBytes(bytes, body);
    case 15: // symbol
      return endOfSymbol(bytes, body);
    case 16: // vec
      return endOfItems(bytes, body, 1, depth);
    case 17: // map
      return endOfItems(bytes, body, 2, depth);
    case 18: // address
      return endOfAddress(bytes, body);
    default:
      return -1;
  }
}

function within(bytes: Buffer, end: number): number {
  return end <= bytes.length ? end : -1;
}

function endOfBytes(bytes: Buffer, at: number): number {
  if (at + 4 > bytes.length) return -1;
  const length = bytes.readUInt32BE(at);
  const end = at + 4 + length;
  const padded = end + ((4 - (length % 4)) % 4);
  if (padded > bytes.length) return -1;
  for (let i = end; i < padded; i++) if (bytes[i] !== 0) return -1;
  return padded;
}

function endOfSymbol(bytes: Buffer, at: number): number {
  const end = endOfBytes(bytes, at);
  if (end === -1) return -1;
  const length = bytes.readUInt32BE(at);
  return length <= 32 && isUtf8(bytes.subarray(at + 4, at + 4 + length)) ? end : -1;
}

/** An optional list: a flag, a count, and so many values for each item. */
function endOfItems(bytes: Buffer, at: number, valuesPerItem: number, depth: number): number {
  if (at + 8 > bytes.length || bytes.readUInt32BE(at) !== 1) return -1;
  let end = at + 8;
  for (let left = bytes.readUInt32BE(at + 4) * valuesPerItem; left > 0 && end !== -1; left--) {
    end = endOfValue(bytes, end, depth + 1);
  }
  return end;
}

function endOfAddress(bytes: Buffer, at: number): number {
  if (at + 4 > bytes.length) return -1;
  switch (bytes.readInt32BE(at)) {
    case 0: // account: a key of type 0
    case 3: // claimable balance: an id of type 0
      return at + 8 <= bytes.length && bytes.readInt32BE(at + 4) === 0 ? within(bytes, at + 40) : -1;
    case 1: // contract
    case 4: // liquidity pool
      return within(bytes, at + 36);
    case 2: // muxed account
      return within(bytes, at + 44);
    default:
      return -1;
  }
}
