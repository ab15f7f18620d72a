import {
  type Invariant,
  isComplete,
  NOTHING_IS_LOST,
  STATE_INVARIANTS,
  STEP_INVARIANTS,
} from "./invariants.ts";
import { type State, stateKey } from "./state.ts";
import type { Step, World } from "./step.ts";
import { firstState, stepsOf } from "./world.ts";

export interface Report {
  readonly states: number;
  readonly transitions: number;
  /** Steps from the first state to the farthest one, by the shortest way. */
  readonly depth: number;
  readonly milliseconds: number;
  readonly counterexample: Counterexample | null;
}

export interface Counterexample {
  readonly invariant: Invariant;
  /** The shortest way there, one line a step. */
  readonly trace: readonly string[];
}

export interface SearchOptions {
  /** More states than this end the search with {@link StateLimitError}; 3,000,000 unless given. */
  readonly maxStates?: number;
  /** Looked at alone; all of them unless given. */
  readonly only?: Invariant;
}

/** The world is larger than the memory that was set aside for it: nothing is known about what was not reached. */
export class StateLimitError extends Error {
  override readonly name = "StateLimitError";

  constructor(name: string, limit: number) {
    super(`"${name}" has more than ${limit} states. Make the configuration smaller, or raise maxStates.`);
  }
}

const AGAIN: Invariant = "the same input again changes nothing";
const NOWHERE = -1;
const END = -2;

/**
 * Visits every state that can be reached, nearest first, and checks every step. Stops at the first step that
 * breaks an invariant. At the end it follows, from every state, what workers do that go on without a fault.
 * Throws {@link StateLimitError}.
 */
export function search(world: World, { maxStates = 3_000_000, only }: SearchOptions = {}): Report {
  const started = performance.now();
  const ofStates = watched(STATE_INVARIANTS, only);
  const ofSteps = watched(STEP_INVARIANTS, only);
  const numbers = new Map<string, number>();
  const parents: number[] = [];
  /** Where undisturbed workers lead from each state. */
  const onward: number[] = [];
  let transitions = 0;
  let depth = 0;

  const report = (counterexample: Counterexample | null): Report => ({
    states: numbers.size,
    transitions,
    depth,
    milliseconds: performance.now() - started,
    counterexample,
  });
  const number = (state: State, parent: number): { readonly known: boolean; readonly at: number } => {
    const key = stateKey(state);
    const at = numbers.get(key);
    if (at !== undefined) return { known: true, at };
    if (numbers.size >= maxStates) throw new StateLimitError(world.name, maxStates);
    numbers.set(key, parents.length);
    parents.push(parent);
    onward.push(NOWHERE);
    return { known: false, at: parents.length - 1 };
  };

  let frontier: State[] = [firstState(world)];
  number(frontier[0]!, -1);
  let first = 0;
  while (frontier.length > 0) {
    const next: State[] = [];
    for (const [offset, state] of frontier.entries()) {
      const from = first + offset;
      if (isComplete(state, world)) onward[from] = END;
      for (const step of stepsOf(state, world)) {
        transitions++;
        const { known, at } = step.to === state ? { known: true, at: from } : number(step.to, from);
        if (!known) next.push(step.to);
        if (onward[from] === NOWHERE && step.progress && at !== from) onward[from] = at;
        const broken =
          ofSteps.find(([, holds]) => !holds(state, step)) ??
          (known ? undefined : ofStates.find(([, holds]) => !holds(step.to)));
        if (!broken) continue;
        const trace = [...traceTo(from), shownStep(state, step)];
        if (broken[0] === AGAIN && step.again) {
          trace.push(shownStep(step.to, { label: "the same once more", to: step.again(step.to) }));
        }
        return report({ invariant: broken[0], trace });
      }
    }
    first += frontier.length;
    frontier = next;
    if (next.length > 0) depth++;
  }
  const stuck = only && only !== NOTHING_IS_LOST ? undefined : firstStuck(onward);
  if (stuck === undefined) return report(null);
  return report({
    invariant: NOTHING_IS_LOST,
    trace: [...traceTo(stuck), "from here workers that go on, without a fault, never come to the end"],
  });

  /** The steps of the way along the parents, found again by walking it. */
  function traceTo(target: number): readonly string[] {
    const way: number[] = [];
    for (let at = target; at > 0; at = parents[at]!) way.unshift(at);
    let state = firstState(world);
    return way.map((at) => {
      const step = stepsOf(state, world).find(({ to }) => numbers.get(stateKey(to)) === at)!;
      const line = shownStep(state, step);
      state = step.to;
      return line;
    });
  }
}

function watched<Check>(checks: Record<string, Check>, only: Invariant | undefined): [Invariant, Check][] {
  return (Object.entries(checks) as [Invariant, Check][]).filter(([name]) => !only || name === only);
}

/** The nearest state from which the undisturbed way ends before the end, or goes round for ever. */
function firstStuck(onward: readonly number[]): number | undefined {
  // 0: not known, 1: leads to the end, otherwise the walk that came by.
  const walks = new Int32Array(onward.length);
  for (let start = 0; start < onward.length; start++) {
    const walk = start + 2;
    let at = start;
    while (at >= 0 && walks[at] === 0) {
      walks[at] = walk;
      at = onward[at]!;
    }
    if (at !== END && walks[at] !== 1) return start;
    for (let passed = start; passed >= 0 && walks[passed] === walk; passed = onward[passed]!)
      walks[passed] = 1;
  }
  return undefined;
}

function shownStep(before: State, { label, to }: Step): string {
  return [label, ...changes(before, to)].join("\n");
}

/** What a step changed, field by field. */
function changes(before: unknown, after: unknown, path = ""): readonly string[] {
  if (before === after) return [];
  const nested = isObject(before) && isObject(after);
  if (nested && Object.keys(before).length === Object.keys(after).length) {
    return Object.keys(before).flatMap((key) =>
      changes(before[key], after[key], path === "" ? key : `${path}.${key}`),
    );
  }
  return [`    ${path}: ${shown(before)} → ${shown(after)}`];
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function shown(value: unknown): string {
  return JSON.stringify(value).replaceAll('"', "").replaceAll(",", ", ");
}
