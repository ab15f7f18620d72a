import { createHash } from "node:crypto";
import type { EventId } from "@fencepost/token";
import { buildMessage, type Message } from "./message/payload.ts";
import type { Log } from "./observe/log.ts";
import { type Loop, startLoop } from "./runner/runner.ts";
import type { DeliveryStore } from "./store/deliveryStore.ts";
import type { DisabledWebhook } from "./store/webhook.ts";

export interface UpkeepOptions {
  readonly store: Pick<DeliveryStore, "dispatch" | "prune" | "endDeleted" | "listUntold" | "markTold">;
  readonly log: Log;
  readonly now: () => Date;
  /** How long ended deliveries, and the bodies of messages, are kept, in milliseconds. */
  readonly retentionMs: number;
  /** The longest wait for new work, in milliseconds; 15,000 unless given. */
  readonly pollMs?: number;
  /** Deliveries were made. */
  readonly onDispatched?: () => void;
}

/** Rows of one step, at the most: none holds its locks for long. */
const PRUNED_AT_ONCE = 1_000;
const ENDED_AT_ONCE = 1_000;

/**
 * Tells which webhooks the system disabled, ends what deleted webhooks left, and removes what has been kept for long
 * enough. Any number may run at once.
 */
export function startUpkeepLoop(options: UpkeepOptions): Loop {
  const { store, log, now, retentionMs, pollMs = 15_000, onDispatched } = options;
  return startLoop({
    name: "upkeep",
    idleMs: pollMs,
    log,
    async step() {
      for (const webhook of await store.listUntold()) {
        const { created } = await store.dispatch(disabledMessage(webhook), {});
        await store.markTold(webhook);
        log.warn({ webhook: webhook.id, reason: webhook.reason }, "a webhook was disabled");
        if (created.length > 0) onDispatched?.();
      }
      const ended = await store.endDeleted(ENDED_AT_ONCE);
      const before = new Date(now().getTime() - retentionMs);
      const pruned = await store.prune({ before, limit: PRUNED_AT_ONCE });
      if (pruned.deliveries + pruned.messages > 0) log.debug(pruned, "pruned");
      return ended === ENDED_AT_ONCE || !pruned.done ? "progress" : "idle";
    },
  });
}

/** Its id depends on the webhook and the time alone: told twice, it makes one delivery. */
function disabledMessage({ id, reason, disabledAt }: DisabledWebhook): Message {
  const at = disabledAt.toISOString();
  const digest = createHash("sha256").update(`${id}\n${at}`).digest("hex");
  return buildMessage({
    eventId: `op_${digest.slice(0, 32)}` as EventId,
    type: "webhook.disabled",
    token: null,
    occurredAt: at,
    data: { webhook_id: id, reason, disabled_at: at },
  });
}
