import type { EventId, FencingToken } from "@fencepost/token";
import type { InboxState } from "./decide.ts";

/** What an inbox stores of an event; `(consumer, eventId)` is unique. */
export interface InboxEntry {
  readonly consumer: string;
  readonly eventId: EventId;
  readonly type: string;
  readonly fencingToken?: FencingToken;
}

/** Where a receiver keeps the events that it has handled. `Tx` is what a handler writes its effects with. */
export interface Inbox<Tx> {
  /**
   * True if the entry and the handler's effects are committed together. An inbox for which this is false narrows
   * the window in which an event can be handled twice; it does not close it.
   */
  readonly transactional: boolean;

  /** Runs `work` in a transaction of its own: committed when `work` resolves, undone when it rejects. */
  transaction<R>(work: (tx: Tx) => Promise<R>): Promise<R>;

  /**
   * Records the entry in `tx`, unless it is there, and runs `work` with what it found. When `work` rejects, the
   * entry and all that `work` wrote with `tx` are undone, even if `tx` goes on.
   *
   * While another transaction has the entry and is not finished, this waits: for `present` if that one commits,
   * for `absent` if it is undone.
   */
  record<R>(tx: Tx, entry: InboxEntry, work: (found: InboxState) => Promise<R>): Promise<R>;
}
