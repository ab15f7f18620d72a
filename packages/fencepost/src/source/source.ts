import type { StreamEpoch } from "@fencepost/token";

/** One contract event as the source gives it: topics and value are base64 XDR, not decoded. */
export interface SourceEvent {
  /** RPC event id: `%019d-%010d` of TOID and event index. */
  readonly id: string;
  readonly type: "contract" | "system";
  readonly ledger: number;
  /** ISO time of the ledger's close, as the source writes it. */
  readonly closedAt: string;
  /** null where the event belongs to no contract. */
  readonly contractId: string | null;
  readonly txHash: string;
  readonly topics: readonly string[];
  readonly value: string;
}

/** The newest and oldest ledger a source has. */
export interface SourceHead {
  readonly latestLedger: number;
  readonly oldestLedger: number;
}

export interface WindowRequest {
  /** First ledger wanted. */
  readonly fromLedger: number;
  /** Last ledger wanted, inclusive; the newest one when it is left out. */
  readonly throughLedger?: number;
  readonly contractIds: readonly string[];
}

/**
 * An answer about closed ledgers. `window`: every matching event of `fromLedger` to `throughLedger`, in chain
 * order, complete for every contract asked for. `idle`: nothing new is closed. `behind`: this source has not
 * seen the ledger before the wanted one, and must not be believed. `gap`: it no longer has the wanted ledger.
 */
export type SourceWindow =
  | ({
      readonly kind: "window";
      readonly fromLedger: number;
      readonly throughLedger: number;
      readonly events: readonly SourceEvent[];
    } & SourceHead)
  | ({ readonly kind: "idle" } & SourceHead)
  | ({ readonly kind: "behind" } & SourceHead)
  | ({ readonly kind: "gap"; readonly fromLedger: number; readonly throughLedger: number } & SourceHead);

/** Where events come from. A source answers about ranges of closed ledgers and keeps no position of its own. */
export interface Source {
  readonly chain: StreamEpoch;
  readonly passphrase: string;
  /** How long to wait before asking again when nothing is new, in milliseconds. */
  readonly pollMs: number;
  /** Checks that the source is the right network and can be used. Throws a named error where it cannot. */
  check(signal: AbortSignal): Promise<SourceHead>;
  /** Reads one window. Throws where the source cannot answer; the caller asks again later. */
  window(request: WindowRequest, signal: AbortSignal): Promise<SourceWindow>;
}
