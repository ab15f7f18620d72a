import { type ClaimStore, type ClaimTransaction, claimingInbox } from "./claimingInbox.ts";
import { decideQuery } from "./decide.ts";
import { type Deferred, deferred } from "./deferred.ts";
import { InboxFullError } from "./errors.ts";
import { fencedUntil, type Inbox, type InboxEntry, type InboxQuery, keyOf } from "./inbox.ts";
import { positiveInteger } from "./options.ts";
import type { AskedEvent } from "./receiptQuery.ts";

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
}): Inbox<ClaimTransaction> {
  const max = positiveInteger("max", options.max);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);
  const startedAt = Math.ceil((options.now?.() ?? new Date()).getTime() / 1_000);
  /** In the order of arrival: the first is the oldest. */
  const handled = new Map<string, Pick<InboxEntry, "consumer" | "attemptTimestamp">>();
  const running = new Map<string, Deferred>();
  const fences = new Map<string, { readonly before: number; readonly until: number }>();
  /** All attempts of what was forgotten are earlier than this. */
  let forgottenUntil = 0;

  function forget(key: string, until: number): void {
    handled.delete(key);
    forgottenUntil = Math.max(forgottenUntil, until);
  }

  function fenceOff(key: string, { eventId, before }: AskedEvent, query: InboxQuery): void {
    const fence = fences.get(key);
    if (!fence && fences.size >= max) throw new InboxFullError(max, eventId);
    const latest = Math.max(before, fence?.before ?? 0);
    fences.set(key, { before: latest, until: fencedUntil(latest, query) });
  }

  // Nothing is awaited in any of these: each is one step.
  const store: ClaimStore = {
    async claim(entry) {
      const key = keyOf(entry);
      const run = running.get(key);
      if (run) return { again: run.promise };
      const fence = fences.get(key);
      const fenced = fence && { fencedBefore: fence.before };
      if (handled.has(key)) return { state: "present", ...fenced };
      if (running.size >= max) throw new InboxFullError(max, entry.eventId);
      const [oldest] = handled;
      if (oldest && handled.size + running.size >= max) forget(oldest[0], oldest[1].attemptTimestamp + 1);
      running.set(key, deferred());
      return { state: "absent", ...fenced };
    },

    async settle(entry, _owner, isHandled) {
      const key = keyOf(entry);
      const { consumer, attemptTimestamp } = entry;
      if (isHandled) handled.set(key, { consumer, attemptTimestamp });
      const run = running.get(key);
      running.delete(key);
      run?.resolve();
    },

    async ask(query) {
      const { consumer, events, now, toleranceSeconds } = query;
      for (const [key, { until }] of fences) if (until * 1_000 < now.getTime()) fences.delete(key);
      const statuses = events.map((event) => {
        const key = keyOf({ consumer, ...event });
        const status = decideQuery(running.has(key) ? "running" : handled.has(key) ? "present" : "absent");
        if (status === "fenced") fenceOff(key, event, query);
        return [event.eventId, status] as const;
      });
      // What came before the start is unknown, and its attempt may have been ahead of this clock.
      const since = Math.max(forgottenUntil, startedAt + toleranceSeconds);
      return { statuses: new Map(statuses), retainedSince: new Date(since * 1_000) };
    },
  };

  return {
    ...claimingInbox(store, waitMs),

    async prune(consumer, attemptedBefore, limit) {
      const until = Math.ceil(attemptedBefore.getTime() / 1_000);
      let removed = 0;
      for (const [key, entry] of handled) {
        if (removed === limit) break;
        if (entry.consumer !== consumer || entry.attemptTimestamp >= until) continue;
        forget(key, until);
        removed++;
      }
      return removed;
    },
  };
}
