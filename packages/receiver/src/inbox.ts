import type { EventId, FencingToken } from "@fencepost/token";
import type { InboxState, ReceiptStatus, TokenOrder } from "./decide.ts";
import type { AskedEvent } from "./receiptQuery.ts";

/** What an inbox stores of an event; `(consumer, eventId)` is unique. */
export interface InboxEntry {
  readonly consumer: string;
  readonly eventId: EventId;
  readonly type: string;
  readonly fencingToken?: FencingToken;
  /** When the attempt was made, in Unix seconds of the sender's clock. */
  readonly attemptTimestamp: number;
}

/** What an inbox finds for an entry. */
export interface FoundEntry {
  readonly state: InboxState;
  /** The fence, if the event has one: attempts of this time and earlier are refused. In Unix seconds. */
  readonly fencedBefore?: number;
}

/** A receipt query, as an inbox answers it. */
export interface InboxQuery {
  readonly consumer: string;
  readonly events: readonly AskedEvent[];
  readonly now: Date;
  /** How old an attempt may be. */
  readonly toleranceSeconds: number;
}

/** What an inbox answers. */
export interface InboxAnswer {
  readonly statuses: ReadonlyMap<EventId, ReceiptStatus>;
  /** Nothing is forgotten of what was attempted at this time or later, by the sender's clock. */
  readonly retainedSince: Date | null;
}

/**
 * Where a receiver keeps the events that it has handled. `Tx` is what it opens a transaction with, and a handler
 * writes its effects with; `record` takes any `Base` that is in a transaction.
 */
export interface Inbox<Tx extends Base, Base = Tx> {
  /**
   * True if the entry and the handler's effects are committed together. An inbox for which this is false narrows
   * the window in which an event can be handled twice; it does not close it.
   */
  readonly transactional: boolean;

  /** Runs `work` in a transaction of its own: committed when `work` resolves, undone when it rejects. */
  transaction<R>(work: (tx: Tx) => Promise<R>): Promise<R>;

  /**
   * Takes the key of the entry until the transaction ends, records the entry in `tx`, unless it is there, and
   * runs `work` with what it found. When `work` rejects, the entry and all that `work` wrote with `tx` are
   * undone, even if `tx` goes on.
   *
   * While another transaction has the key, this waits: for `present` if that one commits, for `absent` if it is
   * undone.
   */
  record<R>(tx: Base, entry: InboxEntry, work: (found: FoundEntry) => Promise<R>): Promise<R>;

  /**
   * Answers by `decideQuery`, for each event on its own, and stores the fences before it resolves. It takes the
   * key of each event as `record` does, without waiting long: one of the two sees what the other did.
   */
  ask(query: InboxQuery): Promise<InboxAnswer>;

  /**
   * Forgets at most `limit` events of the consumer that were attempted before this time; says how many. A query is
   * told so from the same moment. Absent where events expire by themselves.
   */
  prune?(consumer: string, attemptedBefore: Date, limit: number): Promise<number>;

  /**
   * Remembers in `tx` the last token of a key, by `decideLatest`. Absent where it could be remembered without its
   * effect: the next attempt would be refused as stale, and the effect lost.
   */
  latest?(tx: Base, entry: LatestEntry): Promise<TokenOrder>;
}

/** A token that is to be the last one of a key. */
export interface LatestEntry {
  readonly consumer: string;
  readonly key: string;
  readonly token: FencingToken;
}

/** Seconds that a fence outlives the last moment at which an attempt before it could be verified. */
const FENCE_MARGIN_SECONDS = 3_600;

/**
 * Until when a fence is kept, in Unix seconds: from then on the attempts that it refuses fail verification, on
 * every machine whose clock is within the margin.
 */
export function fencedUntil(before: number, { now, toleranceSeconds }: InboxQuery): number {
  return Math.max(before, Math.ceil(now.getTime() / 1_000)) + toleranceSeconds + FENCE_MARGIN_SECONDS;
}

/** The key of an entry as a text. */
export function keyOf({ consumer, eventId }: Pick<InboxEntry, "consumer" | "eventId">): string {
  return JSON.stringify([consumer, eventId]);
}
