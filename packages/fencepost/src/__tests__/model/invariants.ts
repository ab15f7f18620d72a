import { hasEnded, numbersOf, recordsKey, type State } from "./state.ts";
import { chainEvents, STAGES, type Stage, type Step, type World } from "./step.ts";

/** What no state may be, each named as the promise that it would break. */
export const STATE_INVARIANTS = {
  "a token is stored once": (s) => new Set(s.stored).size === s.stored.length,
  "a token is projected once": (s) => s.applied.every((times) => times <= 1),
  "an event id has one message": (s) => s.messages.every((rows) => rows <= 1),
  "a pair has one delivery": (s) => s.deliveries.every(({ rows }) => rows <= 1),
  "a delivery has one live attempt on record": (s) => s.deliveries.every(({ live }) => live <= 1),
  "the receiver's effects happen once": (s) => s.inboxes.every(({ effects }) => effects <= 1),
  "a success has its effects": (s) =>
    s.deliveries.every(({ state }, event) => state !== "success" || s.inboxes[event]!.effects > 0),
  "under hold one copy leaves": (s) => s.deliveries.every(({ sent }) => sent <= 1),
} satisfies Record<string, (s: State) => boolean>;

/** What no step may do. */
export const STEP_INVARIANTS = {
  "a cursor never goes back": (before, { to }) =>
    to.nextLedger >= before.nextLedger && to.cursor >= before.cursor,
  "an attempt is on record before its bytes leave": (_, { sentOnRecord }) => sentOnRecord !== false,
  "what has ended stays as it is": (before, { to, redeliver }) =>
    redeliver === true ||
    before.deliveries.every(
      (delivery, event) => !hasEnded(delivery) || to.deliveries[event]!.state === delivery.state,
    ),
  "under ask nothing is sent again that had an effect, or may have one": (before, { sentAgain }) => {
    if (!sentAgain) return true;
    const { effects, orphans, fence, expired, copies } = before.inboxes[sentAgain.event]!;
    const dead = Math.max(fence, expired);
    return effects === 0 && [...orphans, ...numbersOf(copies)].every((number) => number <= dead);
  },
  "what an endpoint has fenced off is not applied": (before, { applied }) => {
    const { promised } = before.inboxes[applied?.event ?? 0]!;
    return !applied || promised === 0 || applied.number > promised;
  },
  "a stale worker changes no record": (before, { to, stale }) =>
    !stale || to === before || recordsKey(to) === recordsKey(before),
  "the same input again changes nothing": (_, { to, again }) => {
    if (!again) return true;
    const after = again(to);
    return after === to || recordsKey(after) === recordsKey(to);
  },
  "an alarm stays until a person clears it": (before, { to }) => !before.halted || to.halted,
  "other content under a known id is refused": (_, { refused }) => refused !== false,
} satisfies Record<string, (before: State, step: Step) => boolean>;

/** Checked on the whole graph, once every state is known. */
export const NOTHING_IS_LOST = "workers that go on complete every event";

export type Invariant = keyof typeof STATE_INVARIANTS | keyof typeof STEP_INVARIANTS | typeof NOTHING_IS_LOST;

/** Nothing is left to do: every event is where the last stage puts it, or its stream was stopped by an alarm. */
export function isComplete(s: State, world: World): boolean {
  const { events, first, last } = world;
  if (s.halted) return true;
  const runs = (stage: Stage): boolean => {
    const position = STAGES.indexOf(stage);
    return STAGES.indexOf(first) <= position && position <= STAGES.indexOf(last);
  };
  for (let event = 0; event < events; event++) {
    const called = event >= chainEvents(world);
    if (called && s.messages[event] === 0) continue;
    const delivery = s.deliveries[event]!;
    if (!called && runs("ingest") && !s.stored.includes(event)) return false;
    if (!called && runs("project") && (s.applied[event] === 0 || s.messages[event] === 0)) return false;
    if (runs("dispatch") && (delivery.rows === 0 || s.outbox[event])) return false;
    if (runs("deliver") && (delivery.rows === 0 || !hasEnded(delivery) || delivery.queue !== "none"))
      return false;
  }
  return !runs("dispatch") || !s.catchUp;
}
