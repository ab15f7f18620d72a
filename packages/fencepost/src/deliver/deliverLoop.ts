import { setTimeout as sleep } from "node:timers/promises";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import type { Log } from "../observe/log.ts";
import { type Loop, type StepResult, startLoop } from "../runner/runner.ts";
import { decideClaimed, decideOutcome, INTERRUPTED } from "../store/decideDelivery.ts";
import type {
  AttemptResult,
  ClaimedDelivery,
  DeliveryId,
  DeliveryStore,
  NextStep,
  RecordedAttempt,
} from "../store/deliveryStore.ts";
import { settleDoubts } from "./doubts.ts";
import { createSender } from "./httpSender.ts";
import { createOutcomeRecorder } from "./outcomeRecorder.ts";
import { MAX_ASKED } from "./receiptQuery.ts";
import { attemptHeaders } from "./sign.ts";

export interface DeliverOptions extends AddressRuleOptions {
  readonly store: Pick<
    DeliveryStore,
    "claim" | "recordAttempts" | "review" | "finish" | "settle" | "extend" | "release"
  >;
  readonly log: Log;
  /** Total time for one attempt, in milliseconds; 20,000 unless given. */
  readonly timeoutMs?: number;
  /** How long a claim is held, in milliseconds: the time-out and 15,000 unless given. */
  readonly leaseMs?: number;
  /**
   * Deliveries that the loop holds at once, over all webhooks; 2,048 unless given. An origin that hangs takes up to
   * 11 times its connections of them, and from so many on the others wait for its time-outs.
   */
  readonly maxInFlight?: number;
  /** Requests under way at once to one origin; 16 unless given. */
  readonly connectionsPerOrigin?: number;
  /** The longest wait for new work, in milliseconds; 500 unless given. */
  readonly pollMs?: number;
  /** In [0, 1): spreads the delays between attempts; Math.random unless given. */
  readonly random?: () => number;
  /** Called for each outcome that was recorded, and each that came too late. */
  readonly onOutcome?: (outcome: AttemptResult["outcome"] | "stale") => void;
}

export interface Deliverer extends Loop {
  /** Begins to claim what is due. */
  start(): void;
  /**
   * Sends one delivery now, due or not, also where {@link start} was not called; a delivery in doubt is asked about.
   * True once what came of it is on record. False where it could not be claimed or not be put on record: somebody
   * holds it, it has ended, its webhook is not active or at its limit, or another blocks it.
   */
  attempt(id: DeliveryId): Promise<boolean>;
}

/** A claim must outlive its attempt by this much, in milliseconds: for recording, and for clocks that differ. */
const LEASE_MARGIN_MS = 5_000;

/** Under a backlog, how long connections that came free wait for others to share one statement, in milliseconds. */
const GATHER_MS = 5;
/** Deliveries of one claim, at the most. */
const MAX_CLAIMED = 256;
/** Claims that one statement brings for each connection to an origin, so that it need not run for every few. */
const WAITING_PER_CONNECTION = 8;

const NOT_RECORDED: AttemptResult = {
  outcome: "not_sent",
  status: null,
  error: "The attempt could not be put on record, so nothing was sent.",
  response: null,
  retryAfterMs: null,
};
/** Whatever the schedule says: the endpoint had no part in it. */
const AFTER_NOT_RECORDED: NextStep = { state: "pending", delayMs: 1_000 };

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

/** A claim that waits, is under way, or has an outcome that is not on record yet. */
interface Held extends ClaimedDelivery {
  readonly onEnd: ((recorded: boolean) => void) | undefined;
}

/** The claims for one origin, and how many of its connections are in use. */
interface Lane {
  readonly origin: string;
  readonly waiting: Held[];
  busy: number;
  /** A group is being put on record. */
  recording: boolean;
  /** Its free connections wait for more of them until this ends, and then have gathered. */
  gathering: NodeJS.Timeout | undefined;
  hasGathered: boolean;
}

/** As {@link createDeliverer}, started. */
export function startDeliverLoop(options: DeliverOptions): Deliverer {
  const deliverer = createDeliverer(options);
  deliverer.start();
  return deliverer;
}

/**
 * Claims what is due, puts each attempt on record just before its bytes leave, sends it, and records what came
 * of it. Any number may run at once. `stop()` gives back what was not attempted and waits for what was.
 *
 * Each origin has a lane: as many requests as it has connections, and a few claims for each of them waiting behind.
 * So one that hangs fills its lane and nothing else. While a claim is held its lease is lengthened.
 */
export function createDeliverer(options: DeliverOptions): Deliverer {
  const {
    store,
    log,
    timeoutMs = 20_000,
    maxInFlight = 2_048,
    connectionsPerOrigin = 16,
    pollMs = 500,
    random = Math.random,
    onOutcome,
  } = options;
  const leaseMs = options.leaseMs ?? timeoutMs + 15_000;
  if (leaseMs < timeoutMs + LEASE_MARGIN_MS) throw new LeaseTooShortError(leaseMs, timeoutMs);

  const waitingPerOrigin = WAITING_PER_CONNECTION * connectionsPerOrigin;
  const sender = createSender({
    timeoutMs,
    connectionsPerOrigin,
    addressRules: readAddressRules(options),
  });
  const outcomes = createOutcomeRecorder({ store, log, leaseMs, onOutcome, moreToCome: () => sending > 0 });
  const lanes = new Map<string, Lane>();
  const held = new Set<Held>();
  /** Claims of one delivery that are under way. */
  let claiming = 0;
  /** Requests that are under way. */
  let sending = 0;
  let loop: Loop | undefined;
  let heartbeat: NodeJS.Timeout | undefined;
  let stopped = false;

  async function step(): Promise<StepResult> {
    const limit = maxInFlight - held.size;
    if (limit <= 0) return "idle";
    const skipOrigins = [...lanes.values()].filter(isFull).map(({ origin }) => origin);
    const options = {
      limit: Math.min(limit, MAX_CLAIMED),
      perOrigin: waitingPerOrigin,
      skipOrigins,
      leaseMs,
    };
    const claims = await store.claim(options);
    take(claims);
    return claims.length === 0 ? "idle" : "progress";
  }

  /** Enough waits for its connections. */
  function isFull({ waiting }: Lane): boolean {
    return waiting.length > waitingPerOrigin / 4;
  }

  /** Holds what one claim brought. */
  function take(claims: readonly ClaimedDelivery[], onEnd?: Held["onEnd"]): void {
    const interrupted: Held[] = [];
    for (const claim of claims) {
      const item: Held = { ...claim, onEnd };
      held.add(item);
      if (decideClaimed(claim) === "settle_unknown") interrupted.push(item);
      else laneOf(claim.origin).waiting.push(item);
    }
    if (interrupted.length > 0) void settleUnknown(interrupted);
    for (const lane of lanes.values()) void pump(lane);
    keepLeases();
  }

  function laneOf(origin: string): Lane {
    const lane: Lane = lanes.get(origin) ?? {
      origin,
      waiting: [],
      busy: 0,
      recording: false,
      gathering: undefined,
      hasGathered: false,
    };
    lanes.set(origin, lane);
    return lane;
  }

  /** Hands a lane's claims to its free connections, no more at once than are free at that moment. */
  async function pump(lane: Lane): Promise<void> {
    if (lane.recording) return;
    lane.recording = true;
    while (!stopped && lane.waiting.length > 0 && lane.busy < connectionsPerOrigin && isWorthwhile(lane)) {
      const wasFull = isFull(lane);
      const group = takeGroup(lane.waiting, connectionsPerOrigin - lane.busy);
      if (wasFull && !isFull(lane)) loop?.wake();
      if (group[0]?.asking) void ask(lane, group);
      else await attempt(lane, group);
    }
    lane.recording = false;
    if (lane.waiting.length === 0 && lane.busy === 0) {
      clearTimeout(lane.gathering); // the origin may have another lane by then
      lanes.delete(lane.origin);
    }
  }

  /**
   * Where more waits than connections are free, these gather first: half of all, or what comes free within
   * {@link GATHER_MS}. Most of what a small group costs is its statement.
   */
  function isWorthwhile(lane: Lane): boolean {
    const free = connectionsPerOrigin - lane.busy;
    if (!lane.hasGathered && free < Math.min(lane.waiting.length, connectionsPerOrigin / 2)) {
      lane.gathering ??= setTimeout(() => {
        lane.hasGathered = true;
        void pump(lane);
      }, GATHER_MS);
      return false;
    }
    clearTimeout(lane.gathering);
    lane.gathering = undefined;
    lane.hasGathered = false;
    return true;
  }

  async function attempt(lane: Lane, group: readonly Held[]): Promise<void> {
    lane.busy += group.length;
    const { fence, ids } = claimOf(group);
    let recorded: readonly RecordedAttempt[] = [];
    try {
      recorded = await store.recordAttempts(fence, ids, leaseMs);
    } catch (error) {
      log.warn({ err: error, deliveries: ids.length }, "attempts could not be recorded");
      // Perhaps they are on record, and only the answer was lost.
      lane.busy -= group.length;
      await Promise.all(group.map((item) => conclude(item, NOT_RECORDED, AFTER_NOT_RECORDED)));
      return;
    }
    const attempts = new Map(recorded.map((item) => [item.id, item]));
    const refused: Held[] = [];
    for (const item of group) {
      const found = attempts.get(item.id);
      if (found) void send(lane, item, found);
      else refused.push(item);
    }
    lane.busy -= refused.length;
    await release(refused);
  }

  async function send(lane: Lane, item: Held, recorded: RecordedAttempt): Promise<void> {
    const { url, body, tries, policy } = recorded;
    sending++;
    const { fenced, ...result } = await sender.send({ url, headers: attemptHeaders(recorded), body });
    sending--;
    lane.busy--;
    void pump(lane);
    await conclude(item, result, decideOutcome({ ...result, fenced }, tries, policy, random()));
  }

  async function ask(lane: Lane, group: readonly Held[]): Promise<void> {
    lane.busy++;
    const { fence, ids } = claimOf(group);
    const settled = await settleDoubts({ store, sender, log, random }, fence, ids);
    lane.busy--;
    for (const item of group) drop(item, settled.has(item.id));
    void pump(lane);
  }

  /** Claims whose workers died after they had put an attempt on record. */
  async function settleUnknown(group: readonly Held[]): Promise<void> {
    const { fence, ids } = claimOf(group);
    const reviews = await store.review(fence, ids).catch((error: unknown) => {
      log.warn({ err: error, deliveries: ids.length }, "interrupted attempts could not be read");
      return [];
    });
    const known = new Map(reviews.map((review) => [review.id, review]));
    for (const item of group) {
      const review = known.get(item.id);
      // Lost, or out of reach: then it is settled by whoever claims it when its lease has ended.
      if (!review) drop(item, false);
      else
        void conclude(item, INTERRUPTED, decideOutcome(INTERRUPTED, review.tries, review.policy, random()));
    }
  }

  async function conclude(item: Held, result: AttemptResult, next: NextStep): Promise<void> {
    drop(item, await outcomes.record(item.fence, { id: item.id, result, next }));
  }

  function drop(item: Held, recorded: boolean): void {
    const hadRoom = held.size < maxInFlight;
    held.delete(item);
    item.onEnd?.(recorded);
    // There may be more for it: a strict webhook, for one, has its next delivery due only now.
    if (!hadRoom || !lanes.get(item.origin)?.waiting.length) loop?.wake();
  }

  /** Gives back claims of one fence. */
  async function release(group: readonly Held[]): Promise<void> {
    if (group.length === 0) return;
    const { fence, ids } = claimOf(group);
    try {
      await store.release(fence, ids);
    } catch (error) {
      log.warn({ err: error, deliveries: ids.length }, "claims could not be released");
    }
    for (const item of group) drop(item, false);
  }

  /** Lengthens the leases three times in each, for as long as anything is held. */
  function keepLeases(): void {
    if (heartbeat || held.size === 0) return;
    heartbeat = setTimeout(async () => {
      for (const group of groupsOf([...held])) await extend(group);
      heartbeat = undefined;
      keepLeases();
    }, leaseMs / 3);
    heartbeat.unref();
  }

  async function extend(group: readonly Held[]): Promise<void> {
    const { fence, ids } = claimOf(group);
    try {
      const kept = new Set(await store.extend(fence, ids, leaseMs));
      for (const { waiting } of lanes.values()) {
        const lost = waiting.filter((item) => item.fence === fence && !kept.has(item.id));
        for (const item of lost) {
          waiting.splice(waiting.indexOf(item), 1);
          drop(item, false);
        }
      }
    } catch (error) {
      log.warn({ err: error, deliveries: ids.length }, "leases could not be lengthened");
    }
  }

  return {
    start() {
      if (!stopped) loop ??= startLoop({ name: "deliver", step, idleMs: pollMs, log });
    },
    wake: () => loop?.wake(),
    async attempt(id) {
      if (stopped) return false;
      claiming++;
      try {
        const options = { limit: 1, perOrigin: 1, skipOrigins: [], leaseMs, only: id };
        const claims = await store.claim(options);
        if (claims.length === 0) return false;
        return await new Promise<boolean>((resolve) => take(claims, resolve));
      } finally {
        claiming--;
      }
    },
    async stop() {
      stopped = true;
      await loop?.stop();
      // Bounded: every attempt ends within its time-out, every outcome within its lease.
      while (held.size > 0 || claiming > 0) {
        const waiting = [...lanes.values()].flatMap((lane) => lane.waiting.splice(0));
        for (const group of groupsOf(waiting)) await release(group);
        await sleep(10);
      }
      clearTimeout(heartbeat);
      await sender.close();
    },
  };
}

/** Takes claims of one fence from the front: up to `limit` to attempt, or what can be asked with one request. */
function takeGroup(waiting: Held[], limit: number): readonly Held[] {
  const [first] = waiting;
  const most = first?.asking ? MAX_ASKED : limit;
  const end = waiting.findIndex(
    (item, i) =>
      i === most ||
      item.fence !== first?.fence ||
      item.asking !== first.asking ||
      (item.asking && item.webhookId !== first.webhookId),
  );
  return waiting.splice(0, end === -1 ? waiting.length : end);
}

function groupsOf(items: readonly Held[]): readonly (readonly Held[])[] {
  const groups = new Map<bigint, Held[]>();
  for (const item of items) groups.set(item.fence, [...(groups.get(item.fence) ?? []), item]);
  return [...groups.values()];
}

/** The fence of a group, and what it holds. */
function claimOf(group: readonly Held[]): { readonly fence: bigint; readonly ids: readonly DeliveryId[] } {
  return { fence: group[0]?.fence ?? 0n, ids: group.map(({ id }) => id) };
}
