import { InvalidTokenError } from "./errors.ts";
import {
  type FencingToken,
  type LedgerPosition,
  ledgerToken,
  parseToken,
  type StreamEpoch,
} from "./token.ts";

const RPC_ID = /^(\d{19})-(\d{10})$/;
const END_OF_LEDGER = { tx: 1_048_575, op: 4_095, event: 4_294_967_295 } as const;

/**
 * Takes an RPC event id, or a `getEvents` cursor, apart: `%019d-%010d` of TOID and event index, where TOID is
 * `ledger << 32 | tx << 12 | op`. Throws {@link InvalidTokenError}.
 */
export function parseRpcId(id: string): LedgerPosition {
  const match = typeof id === "string" ? RPC_ID.exec(id) : null;
  if (!match) throw new InvalidTokenError("An RPC event id is 19 digits, a dash and 10 digits; wrong", id, 0);
  const toid = BigInt(match[1] ?? "");
  const ledger = Number(toid >> 32n);
  if (ledger > 2_147_483_647) throw new InvalidTokenError("The ledger of this RPC id is too high", id, 0);
  const event = Number(match[2]);
  if (event > END_OF_LEDGER.event) throw new InvalidTokenError("The event index is above 2^32 - 1", id, 20);
  const low = Number(BigInt.asUintN(32, toid));
  return { ledger, tx: low >>> 12, op: low & 0xfff, event };
}

/** Builds the RPC event id (or cursor) of a position: the inverse of {@link parseRpcId}. */
export function formatRpcId(position: LedgerPosition): string {
  const { ledger, tx, op, event } = position;
  ledgerToken({ stream: "x", epoch: "20000101", ...position }); // throws for a field out of range
  const toid = (BigInt(ledger) << 32n) | (BigInt(tx) << 12n) | BigInt(op);
  return `${toid.toString().padStart(19, "0")}-${event.toString().padStart(10, "0")}`;
}

/** The token of the event with this RPC id on this chain. */
export function tokenFromRpcId(chain: StreamEpoch, id: string): FencingToken {
  return ledgerToken({ stream: chain.stream, epoch: chain.epoch, ...parseRpcId(id) });
}

/** The RPC event id of a ledger token. Throws {@link InvalidTokenError} for a sequence token. */
export function rpcIdFromToken(token: FencingToken): string {
  const parsed = parseToken(token);
  if (parsed.kind !== "ledger") {
    throw new InvalidTokenError("Only a ledger token has an RPC id; this one is of a sequence", token, 0);
  }
  return formatRpcId(parsed);
}

/** The cursor that a node returns when it has scanned up to and including this ledger. */
export function rpcCursorAfterLedger(ledger: number): string {
  return formatRpcId({ ledger, ...END_OF_LEDGER });
}
