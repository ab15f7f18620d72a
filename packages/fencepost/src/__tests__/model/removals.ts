import { PAIRS, PERSONS } from "./configurations.ts";
import { type Guards, INTACT } from "./guards.ts";
import { type Invariant, NOTHING_IS_LOST } from "./invariants.ts";
import { type Counterexample, search } from "./search.ts";
import type { Configuration } from "./step.ts";

const NOTHING_MORE = "under ask nothing is sent again that had an effect, or may have one";

/** A guard that is taken out of the model, and the promises that are then broken. */
export interface Removal {
  readonly guard: string;
  readonly without: Partial<Guards>;
  readonly configuration: Configuration;
  /** The nearest one first; the others are found when they are looked for alone. */
  readonly breaks: readonly [Invariant, ...Invariant[]];
}

const { commitStream, decideStored, decideMessage, decideOutcome, decideAnswer, decideReceipt, decideQuery } =
  INTACT;

export const REMOVALS: readonly Removal[] = [
  {
    guard: "the unique token",
    without: { decideStored: () => "new" },
    configuration: PAIRS.ingestProject,
    breaks: ["a token is stored once"],
  },
  {
    guard: "the content hash of a stored event",
    without: { decideStored: (stored, seen) => (decideStored(stored, seen) === "new" ? "new" : "replay") },
    configuration: PAIRS.ingestProject,
    breaks: ["other content under a known id is refused"],
  },
  {
    guard: "the alarm that outlives a commit under way",
    without: { alarmStays: false },
    configuration: PAIRS.ingestProject,
    breaks: ["an alarm stays until a person clears it"],
  },
  {
    guard: "the term in ingest's commit",
    without: { commitStream: withoutTerm },
    configuration: PAIRS.ingestProject,
    breaks: ["a stale worker changes no record"],
  },
  {
    guard: "the cursor in ingest's commit",
    without: { commitStream: withoutCursor },
    configuration: PAIRS.ingestProject,
    breaks: ["a cursor never goes back"],
  },
  {
    guard: "events and cursor in one transaction",
    without: { atomicIngest: false },
    configuration: { ...PAIRS.ingestProject, last: "ingest" },
    breaks: [NOTHING_IS_LOST],
  },
  {
    guard: "the term in project's commit",
    without: { commitProjection: withoutTerm },
    configuration: PAIRS.projectDispatch,
    breaks: ["a stale worker changes no record"],
  },
  {
    guard: "the cursor in project's commit",
    without: { commitProjection: withoutCursor },
    configuration: PAIRS.projectDispatch,
    breaks: ["the same input again changes nothing", "a token is projected once"],
  },
  {
    guard: "rows, messages and cursor in one transaction",
    without: { atomicProject: false },
    configuration: PAIRS.projectDispatch,
    breaks: ["a token is projected once"],
  },
  {
    guard: "the unique message id",
    without: { decideMessage: () => "new" },
    configuration: PAIRS.callers,
    breaks: ["the same input again changes nothing", "an event id has one message"],
  },
  {
    guard: "the content hash of a message",
    without: {
      decideMessage: (stored, seen) => (decideMessage(stored, seen) === "new" ? "new" : "existing"),
    },
    configuration: PAIRS.callers,
    breaks: ["other content under a known id is refused"],
  },
  {
    guard: "the unique pair",
    without: { uniquePair: false },
    configuration: PAIRS.projectDispatch,
    breaks: ["the same input again changes nothing", "a pair has one delivery"],
  },
  {
    guard: "the look back of a new webhook",
    without: { catchUpWithWebhook: false },
    configuration: PAIRS.projectDispatch,
    breaks: [NOTHING_IS_LOST],
  },
  {
    guard: "a fence for each claim",
    without: { fencePerClaim: false },
    configuration: PERSONS.resend,
    breaks: ["a stale worker changes no record"],
  },
  {
    guard: "the fence on recordAttempts",
    without: { fenceOnRecord: false },
    configuration: PERSONS.resend,
    breaks: ["a stale worker changes no record"],
  },
  {
    guard: "the pending state on recordAttempts",
    without: { recordPendingOnly: false },
    configuration: PERSONS.resend,
    breaks: ["what has ended stays as it is"],
  },
  {
    guard: "recordAttempts once for each claim",
    without: { recordOnce: false, recordPendingOnly: false },
    configuration: PERSONS.resend,
    breaks: ["the same input again changes nothing"],
  },
  {
    guard: "the attempt row before the send",
    without: { recordBeforeSend: false },
    configuration: PERSONS.hold,
    breaks: ["an attempt is on record before its bytes leave", "under hold one copy leaves"],
  },
  {
    guard: "settling an interrupted claim as unknown",
    without: { decideClaimed: () => "attempt" },
    configuration: PERSONS.resend,
    breaks: [NOTHING_IS_LOST],
  },
  {
    guard: "settling an interrupted claim as unknown, where recordAttempts lets it pass",
    without: { decideClaimed: () => "attempt", recordOnce: false, recordPendingOnly: false },
    configuration: PERSONS.hold,
    breaks: [
      "the same input again changes nothing",
      "a delivery has one live attempt on record",
      "under hold one copy leaves",
    ],
  },
  {
    guard: "the fence on completion",
    without: { fenceOnFinish: false },
    configuration: PERSONS.resend,
    breaks: ["a stale worker changes no record", "what has ended stays as it is"],
  },
  {
    guard: "hold",
    without: {
      decideOutcome: (r, tries, policy, random) =>
        decideOutcome(r, tries, { ...policy, onUnknown: "resend" }, random),
    },
    configuration: PERSONS.hold,
    breaks: ["under hold one copy leaves"],
  },
  {
    guard: "telling unknown from delivered",
    without: { decideOutcome: () => ({ state: "success" }) },
    configuration: PERSONS.resend,
    breaks: ["a success has its effects"],
  },
  {
    guard: "the receiver's inbox",
    without: { decideReceipt: () => "apply" },
    configuration: PERSONS.resend,
    breaks: ["the same input again changes nothing", "the receiver's effects happen once"],
  },
  {
    guard: "the inbox key between two transactions",
    without: { inboxKey: false },
    configuration: PERSONS.resend,
    breaks: ["the receiver's effects happen once"],
  },
  {
    guard: "inbox row and effects in one transaction",
    without: { atomicReceive: false },
    configuration: PERSONS.resend,
    breaks: ["the receiver's effects happen once"],
  },
  {
    guard: "asking before it is sent again",
    without: {
      decideOutcome: (r, tries, policy, random) =>
        decideOutcome(r, tries, { ...policy, onUnknown: "resend" }, random),
    },
    configuration: PAIRS.ask,
    breaks: [NOTHING_MORE],
  },
  {
    guard: "asking what is claimed as in doubt",
    without: { decideClaimed: () => "attempt" },
    configuration: PAIRS.ask,
    breaks: [NOTHING_IS_LOST],
  },
  {
    guard: "the fence on what settles a doubt",
    without: { fenceOnSettle: false },
    configuration: PAIRS.ask,
    breaks: ["the same input again changes nothing", "a stale worker changes no record"],
  },
  {
    guard: "believing a fence only where the inbox goes back to the first attempt",
    without: {
      decideAnswer: (answer, counts, policy, random) =>
        decideAnswer(answer, { ...counts, remembered: true }, policy, random),
    },
    configuration: PAIRS.ask,
    breaks: [NOTHING_MORE, "the receiver's effects happen once"],
  },
  {
    guard: "telling received from fenced",
    without: { decideAnswer: () => ({ state: "success" }) },
    configuration: PAIRS.ask,
    breaks: ["a success has its effects"],
  },
  {
    guard: "refusing a fenced copy",
    without: { decideReceipt: (inbox) => decideReceipt(inbox) },
    configuration: PAIRS.ask,
    breaks: ["what an endpoint has fenced off is not applied"],
  },
  {
    guard: "storing the fence before it is told",
    without: { fenceBeforeAnswer: false },
    configuration: PAIRS.ask,
    breaks: ["what an endpoint has fenced off is not applied", NOTHING_MORE],
  },
  {
    guard: "the key that a question takes",
    without: { queryTakesKey: false },
    configuration: PAIRS.ask,
    breaks: ["what an endpoint has fenced off is not applied", NOTHING_MORE],
  },
  {
    guard: "the inbox that a question looks into",
    without: { decideQuery: (found) => (found === "present" ? "fenced" : decideQuery(found)) },
    configuration: PAIRS.ask,
    breaks: [NOTHING_MORE],
  },
];

/** The nearest way to break each of the promises, or null where there is none. */
export function searchWithout({
  without,
  configuration,
  breaks,
}: Removal): readonly [Invariant, Counterexample | null][] {
  const world = { ...configuration, guards: { ...INTACT, ...without } };
  return breaks.map((invariant, i) => {
    const { counterexample } = search(world, { maxStates: 100_000, ...(i > 0 && { only: invariant }) });
    return [invariant, counterexample?.invariant === invariant ? counterexample : null];
  });
}

function withoutTerm(...[stored, mine]: Parameters<typeof commitStream>): ReturnType<typeof commitStream> {
  return commitStream(stored, { ...mine, term: stored?.term ?? 0n });
}

function withoutCursor(...[stored, mine]: Parameters<typeof commitStream>): ReturnType<typeof commitStream> {
  return commitStream(stored, { ...mine, cursor: stored?.cursor ?? 0n });
}
