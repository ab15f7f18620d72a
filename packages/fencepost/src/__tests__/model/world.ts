import { deliverSteps } from "./deliver.ts";
import { dispatchedByItself, dispatchSteps } from "./dispatch.ts";
import { ingestSteps, storedByItself } from "./ingest.ts";
import { emittedByItself, projectSteps } from "./project.ts";
import { initialState, type State } from "./state.ts";
import { STAGES, type Stage, type Step, type World } from "./step.ts";

type Steps = (s: State, world: World) => Iterable<Step>;

const RUNS: Record<Stage, Steps> = {
  ingest: ingestSteps,
  project: projectSteps,
  dispatch: dispatchSteps,
  deliver: deliverSteps,
};
/** What a stage finds, where the stages before it do not run: their outcome, at any moment. */
const BEFORE: Record<Stage, Steps> = {
  ingest: () => [],
  project: storedByItself,
  dispatch: emittedByItself,
  deliver: dispatchedByItself,
};

export function firstState({ events, webhook }: World): State {
  return initialState(events, webhook);
}

/** Everything that can happen next; what is furthest down the line comes first. */
export function stepsOf(s: State, world: World): readonly Step[] {
  const first = STAGES.indexOf(world.first);
  const stages = STAGES.slice(first, STAGES.indexOf(world.last) + 1);
  return [...stages.map((stage) => RUNS[stage]).reverse(), BEFORE[world.first]].flatMap((steps) => [
    ...steps(s, world),
  ]);
}
