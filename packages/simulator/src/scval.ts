// Builders of contract values. Each returns an ScVal as base64 XDR, as a node serves it; values nest as such
// texts. Encoded by the Stellar SDK, so a decoder is tested against the real thing.
import { createHash } from "node:crypto";
import { Address, StrKey, xdr } from "@stellar/stellar-sdk/base";

const MASK_64 = (1n << 64n) - 1n;

export const bool = (value: boolean): string => base64(xdr.ScVal.scvBool(value));
export const nothing = (): string => base64(xdr.ScVal.scvVoid());
export const u32 = (value: number): string => base64(xdr.ScVal.scvU32(value));
export const i32 = (value: number): string => base64(xdr.ScVal.scvI32(value));
export const u64 = (value: bigint): string => base64(xdr.ScVal.scvU64(value));
export const i64 = (value: bigint): string => base64(xdr.ScVal.scvI64(value));
export const timepoint = (value: bigint): string => base64(xdr.ScVal.scvTimepoint(value));
export const duration = (value: bigint): string => base64(xdr.ScVal.scvDuration(value));
export const sym = (text: string): string => base64(xdr.ScVal.scvSymbol(text));
/** Text, or bytes that need not be UTF-8. */
export const str = (text: string | Uint8Array): string => base64(xdr.ScVal.scvString(text));
export const bytes = (value: Uint8Array): string => base64(xdr.ScVal.scvBytes(value));
/** An account G…, contract C…, muxed account M…, claimable balance B… or liquidity pool L…. */
export const address = (strkey: string): string => base64(new Address(strkey).toScVal());
export const vec = (items: readonly string[]): string => base64(xdr.ScVal.scvVec(items.map(parse)));

export const u128 = (value: bigint): string =>
  base64(xdr.ScVal.scvU128(new xdr.Uint128Parts({ hi: value >> 64n, lo: value & MASK_64 })));

export const i128 = (value: bigint): string =>
  base64(xdr.ScVal.scvI128(new xdr.Int128Parts({ hi: value >> 64n, lo: value & MASK_64 })));

export const u256 = (value: bigint): string =>
  base64(xdr.ScVal.scvU256(new xdr.Uint256Parts(words(value, (word) => word))));

export const i256 = (value: bigint): string =>
  base64(xdr.ScVal.scvI256(new xdr.Int256Parts(words(value, (word) => BigInt.asIntN(64, word)))));

/** A map with any keys, in the order given (a contract's own maps are sorted by key). */
export function map(entries: readonly (readonly [key: string, value: string])[]): string {
  const parsed = entries.map(([key, val]) => new xdr.ScMapEntry({ key: parse(key), val: parse(val) }));
  return base64(xdr.ScVal.scvMap(parsed));
}

/** A map with symbols as keys, sorted, as a contract encodes a struct. */
export function struct(fields: Readonly<Record<string, string>>): string {
  const names = Object.keys(fields).sort();
  return map(names.map((name) => [sym(name), fields[name] ?? nothing()]));
}

/** A contract id (C…) that depends on the name only. */
export const contractId = (name: string): string => StrKey.encodeContract(digest(`contract ${name}`));

/** An account id (G…) that depends on the name only; nobody has its key. */
export const accountId = (name: string): string => StrKey.encodeEd25519PublicKey(digest(`account ${name}`));

/** The same value in its one canonical form. Throws for what is not an ScVal. */
export const canonical = (value: string): string => base64(parse(value));

function base64(value: xdr.ScVal): string {
  return value.toXdr("base64");
}

function parse(value: string): xdr.ScVal {
  return xdr.ScVal.fromXdr(value, "base64");
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

function words(value: bigint, top: (word: bigint) => bigint) {
  const word = (i: bigint): bigint => (value >> (i * 64n)) & MASK_64;
  return { hiHi: top(word(3n)), hiLo: word(2n), loHi: word(1n), loLo: word(0n) };
}
