export { IncomparableTokensError, InvalidTokenError } from "./errors.ts";
export { asCallerEventId, deriveEventId, type EventId, testEventId } from "./eventId.ts";
export { formatRpcId, parseRpcId, rpcCursorAfterLedger, rpcIdFromToken, tokenFromRpcId } from "./rpcId.ts";
export {
  asToken,
  compareTokens,
  type FencingToken,
  isToken,
  type LedgerPosition,
  ledgerToken,
  type ParsedToken,
  parseToken,
  type StreamEpoch,
  sequenceToken,
} from "./token.ts";
