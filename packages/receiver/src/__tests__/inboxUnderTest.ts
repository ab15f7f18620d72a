import type { EventId } from "@fencepost/token";
import { expect } from "vitest";
import { deferred } from "../deferred.ts";
import type { Inbox, InboxEntry } from "../index.ts";
import { ATTEMPT_TIME } from "./signedRequest.ts";

/** One kind of inbox, as the suite needs it. */
export interface InboxUnderTest<Tx extends Base, Base = Tx> {
  /** An empty inbox. */
  create(options?: { readonly waitMs: number }): Promise<Inbox<Tx, Base>>;
  /** Resolves when `count` transactions wait for another one. */
  untilWaiting(count: number): Promise<void>;
  /** True if one transaction runs at a time, whatever it handles. */
  readonly oneAtATime?: boolean;
  readonly transactional: boolean;
  /** True if events and fences expire by themselves, by a clock of the inbox's own. */
  readonly expires?: boolean;
}

/** An event whose handler is running, until it is told how to end. */
export async function startHandling<Tx extends Base, Base>(inbox: Inbox<Tx, Base>, id: string) {
  const running = deferred();
  const end = deferred();
  const done = inbox.transaction((tx) =>
    inbox.record(tx, entry(id), (found) => {
      expect(found).toEqual({ state: "absent" });
      running.resolve();
      return end.promise;
    }),
  );
  await running.promise;
  return { done, succeed: () => end.resolve(), fail: (error: Error) => end.reject(error) };
}

export function entry(eventId: string, consumer = "default"): InboxEntry {
  return {
    consumer,
    eventId: eventId as EventId,
    type: "pool.assets_locked",
    attemptTimestamp: ATTEMPT_TIME,
  };
}
