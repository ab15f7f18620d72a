// Source → events: one event in each ledger, and an empty ledger after the last one.
import { type State, type WindowCommit, without } from "./state.ts";
import { chainEvents, type Step, type World } from "./step.ts";

const BESIDES = {
  none: "",
  again: ", the earlier ones again",
  forged: ", the earlier ones with other content",
} as const;
const HASH = { first: Uint8Array.of(1), forged: Uint8Array.of(2) };

export function* ingestSteps(s: State, world: World): Generator<Step> {
  const { streamCommits: commits } = s;
  for (const [i, commit] of commits.entries()) {
    const { from, through, earlier, fresh } = commit;
    const about = `ledgers ${from} to ${through - 1}${BESIDES[earlier]}, read under ${fresh ? "the row's" : "an old"} term`;
    const rest = without(commits, i);
    const { to, refused } = commitWindow(s, commit, world);
    const again = (after: State): State => commitWindow(after, commit, world).to;
    yield {
      label: `ingest commits ${about}`,
      to: { ...to, streamCommits: rest },
      progress: true,
      stale: !fresh,
      again,
      ...(refused !== undefined && { refused }),
    };
    if (!world.guards.atomicIngest && to !== s) {
      const torn = { ...s, nextLedger: to.nextLedger, streamCommits: rest };
      yield {
        label: `ingest crashes between the cursor and the events of ${about}`,
        to: torn,
        stale: !fresh,
      };
    }
    yield { label: `ingest forgets ${about}`, to: { ...s, streamCommits: rest } };
  }
  if (s.streamLed && !s.halted && commits.length < world.workers) {
    for (let through = chainEvents(world) + 1; through > s.nextLedger; through--) {
      for (const earlier of ["none", "again", "forged"] as const) {
        if (earlier !== "none" && s.nextLedger === 0) continue;
        if (earlier === "forged" && !world.forgery) continue;
        yield {
          label: `ingest reads ledgers ${s.nextLedger} to ${through - 1}${BESIDES[earlier]}`,
          to: { ...s, streamCommits: [...commits, { fresh: true, from: s.nextLedger, through, earlier }] },
          progress: earlier === "none",
        };
      }
    }
  }
  // From a leader with nothing under way, taking over changes nothing that can be told apart.
  if (!s.streamLed || commits.some(({ fresh }) => fresh)) {
    yield {
      label: "a worker takes the stream over, its term is bumped",
      to: { ...s, streamLed: true, streamCommits: commits.map((commit) => ({ ...commit, fresh: false })) },
      progress: !s.streamLed,
    };
  }
  if (s.streamLed) yield { label: "the leader of the stream dies", to: { ...s, streamLed: false } };
}

/** The transaction of commitEvents: all of it under the lock of the stream's row, or nothing. */
function commitWindow(
  s: State,
  { fresh, from, through, earlier }: WindowCommit,
  world: World,
): { readonly to: State; readonly refused?: boolean } {
  const { commitStream, decideStored } = world.guards;
  const row = { term: 2n, cursor: BigInt(s.nextLedger) };
  const decision = commitStream(row, { term: fresh ? 2n : 1n, cursor: BigInt(from) });
  if (decision !== "commit") return { to: s };
  let stored = s.stored;
  let forged = false;
  const end = Math.min(through, chainEvents(world));
  for (let event = earlier === "none" ? from : 0; event < end; event++) {
    const known = s.stored.includes(event) ? HASH.first : undefined;
    const seen = known && earlier === "forged" && event < from ? HASH.forged : HASH.first;
    forged ||= seen === HASH.forged;
    const identity = decideStored(known, seen);
    // The transaction rolls back; the alarm has one of its own (insertConflict).
    if (identity === "conflict") return { to: { ...s, halted: true }, refused: true };
    if (identity === "new") stored = [...stored, event];
  }
  const halted = s.halted && world.guards.alarmStays;
  return { to: { ...s, stored, nextLedger: through, halted }, ...(forged && { refused: false }) };
}

/** Without ingest: the next event is there. */
export function* storedByItself(s: State, world: World): Generator<Step> {
  const next = s.stored.length;
  if (next >= chainEvents(world)) return;
  yield { label: `event ${next} is stored`, to: { ...s, stored: [...s.stored, next] }, progress: true };
}
