import { InboxBusyError } from "./errors.ts";
import { type FoundEntry, type Inbox, type InboxEntry, keyOf } from "./inbox.ts";
import { timeLimit } from "./timeLimit.ts";

/**
 * A transaction of an inbox that is not in one database with the effects. It holds nothing for a handler; what
 * was recorded in it is kept as handled when it ends well.
 */
export interface ClaimTransaction {
  readonly owner: string;
  readonly recorded: Map<string, InboxEntry>;
}

/** Where an inbox without transactions keeps its keys: claimed while a handler runs, and settled when it ended. */
export interface ClaimStore extends Pick<Inbox<ClaimTransaction>, "ask"> {
  /** Claims the key for `owner` if nobody has it and it is not handled; else says when to try again. */
  claim(entry: InboxEntry, owner: string): Promise<FoundEntry | { readonly again: Promise<void> }>;
  /** Gives up the claim: the event is handled, or is as if it had never come. */
  settle(entry: InboxEntry, owner: string, handled: boolean): Promise<void>;
}

/** The inbox on such a store. Throws InboxBusyError when a key is not given up within `waitMs`. */
export function claimingInbox({ claim, settle, ask }: ClaimStore, waitMs: number): Inbox<ClaimTransaction> {
  async function settleAll({ owner, recorded }: ClaimTransaction, handled: boolean): Promise<void> {
    const entries = [...recorded.values()];
    const ends = await Promise.allSettled(entries.map((entry) => settle(entry, owner, handled)));
    for (const end of ends) if (end.status === "rejected") throw end.reason;
  }

  /** Claims the key as soon as it is free. */
  async function claimed(entry: InboxEntry, owner: string): Promise<FoundEntry> {
    const limit = timeLimit(waitMs, () => new InboxBusyError(entry.eventId));
    try {
      for (;;) {
        const found = await claim(entry, owner);
        if (!("again" in found)) return found;
        await limit.wait(found.again);
      }
    } finally {
      limit.clear();
    }
  }

  return {
    transactional: false,

    async transaction(work) {
      const tx: ClaimTransaction = { owner: crypto.randomUUID(), recorded: new Map() };
      let result: Awaited<ReturnType<typeof work>>;
      try {
        result = await work(tx);
      } catch (error) {
        await settleAll(tx, false).catch(() => {}); // the claims lapse by themselves; the handler's error counts
        throw error;
      }
      await settleAll(tx, true);
      return result;
    },

    async record(tx, entry, work) {
      const key = keyOf(entry);
      const found: FoundEntry = tx.recorded.has(key) ? { state: "present" } : await claimed(entry, tx.owner);
      if (found.state === "present") return work(found);
      tx.recorded.set(key, entry);
      try {
        return await work(found);
      } catch (error) {
        tx.recorded.delete(key);
        await settle(entry, tx.owner, false).catch(() => {});
        throw error;
      }
    },

    ask,
  };
}
