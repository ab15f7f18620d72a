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

/** The newest and oldest ledger a source has, with their close times (unix seconds) where it tells them. */
export interface SourceHead {
  readonly latestLedger: number;
  readonly oldestLedger: number;
  readonly latestClosedAt?: number;
  readonly oldestClosedAt?: number;
}

/** A closed ledger, by what tells two lives of a chain apart: after a reset the numbers recur, these do not. */
export interface LedgerRef {
  readonly ledger: number;
  /** 64 hex digits; null where the source does not tell it. */
  readonly hash: string | null;
  /** Unix seconds. */
  readonly closedAt: number;
}

export interface WindowRequest {
  /** First ledger wanted. */
  readonly fromLedger: number;
  /** Last ledger wanted, inclusive; the newest one when it is left out. */
  readonly throughLedger?: number;
  readonly contractIds: readonly string[];
  /** Contracts that are wanted only from a ledger on; the others from the first ledger of the window. */
  readonly startLedgers?: ReadonlyMap<string, number>;
  /** A ledger of the chain that is read: a source gives no window of a chain that has another one in its place. */
  readonly anchor?: LedgerRef;
}

/**
 * An answer about closed ledgers. `window`: every matching event of `fromLedger` to `throughLedger`, in chain
 * order, complete for every contract asked for. `idle`: nothing new is closed. `behind`: this source has not
 * seen the ledger before the wanted one, and must not be believed. `gap`: it no longer has the wanted ledger.
 * `reset`: its chain is another one than that of the anchor; `found` contradicts it.
 */
export type SourceWindow<Event extends SourceEvent = SourceEvent> =
  | ({
      readonly kind: "window";
      readonly fromLedger: number;
      readonly throughLedger: number;
      readonly events: readonly Event[];
    } & SourceHead)
  | ({ readonly kind: "idle" } & SourceHead)
  | ({ readonly kind: "behind" } & SourceHead)
  | ({ readonly kind: "gap"; readonly fromLedger: number; readonly throughLedger: number } & SourceHead)
  | { readonly kind: "reset"; readonly anchor: LedgerRef; readonly found: LedgerRef };

/** What reads windows. Its events may have more to them than those of a source. */
export interface WindowReader<Event extends SourceEvent = SourceEvent> {
  /** Windows that may be asked for at once; 1 unless it says more. */
  readonly windowsAtOnce?: number;
  /** Events that one answer to it holds: windows that are read ahead are to have about as many. */
  readonly eventsAtOnce?: number;
  /** Ledgers that a window of it has at the most; 10,000 unless given. */
  readonly ledgersAtOnce?: number;
  /** Reads one window. Throws where the source cannot answer; the caller asks again later. */
  window(request: WindowRequest, signal: AbortSignal): Promise<SourceWindow<Event>>;
}

/** Where events come from. A source answers about ranges of closed ledgers and keeps no position of its own. */
export interface Source extends WindowReader {
  readonly chain: StreamEpoch;
  readonly passphrase: string;
  /** What it is called where something is recorded of it, without secrets. */
  readonly name?: string;
  /** How long to wait before asking again when nothing is new, in milliseconds. */
  readonly pollMs: number;
  /**
   * Checks that the source is the right network, and still the chain of the anchor, and can be used. Throws a named
   * error where it cannot.
   */
  check(signal: AbortSignal, anchor?: LedgerRef): Promise<SourceHead>;
  /** What a closed ledger is; null where the source does not have it, or cannot tell. Throws as `window` does. */
  ledger?(sequence: number, signal: AbortSignal): Promise<LedgerRef | null>;
  /** Its providers, each as a source that asks that one alone; none where there is only one. */
  readonly providers?: readonly Source[];
  /** Tells the listener when one of several nodes is set aside, those that are at once, and when it is asked again. */
  observe?(listener: (event: NodeEvent) => void): void;
}

/** Why a node is not asked for a while. */
export type AsideReason =
  | "failing"
  | "behind"
  | "went_back"
  | "stale"
  | "other_chain"
  | "refused"
  | "no_classic_events";

/** A node that is set aside for so many milliseconds, or is asked again. `node` is its origin, without secrets. */
export type NodeEvent =
  | {
      readonly kind: "aside";
      readonly node: string;
      readonly reason: AsideReason;
      readonly detail: string;
      readonly forMs: number;
    }
  | { readonly kind: "back"; readonly node: string };
