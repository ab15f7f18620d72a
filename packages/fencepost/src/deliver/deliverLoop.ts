import { setTimeout as sleep } from "node:timers/promises";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import type { Log } from "../observe/log.ts";
import { type Loop, type StepResult, startLoop } from "../runner/runner.ts";
import { decideClaimed, INTERRUPTED } from "../store/decideDelivery.ts";
import type {
  AttemptResult,
  ClaimedDelivery,
  DeliveryId,
  DeliveryStore,
  RecordedAttempt,
} from "../store/deliveryStore.ts";
import { createSender } from "./httpSender.ts";
import { createOutcomeRecorder } from "./outcomeRecorder.ts";
import { attemptHeaders } from "./sign.ts";

export interface DeliverOptions extends AddressRuleOptions {
  readonly store: Pick<DeliveryStore, "claim" | "recordAttempts" | "finish" | "release">;
  readonly log: Log;
  /** Total time for one attempt, in milliseconds; 20,000 unless given. */
  readonly timeoutMs?: number;
  /** How long a claim is held, in milliseconds: the time-out and 15,000 unless given. */
  readonly leaseMs?: number;
  /**
   * Deliveries held at once, over all webhooks; 256 unless given. An origin that hangs takes twice its connections
   * of them, and from so many on the others wait for its time-outs.
   */
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

const NOT_RECORDED: AttemptResult = {
  outcome: "not_sent",
  status: null,
  error: "The attempt could not be put on record, so nothing was sent.",
  response: null,
  retryAfterMs: null,
};

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

/** The claims for one origin, and how many of its connections are in use. */
interface Lane {
  readonly origin: string;
  readonly waiting: ClaimedDelivery[];
  busy: number;
  pumping: boolean;
}

/**
 * Claims what is due, puts each attempt on record just before its bytes leave, sends it, and records what came
 * of it. Any number may run at once. `stop()` gives back what was not attempted and waits for what was.
 *
 * Each origin has a lane: as many attempts as it has connections, and no more claims than that waiting behind
 * them. So one that hangs fills its lane and nothing else.
 */
export function startDeliverLoop(options: DeliverOptions): Loop {
  const {
    store,
    log,
    timeoutMs = 20_000,
    maxInFlight = 256,
    connectionsPerOrigin = 16,
    pollMs = 500,
    onOutcome,
  } = options;
  const leaseMs = options.leaseMs ?? timeoutMs + 15_000;
  if (leaseMs < timeoutMs + LEASE_MARGIN_MS) throw new LeaseTooShortError(leaseMs, timeoutMs);

  const sender = createSender({
    timeoutMs,
    connectionsPerOrigin,
    addressRules: readAddressRules(options),
  });
  const outcomes = createOutcomeRecorder({ store, log, leaseMs, onOutcome });
  const lanes = new Map<string, Lane>();
  /** Claims that wait, are attempted, or have an outcome that is not on record yet. */
  let held = 0;
  let stopped = false;

  async function step(): Promise<StepResult> {
    const limit = maxInFlight - held;
    if (limit <= 0) return "idle";
    const skipOrigins = [...lanes.values()]
      .filter((lane) => lane.waiting.length > 0)
      .map(({ origin }) => origin);
    const claims = await store.claim({ limit, perOrigin: connectionsPerOrigin, skipOrigins, leaseMs });
    held += claims.length;
    for (const claim of claims) {
      if (decideClaimed(claim) === "settle_unknown") void conclude(claim.fence, claim.id, INTERRUPTED);
      else laneOf(claim.origin).waiting.push(claim);
    }
    for (const lane of lanes.values()) void pump(lane);
    return claims.length === 0 ? "idle" : "progress";
  }

  function laneOf(origin: string): Lane {
    const lane = lanes.get(origin) ?? { origin, waiting: [], busy: 0, pumping: false };
    lanes.set(origin, lane);
    return lane;
  }

  /** Hands a lane's claims to its free connections, no more at once than are free at that moment. */
  async function pump(lane: Lane): Promise<void> {
    if (lane.pumping) return;
    lane.pumping = true;
    while (!stopped && lane.waiting.length > 0 && lane.busy < connectionsPerOrigin) {
      const { fence, ids } = takeGroup(lane.waiting, connectionsPerOrigin - lane.busy);
      await attempt(lane, fence, ids);
    }
    lane.pumping = false;
    if (lane.waiting.length === 0 && lane.busy === 0) lanes.delete(lane.origin);
  }

  async function attempt(lane: Lane, fence: bigint, ids: readonly DeliveryId[]): Promise<void> {
    lane.busy += ids.length;
    let recorded: readonly RecordedAttempt[] = [];
    try {
      recorded = await store.recordAttempts(fence, ids, leaseMs);
    } catch (error) {
      log.warn({ err: error, deliveries: ids.length }, "attempts could not be recorded");
      // Perhaps they are on record, and only the answer was lost.
      await Promise.all(ids.map((id) => outcomes.record(fence, { id, result: NOT_RECORDED })));
    }
    for (const item of recorded) void send(lane, item);
    const sent = new Set(recorded.map(({ id }) => id));
    const refused = ids.filter((id) => !sent.has(id));
    if (refused.length > 0) await release(fence, refused);
    lane.busy -= refused.length;
    held -= refused.length;
  }

  async function send(lane: Lane, item: RecordedAttempt): Promise<void> {
    const result = await sender.send({ url: item.url, headers: attemptHeaders(item), body: item.body });
    lane.busy--;
    void pump(lane);
    await conclude(item.fence, item.id, result);
  }

  async function conclude(fence: bigint, id: DeliveryId, result: AttemptResult): Promise<void> {
    await outcomes.record(fence, { id, result });
    held--;
    loop.wake();
  }

  async function release(fence: bigint, ids: readonly DeliveryId[]): Promise<void> {
    try {
      await store.release(fence, ids);
    } catch (error) {
      log.warn({ err: error, deliveries: ids.length }, "claims could not be released");
    }
  }

  const loop = startLoop({ name: "deliver", step, idleMs: pollMs, log });
  return {
    wake: () => loop.wake(),
    async stop() {
      stopped = true;
      await loop.stop();
      const waiting = [...lanes.values()].flatMap((lane) => lane.waiting.splice(0));
      held -= waiting.length;
      waiting.sort((a, b) => Number(a.fence - b.fence));
      while (waiting.length > 0) {
        const { fence, ids } = takeGroup(waiting, waiting.length);
        await release(fence, ids);
      }
      // Bounded: every attempt ends within its time-out, every outcome within its lease.
      while (held > 0) await sleep(10);
      await sender.close();
    },
  };
}

/** Takes claims of one fence from the front, up to `limit`. */
function takeGroup(
  waiting: ClaimedDelivery[],
  limit: number,
): { readonly fence: bigint; readonly ids: readonly DeliveryId[] } {
  const fence = waiting[0]?.fence ?? 0n;
  const end = waiting.findIndex((claim, i) => i === limit || claim.fence !== fence);
  return { fence, ids: waiting.splice(0, end === -1 ? waiting.length : end).map(({ id }) => id) };
}
