// Messages → one delivery for each pair: fan-out of the outbox, the look back of a new webhook, and dispatch().
import { type Dispatching, put, type State, without } from "./state.ts";
import type { Step, World } from "./step.ts";

const CONTENT = Uint8Array.of(1);
const OTHER = Uint8Array.of(2);

export function* dispatchSteps(s: State, world: World): Generator<Step> {
  const { dispatching } = s;
  for (const [i, work] of dispatching.entries()) {
    const rest = without(dispatching, i);
    const about = `${work.kind} of ${listed(work.events)}`;
    const { to, refused } = commitDispatching(s, work, world);
    yield {
      label: `${about} commits`,
      to: { ...to, dispatching: rest },
      progress: true,
      again: (after) => commitDispatching(after, work, world).to,
      ...(refused !== undefined && { refused }),
    };
    yield { label: `${about} is rolled back`, to: { ...s, dispatching: rest } };
  }
  if (dispatching.length < world.workers) {
    // FOR UPDATE SKIP LOCKED: rows that another fan-out has are not offered.
    const locked = dispatching.reduce((sum, work) => (work.kind === "fanOut" ? sum | work.events : sum), 0);
    const offered = maskOf(s.outbox) & ~locked;
    if (offered !== 0) {
      yield {
        label: `fanOut takes ${listed(offered)} from the outbox`,
        to: {
          ...s,
          dispatching: [...dispatching, { kind: "fanOut", events: offered, sawWebhook: s.webhook }],
        },
        progress: true,
      };
    }
    if (s.catchUp && !dispatching.some(({ kind }) => kind === "catchUp")) {
      const events = maskOf(s.messages.map((rows) => rows > 0));
      yield {
        label: `catchUp looks back and sees ${listed(events)}`,
        to: { ...s, dispatching: [...dispatching, { kind: "catchUp", events }] },
        progress: true,
      };
    }
    if (world.caller) {
      for (const forged of [false, true]) {
        yield {
          label: `a caller dispatches message ${world.events - 1}${forged ? " with other content" : ""}`,
          to: {
            ...s,
            dispatching: [...dispatching, { kind: "call", events: 1 << (world.events - 1), forged }],
          },
          progress: s.messages.at(-1) === 0 && !forged,
        };
      }
    }
  }
  if (!s.webhook) {
    const { catchUpWithWebhook } = world.guards;
    yield {
      label: "a webhook is added",
      to: { ...s, webhook: true, catchUp: catchUpWithWebhook },
      progress: true,
    };
  }
  if (world.reoffers) {
    for (const [event, waits] of s.outbox.entries()) {
      if (waits || s.messages[event] === 0) continue;
      yield {
        label: `the outbox row of message ${event} comes back`,
        to: { ...s, outbox: put(s.outbox, event, true) },
      };
    }
  }
}

function commitDispatching(
  s: State,
  work: Dispatching,
  { guards }: World,
): { readonly to: State; readonly refused?: boolean } {
  const events = eventsOf(work.events);
  let to = s;
  switch (work.kind) {
    case "fanOut":
      for (const event of events) {
        if (work.sawWebhook) to = insertDelivery(to, event, guards.uniquePair);
        to = { ...to, outbox: put(to.outbox, event, false) };
      }
      return { to };
    case "catchUp":
      for (const event of events) to = insertDelivery(to, event, guards.uniquePair);
      return { to: { ...to, catchUp: false } };
    case "call":
      for (const event of events) {
        const known = s.messages[event]! > 0 ? CONTENT : undefined;
        // Whoever is first says what the content is: later ones are compared with it.
        const decision = guards.decideMessage(known, work.forged && known ? OTHER : CONTENT);
        if (decision === "mismatch") return { to: s, refused: true };
        if (decision === "new") to = { ...to, messages: put(to.messages, event, to.messages[event]! + 1) };
        to = insertDelivery(to, event, guards.uniquePair);
        if (work.forged && known) return { to, refused: false };
      }
      return { to };
  }
}

/** INSERT … ON CONFLICT (event_id, webhook_id) DO NOTHING, and the queue row of what is new. */
function insertDelivery(s: State, event: number, unique: boolean): State {
  const delivery = s.deliveries[event]!;
  if (unique && delivery.rows > 0) return s;
  const made = { ...delivery, rows: delivery.rows + 1, queue: "free" as const };
  return { ...s, deliveries: put(s.deliveries, event, made) };
}

/** Without dispatch: the delivery of any event is there. */
export function* dispatchedByItself(s: State): Generator<Step> {
  for (const [event, { rows }] of s.deliveries.entries()) {
    if (rows > 0) continue;
    yield { label: `delivery ${event} is made`, to: insertDelivery(s, event, true), progress: true };
  }
}

function maskOf(flags: readonly boolean[]): number {
  return flags.reduce((sum, flag, event) => sum | (flag ? 1 << event : 0), 0);
}

function eventsOf(mask: number): readonly number[] {
  return [0, 1, 2].filter((event) => (mask >> event) & 1);
}

function listed(events: number): string {
  const numbers = eventsOf(events);
  return numbers.length === 0 ? "nothing" : `message ${numbers.join(" and ")}`;
}
