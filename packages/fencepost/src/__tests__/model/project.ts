// Events → tables and messages: the handler writes one row and emits one message for each event.
import { type PendingCommit, put, type State, without } from "./state.ts";
import { chainEvents, type Step, type World } from "./step.ts";

const CONTENT = Uint8Array.of(1);

export function* projectSteps(s: State, world: World): Generator<Step> {
  const { projectionCommits: commits } = s;
  for (const [i, commit] of commits.entries()) {
    const { from, through, fresh } = commit;
    const about = `seq ${from + 1} to ${through}, read under ${fresh ? "the row's" : "an old"} term`;
    const rest = without(commits, i);
    const to = commitBatch(s, commit, world);
    yield {
      label: `project commits ${about}`,
      to: { ...to, projectionCommits: rest },
      progress: true,
      stale: !fresh,
      again: (after) => commitBatch(after, commit, world),
    };
    if (!world.guards.atomicProject && to !== s) {
      const torn = { ...to, cursor: s.cursor, projectionCommits: rest };
      yield { label: `project crashes between the rows and the cursor of ${about}`, to: torn, stale: !fresh };
    }
    yield { label: `project forgets ${about}`, to: { ...s, projectionCommits: rest } };
  }
  if (s.projectionLed && commits.length < world.workers) {
    for (let through = s.stored.length; through > s.cursor; through--) {
      yield {
        label: `project reads seq ${s.cursor + 1} to ${through}`,
        to: { ...s, projectionCommits: [...commits, { fresh: true, from: s.cursor, through }] },
        progress: true,
      };
    }
  }
  if (!s.projectionLed || commits.some(({ fresh }) => fresh)) {
    const stale = commits.map((commit) => ({ ...commit, fresh: false }));
    yield {
      label: "a worker takes the projection over, its term is bumped",
      to: { ...s, projectionLed: true, projectionCommits: stale },
      progress: !s.projectionLed,
    };
  }
  if (s.projectionLed)
    yield { label: "the leader of the projection dies", to: { ...s, projectionLed: false } };
}

/** The transaction of apply: tables, messages, outbox and cursor under the lock of the projection's row. */
function commitBatch(s: State, { fresh, from, through }: PendingCommit, { guards }: World): State {
  const row = { term: 2n, cursor: BigInt(s.cursor) };
  if (guards.commitProjection(row, { term: fresh ? 2n : 1n, cursor: BigInt(from) }) !== "commit") return s;
  let to: State = { ...s, cursor: through };
  for (const event of s.stored.slice(from, through)) {
    to = { ...to, applied: put(to.applied, event, to.applied[event]! + 1) };
    const known = to.messages[event]! > 0 ? CONTENT : undefined;
    if (guards.decideMessage(known, CONTENT) === "new") to = emit(to, event);
  }
  return to;
}

/** The message and its row of the outbox: one statement (insertMessages). */
function emit(s: State, event: number): State {
  return {
    ...s,
    messages: put(s.messages, event, s.messages[event]! + 1),
    outbox: put(s.outbox, event, true),
  };
}

/** Without project: the next message is there. */
export function* emittedByItself(s: State, world: World): Generator<Step> {
  const next = s.messages.indexOf(0);
  if (next < 0 || next >= chainEvents(world)) return;
  yield { label: `message ${next} is emitted`, to: emit(s, next), progress: true };
}
