// Deliveries → HTTP → the customer's effects: claims, attempts, copies on the network, outcomes under a fence.
import { type DeliveryPolicy, INTERRUPTED } from "../../store/decideDelivery.ts";
import type { AttemptOutcome } from "../../store/deliveryStore.ts";
import {
  hasEnded,
  MANY_SENT,
  type ModelClaim,
  type ModelDelivery,
  put,
  type State,
  without,
} from "./state.ts";
import type { Step, World } from "./step.ts";

/** One retry, so that running out of them is within reach. */
const RETRY_SCHEDULE_MS = [1_000];

interface Result {
  readonly outcome: AttemptOutcome;
  readonly status: number | null;
  readonly retryAfterMs: null;
}
const DELIVERED: Result = { outcome: "delivered", status: 200, retryAfterMs: null };
const BUSY: Result = { outcome: "rejected", status: 503, retryAfterMs: null };
const REFUSED: Result = { outcome: "rejected", status: 400, retryAfterMs: null };
const NOT_SENT: Result = { outcome: "not_sent", status: null, retryAfterMs: null };
const UNKNOWN: Result = { outcome: "unknown", status: null, retryAfterMs: null };

export function* deliverSteps(s: State, world: World): Generator<Step> {
  for (const [i, claim] of s.claims.entries()) yield* workerSteps(s, i, claim, world);
  for (const [event, delivery] of s.deliveries.entries()) yield* queueSteps(s, event, delivery, world);
}

/** What a worker can do with a claim that it remembers, whether it still holds it or not. */
function* workerSteps(s: State, i: number, claim: ModelClaim, world: World): Generator<Step> {
  const { event, holds, phase } = claim;
  const who = `the worker with ${holds ? "the claim" : "an old claim"} of delivery ${event}`;
  // Nothing is forgotten with a commit: its answer may be lost, and the outcome is reported again.
  const reports = (result: Result, progress: boolean): Step => ({
    label: `${who} reports ${result.outcome}${result.status ? ` ${result.status}` : ""}`,
    to: finish(s, i, result, world),
    progress: progress && holds,
    stale: !holds,
    again: (after) => finish(after, i, result, world),
  });
  const moves = (to: State, phase: ModelClaim["phase"]): State => ({
    ...to,
    claims: put(to.claims, i, { ...to.claims[i]!, phase }),
  });
  switch (phase) {
    case "claimed":
    case "interrupted": {
      const interrupted = phase === "interrupted";
      if (world.guards.decideClaimed({ interrupted }) === "settle_unknown") {
        yield reports({ ...INTERRUPTED, retryAfterMs: null }, true);
        break;
      }
      const recorded = recordAttempt(s, i, world);
      yield {
        label: `${who} ${recorded ? "puts its attempt on record" : "may not attempt it, and gives it back"}`,
        to: recorded ? moves(recorded, "recorded") : forget(release(s, i, world), i),
        progress: holds,
        stale: !holds,
        ...(recorded && { again: (after) => recordAttempt(after, i, world) ?? release(after, i, world) }),
      };
      yield { label: `${who} stops and gives it back`, to: forget(release(s, i, world), i), stale: !holds };
      if (!world.guards.recordBeforeSend) {
        yield {
          label: `${who} sends without an attempt`,
          to: moves(send(s, event, world), "waiting"),
          sentOnRecord: false,
        };
      }
      break;
    }
    case "recorded":
      yield {
        label: `${who} sends`,
        to: moves(send(s, event, world), "waiting"),
        progress: holds,
        sentOnRecord: true,
      };
      yield { label: `${who} finds no way to send`, to: moves(s, "unsent") };
      break;
    case "unsent":
      yield reports(NOT_SENT, true);
      break;
    case "waiting":
      yield* requestSteps(s, event, world, moves);
      break;
    case "receiving":
      yield* transactionSteps(s, event, world, moves);
      break;
    case "answered":
      yield reports(DELIVERED, true);
  }
  if (phase === "waiting" || phase === "receiving" || phase === "answered") {
    // Whatever became of the request, the connection may break or something before the receiver may answer.
    for (const result of [UNKNOWN, BUSY, REFUSED]) yield reports(result, false);
  }
  yield { label: `${who} dies`, to: forget(s, i), progress: !holds };
}

/** What the queue offers, and what a person or a restored row does to it. */
function* queueSteps(s: State, event: number, delivery: ModelDelivery, world: World): Generator<Step> {
  if (delivery.queue !== "none" && s.claims.length < world.claims) {
    const alive = s.claims.some((claim) => claim.event === event && claim.holds);
    const phase = delivery.attempted ? "interrupted" : "claimed";
    yield {
      label: `delivery ${event} is claimed under a new fence${alive ? ", the lease before it has lapsed" : ""}`,
      to: {
        ...s,
        deliveries: put(s.deliveries, event, { ...delivery, queue: "held" }),
        claims: [...lapsed(s, event), { event, holds: true, phase }],
      },
      progress: !alive,
    };
  }
  const { onNetwork, orphans } = s.inboxes[event]!;
  if (onNetwork)
    yield* requestSteps(s, event, world, (to, phase) =>
      phase === "receiving" ? orphaned(to, event, 1) : to,
    );
  if (orphans > 0) yield* transactionSteps(s, event, world, (to) => orphaned(to, event, -1));
  if (!hasEnded(delivery)) return;
  if (world.redelivers && !delivery.redelivered) {
    const to = redeliver(s, event, world);
    yield {
      label: `a person sends delivery ${event} again`,
      to,
      redeliver: true,
      again: (after) => redeliver(after, event, world),
    };
  }
  if (world.reoffers && delivery.queue === "none") {
    const to = { ...s, deliveries: put(s.deliveries, event, { ...delivery, queue: "free" as const }) };
    yield { label: `the queue row of delivery ${event} comes back`, to };
  }
}

type Moves = (to: State, phase: "waiting" | "receiving" | "answered") => State;

/** A copy of the request reaches the receiver: one that a worker waits for, a late one, or one more. */
function* requestSteps(s: State, event: number, world: World, moves: Moves): Generator<Step> {
  const { present, orphans } = s.inboxes[event]!;
  const open =
    orphans + s.claims.filter((claim) => claim.event === event && claim.phase === "receiving").length;
  // The second of two transactions on one key waits for the first.
  if (open >= (world.guards.inboxKey ? 1 : 2)) return;
  const decision = world.guards.decideReceipt(present ? "present" : "absent");
  // No attempt is fenced off here: nobody asks the receiver.
  const to = moves(s, ({ apply: "receiving", already: "answered", fenced: "waiting" } as const)[decision]);
  if (to !== s) yield { label: `a copy of request ${event} arrives: ${decision}`, to, progress: true };
}

/** The receiver's transaction ends: the inbox row and the effects, or neither. */
function* transactionSteps(s: State, event: number, world: World, moves: Moves): Generator<Step> {
  yield {
    label: `the receiver commits event ${event}`,
    to: moves(withEffects(s, event, true), "answered"),
    progress: true,
    again: (after) => {
      const found = after.inboxes[event]!.present ? "present" : "absent";
      return world.guards.decideReceipt(found) === "apply" ? withEffects(after, event, true) : after;
    },
  };
  yield { label: `the receiver rolls event ${event} back`, to: moves(s, "waiting") };
  if (!world.guards.atomicReceive) {
    yield {
      label: `the receiver crashes between the effects and the inbox row of event ${event}`,
      to: moves(withEffects(s, event, s.inboxes[event]!.present), "waiting"),
    };
  }
}

function withEffects(s: State, event: number, present: boolean): State {
  const inbox = s.inboxes[event]!;
  return { ...s, inboxes: put(s.inboxes, event, { ...inbox, present, effects: inbox.effects + 1 }) };
}

/** recordAttempts: one statement under the lock of the queue row. Nothing where the attempt must not be made. */
function recordAttempt(s: State, i: number, { guards }: World): State | undefined {
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (delivery.queue === "none") return undefined;
  if (guards.fenceOnRecord && storedFence(delivery) !== fenceOf(s.claims[i]!, guards.fencePerClaim))
    return undefined;
  if (guards.recordOnce && delivery.attempted) return undefined;
  if (guards.recordPendingOnly && delivery.state !== "pending") return undefined;
  const { tries, live } = delivery;
  const counted = { attempted: true, tries: tries + 1, live: live + 1 };
  const sending: ModelDelivery = { ...delivery, state: "sending", ...counted };
  return { ...s, deliveries: put(s.deliveries, event, sending) };
}

/** release: gives back what was not attempted, and takes a row away whose delivery has ended. */
function release(s: State, i: number, { guards }: World): State {
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (storedFence(delivery) !== fenceOf(s.claims[i]!, guards.fencePerClaim)) return s;
  const ended = hasEnded(delivery);
  if (!ended && delivery.attempted) return s;
  const queue = ended ? "none" : "free";
  return {
    ...s,
    claims: lapsed(s, event),
    deliveries: put(s.deliveries, event, { ...delivery, queue, attempted: false }),
  };
}

/** finish: one transaction under the lock of the queue row. A row that is gone can be nobody's. */
function finish(s: State, i: number, result: Result, { guards, onUnknown }: World): State {
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (delivery.queue === "none") return s;
  if (!guards.holdsClaim(storedFence(delivery), fenceOf(s.claims[i]!, guards.fencePerClaim))) return s;
  const policy: DeliveryPolicy = { onUnknown, retryScheduleMs: RETRY_SCHEDULE_MS };
  const { state } = guards.decideOutcome(result, delivery.tries, policy, 0);
  const ended: ModelDelivery = {
    ...delivery,
    state,
    queue: state === "pending" ? "free" : "none",
    attempted: false,
    live: Math.max(0, delivery.live - 1),
  };
  return { ...s, claims: lapsed(s, event), deliveries: put(s.deliveries, event, ended) };
}

/** redeliver: one statement; what is pending stays as it is. */
function redeliver(s: State, event: number, { onUnknown }: World): State {
  const delivery = s.deliveries[event]!;
  if (!hasEnded(delivery)) return s;
  const queue = delivery.queue === "none" ? "free" : delivery.queue;
  const counted = onUnknown === "hold" ? { sent: delivery.sent - 1, redelivered: true } : {};
  const pending: ModelDelivery = { ...delivery, state: "pending", tries: 0, queue, ...counted };
  return { ...s, deliveries: put(s.deliveries, event, pending) };
}

function send(s: State, event: number, { onUnknown }: World): State {
  const delivery = s.deliveries[event]!;
  const sent = onUnknown === "hold" ? Math.min(MANY_SENT, delivery.sent + 1) : 0;
  return {
    ...s,
    deliveries: put(s.deliveries, event, { ...delivery, sent }),
    inboxes: put(s.inboxes, event, { ...s.inboxes[event]!, onNetwork: true }),
  };
}

/** The memory of a claim is gone; a transaction that its request opened at the receiver goes on. */
function forget(s: State, i: number): State {
  const { event, phase } = s.claims[i]!;
  const to = { ...s, claims: without(s.claims, i) };
  return phase === "receiving" ? orphaned(to, event, 1) : to;
}

function orphaned(s: State, event: number, by: number): State {
  const inbox = s.inboxes[event]!;
  return { ...s, inboxes: put(s.inboxes, event, { ...inbox, orphans: inbox.orphans + by }) };
}

/** The claims when the fence of an event's queue row is replaced or cleared: none of them holds it now. */
function lapsed(s: State, event: number): readonly ModelClaim[] {
  return s.claims.map((claim) => (claim.event === event && claim.holds ? { ...claim, holds: false } : claim));
}

function storedFence({ queue }: ModelDelivery): bigint | null | undefined {
  return { none: undefined, free: null, held: 2n }[queue];
}

/** Fences come from a sequence: that of a claim which lost its row is another one than the row's. */
function fenceOf({ holds }: ModelClaim, perClaim: boolean): bigint {
  return holds || !perClaim ? 2n : 1n;
}
