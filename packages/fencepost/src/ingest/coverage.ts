// What of a chain is to be stored, and the tokens of its ledgers.
import { type FencingToken, ledgerToken, parseToken, type StreamEpoch } from "@fencepost/token";
import type { LedgerRange } from "../store/postgres/gaps.ts";
import type { StreamRow, Watch } from "../store/postgres/streams.ts";

/** Whether the stream has read this ledger for the contract: its events are to be stored then. */
export function covers(
  watch: Watch,
  { nextLedger }: Pick<StreamRow, "nextLedger">,
  { contractId, ledger }: { readonly contractId: string | null; readonly ledger: number },
): boolean {
  const isUnread = watch.earlier && ledger >= watch.earlier.nextLedger && ledger < watch.earlier.endLedger;
  return (
    watch.contractId === contractId &&
    ledger >= watch.startLedger &&
    ledger < (watch.nextLedger ?? nextLedger) &&
    !isUnread
  );
}

const AFTER_TRANSACTION_OP = 4_095;
const AFTER_ALL_TX = 1_048_575;

/** Fee events are an option of each node, and belong to no operation. */
export function isOfOperation(token: FencingToken): boolean {
  const position = parseToken(token);
  if (position.kind !== "ledger") return false;
  return position.tx >= 1 && position.tx < AFTER_ALL_TX && position.op < AFTER_TRANSACTION_OP;
}

/** The first and the last token that ledgers may have. */
export function tokensWithin(
  chain: StreamEpoch,
  { fromLedger, throughLedger }: LedgerRange,
): { readonly from: FencingToken; readonly through: FencingToken } {
  const last = { tx: AFTER_ALL_TX, op: AFTER_TRANSACTION_OP, event: 4_294_967_295 };
  return {
    from: ledgerToken({ ...chain, ledger: fromLedger, tx: 0, op: 0, event: 0 }),
    through: ledgerToken({ ...chain, ledger: throughLedger, ...last }),
  };
}
