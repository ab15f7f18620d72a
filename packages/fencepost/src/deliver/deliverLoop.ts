import { setTimeout as sleep } from "node:timers/promises";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import type { Log } from "../observe/log.ts";
import { type Loop, type StepResult, startLoop } from "../runner/runner.ts";
import { decideClaimed, INTERRUPTED } from "../store/decideDelivery.ts";
import type {
  AttemptResult,
  ClaimedDelivery,
  DeliveryStore,
  FinishedAttempt,
  RecordedAttempt,
} from "../store/deliveryStore.ts";
import { createSender, type Sender } from "./httpSender.ts";
import { attemptHeaders } from "./sign.ts";

export interface DeliverOptions extends AddressRuleOptions {
  readonly store: Omit<DeliveryStore, "dispatch">;
  readonly log: Log;
  /** Total time for one attempt, in milliseconds; 20,000 unless given. */
  readonly timeoutMs?: number;
  /** How long a claim is held, in milliseconds: the time-out and 15,000 unless given. */
  readonly leaseMs?: number;
  /** Attempts under way at once, over all webhooks; 64 unless given. */
  readonly maxInFlight?: number;
  /** Attempts under way at once to one origin; 16 unless given. */
  readonly connectionsPerOrigin?: number;
  /** The longest wait for new work, in milliseconds; 500 unless given. */
  readonly pollMs?: number;
  /** Called for each outcome that was recorded, and each that came too late. */
  readonly onOutcome?: (outcome: AttemptResult["outcome"] | "stale") => void;
}

/** A claim must outlive its attempt by this much, in milliseconds: for recording, and for clocks that differ. */
const LEASE_MARGIN_MS = 5_000;
/** Outcomes recorded in one transaction, at the most. */
const MAX_OUTCOMES = 500;

/** A lease that could end while its request is still under way would let two workers send at once. */
export class LeaseTooShortError extends Error {
  override readonly name = "LeaseTooShortError";

  constructor(leaseMs: number, timeoutMs: number) {
    super(
      `The lease of ${leaseMs} ms does not cover the time-out of ${timeoutMs} ms and a margin of ` +
        `${LEASE_MARGIN_MS} ms. Raise leaseMs or lower timeoutMs.`,
    );
  }
}

/**
 * Claims what is due, puts each attempt on record just before its bytes leave, sends it, and records what came
 * of it. Any number may run at once. `stop()` gives back what was not attempted and waits for what was.
 */
export function startDeliverLoop(options: DeliverOptions): Loop {
  const {
    store,
    log,
    timeoutMs = 20_000,
    maxInFlight = 64,
    connectionsPerOrigin = 16,
    pollMs = 500,
  } = options;
  const leaseMs = options.leaseMs ?? timeoutMs + 15_000;
  if (leaseMs < timeoutMs + LEASE_MARGIN_MS) throw new LeaseTooShortError(leaseMs, timeoutMs);

  const sender = createSender({
    timeoutMs,
    connectionsPerOrigin,
    addressRules: readAddressRules(options),
  });
  const outcomes = outcomeRecorder(options);
  const lanes = new Map<string, Lane>();
  let held = 0;
  let stopped = false;

  function laneOf(url: string): Lane {
    const { origin } = new URL(url);
    const lane = lanes.get(origin) ?? { origin, busy: 0, waiting: [], pumping: false };
    lanes.set(origin, lane);
    return lane;
  }

  /** Hands a lane's claims to its free connections, no more at once than are free at that moment. */
  async function pump(lane: Lane): Promise<void> {
    if (lane.pumping) return;
    lane.pumping = true;
    try {
      while (!stopped && lane.waiting.length > 0 && lane.busy < connectionsPerOrigin) {
        const fence = lane.waiting[0]?.fence;
        const group = takeWhile(
          lane.waiting,
          connectionsPerOrigin - lane.busy,
          (claim) => claim.fence === fence,
        );
        await attempt(lane, group);
      }
    } finally {
      lane.pumping = false;
      if (lane.waiting.length === 0 && lane.busy === 0) lanes.delete(lane.origin);
    }
  }

  async function attempt(lane: Lane, group: readonly ClaimedDelivery[]): Promise<void> {
    const fence = group[0]?.fence ?? 0n;
    lane.busy += group.length;
    let recorded: readonly RecordedAttempt[] = [];
    try {
      const ids = group.map((claim) => claim.id);
      recorded = await store.recordAttempts(fence, ids, leaseMs);
      const missing = new Set<string>(ids);
      for (const { id } of recorded) missing.delete(id);
      if (missing.size > 0) {
        await store.release(
          fence,
          group.filter(({ id }) => missing.has(id)).map(({ id }) => id),
        );
      }
    } catch (error) {
      // Not on record, or nobody knows: nothing is sent, and the lease settles it.
      log.warn({ err: error, deliveries: group.length }, "attempts could not be recorded");
    }
    done(lane, group.length - recorded.length);
    for (const item of recorded) {
      void sendAttempt(sender, item).then(async (result) => {
        lane.busy--;
        void pump(lane);
        await outcomes.record(item.fence, { id: item.id, result });
        held--;
        loop.wake();
      });
    }
  }

  function done(lane: Lane, count: number): void {
    lane.busy -= count;
    held -= count;
  }

  async function step(): Promise<StepResult> {
    const free = maxInFlight - held;
    if (free <= 0) return "idle";
    const claims = await store.claim({ limit: free, perWebhook: connectionsPerOrigin * 2, leaseMs });
    if (claims.length === 0) return "idle";
    held += claims.length;
    for (const claim of claims) {
      if (decideClaimed(claim) === "settle_unknown") {
        void outcomes.record(claim.fence, { id: claim.id, result: INTERRUPTED }).then(() => {
          held--;
        });
      } else {
        laneOf(claim.url).waiting.push(claim);
      }
    }
    for (const lane of lanes.values()) void pump(lane);
    return claims.length === free ? "idle" : "progress";
  }

  const loop = startLoop({ name: "deliver", step, idleMs: pollMs, log });
  return {
    wake: () => loop.wake(),
    async stop() {
      stopped = true;
      await loop.stop();
      const waiting = [...lanes.values()].flatMap((lane) => lane.waiting.splice(0));
      held -= waiting.length;
      for (const fence of new Set(waiting.map((claim) => claim.fence))) {
        const ids = waiting.filter((claim) => claim.fence === fence).map((claim) => claim.id);
        await store
          .release(fence, ids)
          .catch((error: unknown) => log.warn({ err: error }, "claims could not be released"));
      }
      // Bounded: every attempt ends within its time-out, every outcome within its lease.
      while (held > 0) await sleep(10);
      await sender.close();
    },
  };

  /** Collects outcomes while a transaction runs, and records them together. */
  function outcomeRecorder({ onOutcome }: DeliverOptions): {
    record(fence: bigint, attempt: FinishedAttempt): Promise<void>;
  } {
    interface Waiting {
      readonly fence: bigint;
      readonly attempt: FinishedAttempt;
      readonly since: number;
      readonly resolve: () => void;
    }
    const queue: Waiting[] = [];
    let flushing = false;

    async function flush(): Promise<void> {
      if (flushing) return;
      flushing = true;
      while (queue.length > 0) {
        const fence = queue[0]?.fence ?? 0n;
        const batch = queue.filter((item) => item.fence === fence).slice(0, MAX_OUTCOMES);
        try {
          const report = await store.finish(
            fence,
            batch.map((item) => item.attempt),
          );
          const stale = new Set<string>(report.stale);
          for (const { attempt } of batch)
            onOutcome?.(stale.has(attempt.id) ? "stale" : attempt.result.outcome);
          for (const id of stale) log.warn({ delivery: id, fence }, "outcome dropped: the claim was lost");
          settle(batch);
        } catch (error) {
          log.warn({ err: error, outcomes: batch.length }, "outcomes could not be recorded");
          // After the lease somebody else settles them as unknown: keeping ours would only come too late.
          settle(batch.filter((item) => performance.now() - item.since > leaseMs));
          await sleep(200);
        }
      }
      flushing = false;
    }

    function settle(items: readonly Waiting[]): void {
      for (const item of items) {
        queue.splice(queue.indexOf(item), 1);
        item.resolve();
      }
    }

    return {
      record(fence, attempt) {
        return new Promise((resolve) => {
          queue.push({ fence, attempt, since: performance.now(), resolve });
          void flush();
        });
      },
    };
  }
}

/** The claims for one origin, and how many of its connections are in use. */
interface Lane {
  readonly origin: string;
  busy: number;
  readonly waiting: ClaimedDelivery[];
  pumping: boolean;
}

function sendAttempt(sender: Sender, attempt: RecordedAttempt): Promise<AttemptResult> {
  return sender.send({ url: attempt.url, headers: attemptHeaders(attempt), body: attempt.body });
}

function takeWhile<T>(items: T[], limit: number, keep: (item: T) => boolean): T[] {
  let count = 0;
  while (count < Math.min(limit, items.length) && keep(items[count] as T)) count++;
  return items.splice(0, count);
}
