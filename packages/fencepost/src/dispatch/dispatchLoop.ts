import type { Log } from "../observe/log.ts";
import { type Loop, startLoop } from "../runner/runner.ts";
import type { DeliveryStore, FanOutReport } from "../store/deliveryStore.ts";

export interface DispatchLoopOptions {
  readonly store: Pick<DeliveryStore, "fanOut" | "catchUp">;
  readonly log: Log;
  /** The longest wait for new messages, in milliseconds; 500 unless given. */
  readonly pollMs?: number;
  readonly onDispatched?: (report: FanOutReport) => void;
}

/** Messages of one transaction, at the most, and webhooks of one message in it. */
const BATCH = { messages: 100, webhooks: 200 } as const;
const CATCH_UP_MESSAGES = 1_000;

/** Turns messages of the outbox into deliveries. Any number may run at once. */
export function startDispatchLoop({ store, log, pollMs = 500, onDispatched }: DispatchLoopOptions): Loop {
  return startLoop({
    name: "dispatch",
    idleMs: pollMs,
    log,
    async step() {
      const offered = await store.fanOut(BATCH);
      const caughtUp = await store.catchUp(CATCH_UP_MESSAGES);
      const report = {
        messages: offered.messages + caughtUp.messages,
        deliveries: offered.deliveries + caughtUp.deliveries,
      };
      if (report.messages === 0) return "idle";
      onDispatched?.(report);
      return "progress";
    },
  });
}
