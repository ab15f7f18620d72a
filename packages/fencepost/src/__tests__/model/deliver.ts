// Deliveries → HTTP → the customer's effects: claims, attempts, copies on the network, outcomes under a fence.
import { INTERRUPTED, type ReceiptAnswer } from "../../store/decideDelivery.ts";
import type { AttemptOutcome, DeliveryPolicy, NextStep } from "../../store/deliveryStore.ts";
import {
  hasEnded,
  MANY_SENT,
  type ModelClaim,
  type ModelDelivery,
  numbersOf,
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
  readonly fenced?: boolean;
}
const DELIVERED: Result = { outcome: "delivered", status: 200, retryAfterMs: null };
const BUSY: Result = { outcome: "rejected", status: 503, retryAfterMs: null };
const FENCED: Result = { outcome: "rejected", status: 409, retryAfterMs: null, fenced: true };
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
  function* settles(answer: ReceiptAnswer, { remembered = true } = {}): Generator<Step> {
    yield {
      label: `${who} settles ${remembered ? answer : `${answer}, which it does not believe`}`,
      to: settle(s, i, answer, remembered, world),
      progress: holds && answer !== "none",
      stale: !holds,
      again: (after) => settle(after, i, answer, remembered, world),
    };
  }
  const moves = (to: State, phase: ModelClaim["phase"]): State => ({
    ...to,
    claims: put(to.claims, i, { ...to.claims[i]!, phase }),
  });
  switch (phase) {
    case "claimed":
    case "interrupted":
    case "doubting": {
      const kind = { interrupted: phase === "interrupted", asking: phase === "doubting" };
      const decision = world.guards.decideClaimed(kind);
      if (decision === "settle_unknown") {
        yield reports({ ...INTERRUPTED, retryAfterMs: null }, true);
        break;
      }
      if (decision === "ask") {
        yield { label: `${who} asks about it`, to: ask(s, i), progress: holds };
        yield { label: `${who} stops and gives it back`, to: forget(release(s, i, world), i), stale: !holds };
        break;
      }
      const recorded = recordAttempt(s, i, world);
      yield {
        label: `${who} ${recorded ? "puts its attempt on record" : "may not attempt it, and gives it back"}`,
        to: recorded ? moves(recorded, "recorded") : forget(release(s, i, world), i),
        progress: holds,
        stale: !holds,
        ...(recorded && s.deliveries[event]!.doubted && { sentAgain: { event } }),
        ...(recorded && { again: (after) => recordAttempt(after, i, world) ?? release(after, i, world) }),
      };
      yield { label: `${who} stops and gives it back`, to: forget(release(s, i, world), i), stale: !holds };
      if (!world.guards.recordBeforeSend) {
        yield {
          label: `${who} sends without an attempt`,
          to: moves(send(s, i, world), "waiting"),
          sentOnRecord: false,
        };
      }
      break;
    }
    case "recorded":
      yield {
        label: `${who} sends`,
        to: moves(send(s, i, world), "waiting"),
        progress: holds,
        sentOnRecord: true,
      };
      yield { label: `${who} finds no way to send`, to: moves(s, "unsent") };
      break;
    case "unsent":
      yield reports(NOT_SENT, true);
      break;
    case "waiting":
      yield* requestSteps(s, event, claim.number, world, moves);
      break;
    case "receiving":
      yield* transactionSteps(s, event, claim.number, world, moves);
      break;
    case "answered":
      yield reports(DELIVERED, true);
      break;
    case "refused":
      yield reports(FENCED, true);
      break;
    case "asked":
      yield* querySteps(s, event, claim.number, world, moves);
      yield* settles("none");
      break;
    case "told received":
      yield* settles("received");
      break;
    case "told in_progress":
      yield* settles("in_progress");
      break;
    case "told fenced":
      yield* settles("fenced");
      break;
    case "told forgotten":
      yield* settles("fenced", { remembered: false });
      break;
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
    const phase = delivery.asking ? "doubting" : delivery.attempted ? "interrupted" : "claimed";
    const number = delivery.asking ? delivery.attempts : 0;
    yield {
      label: `delivery ${event} is claimed under a new fence${alive ? ", the lease before it has lapsed" : ""}`,
      to: {
        ...s,
        deliveries: put(s.deliveries, event, { ...delivery, queue: "held" }),
        claims: [...lapsed(s, event), { event, holds: true, phase, number }],
      },
      progress: !alive,
    };
  }
  const { copies, queries, orphans, present } = s.inboxes[event]!;
  for (const number of numbersOf(copies)) {
    yield* requestSteps(s, event, number, world, (to, phase) =>
      phase === "receiving" ? orphaned(to, event, number) : to,
    );
  }
  for (const before of numbersOf(queries)) yield* querySteps(s, event, before, world, (to) => to);
  for (const number of new Set(orphans)) {
    const ends = (to: State): State => orphanEnded(to, event, number);
    yield* transactionSteps(s, event, number, world, ends);
  }
  if (world.prunes && present && delivery.state === "in_doubt" && openTransactions(s, event) === 0) {
    const inbox = s.inboxes[event]!;
    const forgotten = { present: false, fence: 0, copies: 0, expired: delivery.attempts, forgotten: true };
    const label = `the inbox forgets event ${event}, and older signatures are not accepted any more`;
    yield { label, to: { ...s, inboxes: put(s.inboxes, event, { ...inbox, ...forgotten }) } };
  }
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

type Moves = (to: State, phase: "waiting" | "receiving" | "answered" | "refused") => State;

/** A copy of the request reaches the receiver: one that a worker waits for, a late one, or one more. */
function* requestSteps(s: State, event: number, number: number, world: World, moves: Moves): Generator<Step> {
  const { fence, expired } = s.inboxes[event]!;
  if (number <= expired && expired > 0) return;
  // The second of two transactions on one key waits for the first.
  if (openTransactions(s, event) >= (world.guards.inboxKey ? 1 : 2)) return;
  const decision = world.guards.decideReceipt(found(s, event), number, fence > 0 ? fence : undefined);
  const to = moves(s, ({ apply: "receiving", already: "answered", fenced: "refused" } as const)[decision]);
  if (to === s) return;
  const label = `a copy of request ${event} arrives: ${decision}`;
  yield { label, to, progress: true, ...(decision === "apply" && { applied: { event, number } }) };
}

/** A question reaches the receiver, or a late copy of one: what it says, it has stored before. */
function* querySteps(
  s: State,
  event: number,
  before: number,
  { guards }: World,
  moves: (to: State, phase: ModelClaim["phase"]) => State,
): Generator<Step> {
  const isRunning = guards.queryTakesKey && openTransactions(s, event) > 0;
  const status = guards.decideQuery(isRunning ? "running" : found(s, event));
  const inbox = s.inboxes[event]!;
  const stored = guards.fenceBeforeAnswer ? { fence: Math.max(inbox.fence, before) } : {};
  const promised = { ...stored, promised: Math.max(inbox.promised, before) };
  const after = status === "fenced" ? { ...s, inboxes: put(s.inboxes, event, { ...inbox, ...promised }) } : s;
  const to = moves(after, status === "fenced" && inbox.forgotten ? "told forgotten" : `told ${status}`);
  if (to !== s) yield { label: `a question about event ${event} arrives: ${status}`, to, progress: true };
}

function openTransactions(s: State, event: number): number {
  const awaited = s.claims.filter((claim) => claim.event === event && claim.phase === "receiving");
  return s.inboxes[event]!.orphans.length + awaited.length;
}

function found(s: State, event: number): "present" | "absent" {
  return s.inboxes[event]!.present ? "present" : "absent";
}

/** The receiver's transaction ends: the inbox row and the effects, or neither. */
function* transactionSteps(
  s: State,
  event: number,
  number: number,
  world: World,
  moves: Moves,
): Generator<Step> {
  yield {
    label: `the receiver commits event ${event}`,
    to: moves(withEffects(s, event, true), "answered"),
    progress: true,
    applied: { event, number },
    again: (after) => {
      const again = world.guards.decideReceipt(found(after, event), number, after.inboxes[event]!.fence);
      return again === "apply" ? withEffects(after, event, true) : after;
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
function recordAttempt(s: State, i: number, { guards, onUnknown }: World): State | undefined {
  const numbered = onUnknown === "ask";
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (delivery.queue === "none") return undefined;
  if (guards.fenceOnRecord && storedFence(delivery) !== fenceOf(s.claims[i]!, guards.fencePerClaim))
    return undefined;
  if (guards.recordOnce && delivery.attempted) return undefined;
  if (guards.recordPendingOnly && delivery.state !== "pending") return undefined;
  const { tries, live } = delivery;
  const number = numbered ? delivery.attempts + 1 : 0;
  const counted = {
    attempted: true,
    tries: tries + 1,
    live: live + 1,
    attempts: number,
    asks: 0,
    doubted: false,
  };
  const sending: ModelDelivery = { ...delivery, state: "sending", ...counted };
  return {
    ...s,
    deliveries: put(s.deliveries, event, sending),
    claims: put(s.claims, i, { ...s.claims[i]!, number }),
  };
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

/** finish: one statement under the lock of the queue row. A row that is gone can be nobody's. */
function finish(s: State, i: number, result: Result, { guards, onUnknown }: World): State {
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (delivery.queue === "none") return s;
  if (guards.fenceOnFinish && storedFence(delivery) !== fenceOf(s.claims[i]!, guards.fencePerClaim)) return s;
  const next = guards.decideOutcome(result, delivery.tries, policyOf(onUnknown), 0);
  const ended: ModelDelivery = {
    ...requeued(delivery, next),
    live: Math.max(0, delivery.live - 1),
    doubted: onUnknown === "ask" && result.outcome === "unknown",
  };
  return { ...s, claims: lapsed(s, event), deliveries: put(s.deliveries, event, ended) };
}

/** settle: the same for what an endpoint said; only a row that asks is settled. */
function settle(
  s: State,
  i: number,
  answer: ReceiptAnswer,
  remembered: boolean,
  { guards, onUnknown }: World,
): State {
  const { event } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  if (delivery.queue === "none" || !delivery.asking) return s;
  if (guards.fenceOnSettle && storedFence(delivery) !== fenceOf(s.claims[i]!, guards.fencePerClaim)) return s;
  const asks = delivery.asks + 1;
  const counts = { tries: delivery.tries, asks, remembered };
  const next = guards.decideAnswer(answer, counts, policyOf(onUnknown), 0);
  const settled = { ...requeued(delivery, next), asks };
  return { ...s, claims: lapsed(s, event), deliveries: put(s.deliveries, event, settled) };
}

function policyOf(onUnknown: DeliveryPolicy["onUnknown"]): DeliveryPolicy {
  return { onUnknown, retryOn: "default", jitter: 0.5, retryScheduleMs: RETRY_SCHEDULE_MS };
}

/** What becomes of the row in the queue: it waits for its next attempt or question, or it goes. */
function requeued(delivery: ModelDelivery, next: NextStep): ModelDelivery {
  const asking = next.state === "in_doubt" && next.askInMs !== null;
  const queue = next.state === "pending" || asking ? "free" : "none";
  return { ...delivery, state: next.state, queue, asking, attempted: false };
}

/** The worker sends its question about the last attempt on record. */
function ask(s: State, i: number): State {
  const claim = s.claims[i]!;
  const inbox = s.inboxes[claim.event]!;
  return {
    ...s,
    claims: put(s.claims, i, { ...claim, phase: "asked" }),
    inboxes: put(s.inboxes, claim.event, { ...inbox, queries: inbox.queries | (1 << claim.number) }),
  };
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

function send(s: State, i: number, { onUnknown }: World): State {
  const { event, number } = s.claims[i]!;
  const delivery = s.deliveries[event]!;
  const inbox = s.inboxes[event]!;
  const sent = onUnknown === "hold" ? Math.min(MANY_SENT, delivery.sent + 1) : 0;
  return {
    ...s,
    deliveries: put(s.deliveries, event, { ...delivery, sent }),
    inboxes: put(s.inboxes, event, { ...inbox, copies: inbox.copies | (1 << number) }),
  };
}

/** The memory of a claim is gone; a transaction that its request opened at the receiver goes on. */
function forget(s: State, i: number): State {
  const { event, phase, number } = s.claims[i]!;
  const to = { ...s, claims: without(s.claims, i) };
  return phase === "receiving" ? orphaned(to, event, number) : to;
}

function orphaned(s: State, event: number, number: number): State {
  const inbox = s.inboxes[event]!;
  const orphans = [...inbox.orphans, number].sort();
  return { ...s, inboxes: put(s.inboxes, event, { ...inbox, orphans }) };
}

function orphanEnded(s: State, event: number, number: number): State {
  const inbox = s.inboxes[event]!;
  const orphans = without(inbox.orphans, inbox.orphans.indexOf(number));
  return { ...s, inboxes: put(s.inboxes, event, { ...inbox, orphans }) };
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
