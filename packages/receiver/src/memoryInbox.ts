import { type Deferred, deferred } from "./deferred.ts";
import { InboxBusyError, InboxFullError } from "./errors.ts";
import type { Inbox, InboxEntry } from "./inbox.ts";
import { positiveInteger } from "./options.ts";
import { timeLimit } from "./timeLimit.ts";

/** A transaction of a memory inbox. It holds nothing for a handler. */
export interface MemoryTransaction {
  /** The keys recorded in it so far. */
  readonly recorded: Set<string>;
}

/**
 * An inbox in the memory of this process, for tests and for effects that may happen twice now and then.
 *
 * It is not transactional. It knows nothing of other processes, forgets everything at a restart, and a crash
 * between the effect and the answer lets the event be handled again: it narrows the window, it does not close it.
 *
 * `max` is how many events it remembers; beyond it the oldest is forgotten, so it must exceed the number of events
 * that arrive while the sender may still retry. A duplicate of an event that is being handled waits `waitMs`
 * (10 000 unless given) for it, then throws InboxBusyError. Throws InboxFullError while `max` handlers run.
 */
export function memoryInbox(options: {
  readonly max: number;
  readonly waitMs?: number;
}): Inbox<MemoryTransaction> {
  const max = positiveInteger("max", options.max);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);
  const handled = new Set<string>(); // in the order of arrival: the first is the oldest
  const running = new Map<string, Deferred>();

  function finish(key: string, outcome: "handled" | "undone"): void {
    if (outcome === "handled") handled.add(key);
    const run = running.get(key);
    running.delete(key);
    run?.resolve();
  }

  function claim(key: string, { eventId }: InboxEntry): void {
    if (running.size >= max) throw new InboxFullError(max, eventId);
    const [oldest] = handled;
    if (oldest !== undefined && handled.size + running.size >= max) handled.delete(oldest);
    running.set(key, deferred());
  }

  return {
    transactional: false,

    async transaction(work) {
      const tx: MemoryTransaction = { recorded: new Set() };
      try {
        const result = await work(tx);
        for (const key of tx.recorded) finish(key, "handled");
        return result;
      } catch (error) {
        for (const key of tx.recorded) finish(key, "undone");
        throw error;
      }
    },

    async record(tx, entry, work) {
      const key = JSON.stringify([entry.consumer, entry.eventId]);
      if (tx.recorded.has(key)) return work("present");
      const limit = timeLimit(waitMs, () => new InboxBusyError(entry.eventId));
      try {
        // After each end another duplicate may have been first. Nothing may be awaited from here to the claim.
        for (let run = running.get(key); run; run = running.get(key)) await limit.wait(run.promise);
      } finally {
        limit.clear();
      }
      if (handled.has(key)) return work("present");
      claim(key, entry);
      tx.recorded.add(key);
      try {
        return await work("absent");
      } catch (error) {
        tx.recorded.delete(key);
        finish(key, "undone");
        throw error;
      }
    },
  };
}
