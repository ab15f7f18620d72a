import { afterAll, describe, expect, it } from "vitest";
import { LINES, PAIRS, PERSONS } from "./configurations.ts";
import { type Guards, INTACT } from "./guards.ts";
import { REMOVALS, searchWithout } from "./removals.ts";
import { type Report, StateLimitError, search } from "./search.ts";
import type { Configuration } from "./step.ts";

// What `npm run model` explores, made smaller where it is large.
const REDUCED: readonly Configuration[] = [
  PAIRS.ingestProject,
  PAIRS.projectDispatch,
  PERSONS.resend,
  PERSONS.hold,
  { ...PAIRS.callers, claims: 1 },
  { ...PAIRS.hold, claims: 2 },
  { ...PAIRS.ask, claims: 2 },
  { ...LINES.resend, claims: 1 },
];

describe("every state that can be reached", { timeout: 240_000 }, () => {
  it.each(REDUCED)("breaks no promise: $name ($claims claims)", (configuration) => {
    const { report } = explored(configuration);
    expect(report.counterexample).toBeNull();
    expect(report.states).toBeGreaterThan(1_000);
  });

  it("has every answer of every decision that production runs", () => {
    const answers = new Set(REDUCED.flatMap((configuration) => [...explored(configuration).answers]));
    expect([...answers].sort()).toEqual(
      [
        ...["commit", "stale_term", "moved_cursor"].map((answer) => `commitStream ${answer}`),
        ...["commit", "stale_term", "moved_cursor"].map((answer) => `commitProjection ${answer}`),
        ...["new", "replay", "conflict"].map((answer) => `decideStored ${answer}`),
        ...["new", "existing", "mismatch"].map((answer) => `decideMessage ${answer}`),
        ...["attempt", "settle_unknown", "ask"].map((answer) => `decideClaimed ${answer}`),
        ...["success", "pending", "failed", "in_doubt"].map((answer) => `decideOutcome ${answer}`),
        ...["success", "pending", "failed", "in_doubt"].map((answer) => `decideAnswer ${answer}`),
        ...["apply", "already", "fenced"].map((answer) => `decideReceipt ${answer}`),
        ...["received", "in_progress", "fenced"].map((answer) => `decideQuery ${answer}`),
      ].sort(),
    );
  });

  it("is not taken for checked where there are more than the limit allows", () => {
    const world = { ...PAIRS.projectDispatch, guards: INTACT };
    expect(() => search(world, { maxStates: 1_000 })).toThrow(StateLimitError);
  });
});

describe("a guard that is removed", () => {
  const shown: string[] = [];
  afterAll(() => console.log(shown.join("\n")));

  it.each(REMOVALS)("leaves its promise to break: $guard", (removal) => {
    for (const [invariant, counterexample] of searchWithout(removal)) {
      expect(counterexample, `without ${removal.guard}, "${invariant}" still holds`).not.toBeNull();
      const steps = counterexample!.trace.map((step) => step.split("\n")[0]);
      shown.push(`without ${removal.guard}, "${invariant}" breaks:\n  ${steps.join("\n  ")}`);
    }
  });

  it("is each of them in turn", () => {
    const removed = new Set(REMOVALS.flatMap(({ without }) => Object.keys(without)));
    expect([...removed].sort()).toEqual(Object.keys(INTACT).sort());
  });
});

interface Explored {
  readonly report: Report;
  /** What the decisions answered on the way, as `decideClaimed attempt`. */
  readonly answers: ReadonlySet<string>;
}

const known = new Map<Configuration, Explored>();

/** Explores once, whichever test asks first. */
function explored(configuration: Configuration): Explored {
  const before = known.get(configuration);
  if (before) return before;
  const answers = new Set<string>();
  const noted =
    <In extends readonly unknown[], Out>(name: string, decide: (...input: In) => Out) =>
    (...input: In): Out => {
      const answer = decide(...input);
      answers.add(`${name} ${isNext(answer) ? answer.state : String(answer)}`);
      return answer;
    };
  const guards: Guards = {
    ...INTACT,
    commitStream: noted("commitStream", INTACT.commitStream),
    commitProjection: noted("commitProjection", INTACT.commitProjection),
    decideStored: noted("decideStored", INTACT.decideStored),
    decideMessage: noted("decideMessage", INTACT.decideMessage),
    decideClaimed: noted("decideClaimed", INTACT.decideClaimed),
    decideOutcome: noted("decideOutcome", INTACT.decideOutcome),
    decideAnswer: noted("decideAnswer", INTACT.decideAnswer),
    decideReceipt: noted("decideReceipt", INTACT.decideReceipt),
    decideQuery: noted("decideQuery", INTACT.decideQuery),
  };
  const result = { report: search({ ...configuration, guards }), answers };
  known.set(configuration, result);
  return result;
}

function isNext(answer: unknown): answer is { readonly state: string } {
  return typeof answer === "object" && answer !== null && "state" in answer;
}
