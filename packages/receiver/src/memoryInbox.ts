import { decideQuery } from "./decide.ts";
import { type Deferred, deferred } from "./deferred.ts";
import { InboxBusyError, InboxFullError } from "./errors.ts";
import { type FoundEntry, fencedUntil, type Inbox, type InboxEntry } from "./inbox.ts";
import { positiveInteger } from "./options.ts";
import { timeLimit } from "./timeLimit.ts";

/** A transaction of a memory inbox. It holds nothing for a handler. */
export interface MemoryTransaction {
  /** The keys recorded in it so far, with the times of their attempts. */
  readonly recorded: Map<string, number>;
}

/**
 * An inbox in the memory of this process, for tests and for effects that may happen twice now and then.
 *
 * It is not transactional. It knows nothing of other processes, forgets everything at a restart, and a crash
 * between the effect and the answer lets the event be handled again: it narrows the window, it does not close it.
 * A receipt query is told that nothing is known of what was attempted before the start of the process (`now`).
 *
 * `max` is how many events it remembers; beyond it the oldest is forgotten, so it must exceed the number of events
 * that arrive while the sender may still retry. A duplicate of an event that is being handled waits `waitMs`
 * (10 000 unless given) for it, then throws InboxBusyError. Throws InboxFullError while `max` handlers run or `max`
 * fences stand.
 */
export function memoryInbox(options: {
  readonly max: number;
  readonly waitMs?: number;
  /** The clock. */
  readonly now?: () => Date;
}): Inbox<MemoryTransaction> {
  const max = positiveInteger("max", options.max);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);
  const startedAt = Math.ceil((options.now?.() ?? new Date()).getTime() / 1_000);
  const handled = new Map<string, number>(); // in the order of arrival: the first is the oldest
  const running = new Map<string, Deferred>();
  const fences = new Map<string, { readonly before: number; readonly until: number }>();
  /** All attempts of what was forgotten are earlier than this. */
  let forgottenUntil = 0;

  function finish(key: string, attemptTimestamp?: number): void {
    if (attemptTimestamp !== undefined) handled.set(key, attemptTimestamp);
    const run = running.get(key);
    running.delete(key);
    run?.resolve();
  }

  function forget(key: string, attemptTimestamp: number): void {
    handled.delete(key);
    forgottenUntil = Math.max(forgottenUntil, attemptTimestamp + 1);
  }

  function claim(key: string, { eventId }: InboxEntry): FoundEntry {
    if (running.size >= max) throw new InboxFullError(max, eventId);
    const [oldest] = handled;
    if (oldest !== undefined && handled.size + running.size >= max) forget(...oldest);
    running.set(key, deferred());
    const fence = fences.get(key);
    return { state: "absent", ...(fence && { fencedBefore: fence.before }) };
  }

  return {
    transactional: false,

    async transaction(work) {
      const tx: MemoryTransaction = { recorded: new Map() };
      try {
        const result = await work(tx);
        for (const [key, attemptTimestamp] of tx.recorded) finish(key, attemptTimestamp);
        return result;
      } catch (error) {
        for (const [key] of tx.recorded) finish(key);
        throw error;
      }
    },

    async record(tx, entry, work) {
      const key = keyOf(entry);
      if (tx.recorded.has(key)) return work({ state: "present" });
      const limit = timeLimit(waitMs, () => new InboxBusyError(entry.eventId));
      try {
        // After each end another duplicate may have been first. Nothing may be awaited from here to the claim.
        for (let run = running.get(key); run; run = running.get(key)) await limit.wait(run.promise);
      } finally {
        limit.clear();
      }
      if (handled.has(key)) return work({ state: "present" });
      const found = claim(key, entry);
      tx.recorded.set(key, entry.attemptTimestamp);
      try {
        return await work(found);
      } catch (error) {
        tx.recorded.delete(key);
        finish(key);
        throw error;
      }
    },

    async ask(query) {
      const { consumer, events, now, toleranceSeconds } = query;
      for (const [key, { until }] of fences) if (until * 1_000 < now.getTime()) fences.delete(key);
      // Nothing may be awaited between finding and fencing.
      const statuses = events.map(({ eventId, before }) => {
        const key = keyOf({ consumer, eventId });
        const found = running.has(key) ? "running" : handled.has(key) ? "present" : "absent";
        const status = decideQuery(found);
        if (status === "fenced") {
          const fence = fences.get(key);
          if (!fence && fences.size >= max) throw new InboxFullError(max, eventId);
          const latest = Math.max(before, fence?.before ?? 0);
          fences.set(key, { before: latest, until: fencedUntil(latest, query) });
        }
        return [eventId, status] as const;
      });
      // What came before the start is unknown, and its attempt may have been ahead of this clock.
      const since = Math.max(forgottenUntil, startedAt + toleranceSeconds);
      return { statuses: new Map(statuses), retainedSince: new Date(since * 1_000) };
    },
  };
}

function keyOf({ consumer, eventId }: Pick<InboxEntry, "consumer" | "eventId">): string {
  return JSON.stringify([consumer, eventId]);
}
