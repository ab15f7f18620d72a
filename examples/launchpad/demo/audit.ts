// Holds what is on record against what must be there. Nothing is assumed, and nothing is read or written here:
// evidence in, figures out.
import type { ChainEvent } from "./activity.ts";
import { CUSTOMER_TYPES } from "./customer.ts";
import type { EndpointEvidence, Evidence } from "./evidence.ts";
import { expectedBackers, expectedMessages, expectedTables, type Rows } from "./truth.ts";

/** How many there are; how many too often, not at all, or not as they must be. */
export interface Tally {
  readonly count: number;
  readonly twice: number;
  readonly lost: number;
  readonly wrong: number;
}

export interface EndpointFigures {
  readonly requests: number;
  /** Answered with 4xx or 5xx. */
  readonly refused: number;
  /** Requests for an event that the endpoint had accepted before. */
  readonly repeats: number;
  /** Those where every attempt that was accepted before is on record as `unknown`: the only ones allowed. */
  readonly repeatsAfterUnknown: number;
  /** Events that it never accepted. */
  readonly lost: number;
  /** Requests without an attempt of their own on record, or with another fencing token than their event's. */
  readonly offRecord: number;
}

export interface Figures {
  readonly chain: number;
  readonly stored: Tally;
  /** Counted by the tables themselves; `wrong` are rows that differ from what the chain says. */
  readonly projected: Tally;
  readonly messages: Tally;
  readonly deliveries: { readonly plain: Tally; readonly receiver: Tally };
  readonly endpoints: { readonly plain: EndpointFigures; readonly receiver: EndpointFigures };
  /** The customer's bookings; `wrong` are those of no event, and sums of its own that the chain denies. */
  readonly effects: Tally;
  readonly problems: readonly string[];
  readonly promises: readonly Promised[];
}

interface Promised {
  readonly promise: string;
  readonly kept: boolean;
}

/** The figures of a run, and which promises they keep. `events` is what was put on the chain. */
export function audit(events: readonly ChainEvent[], evidence: Evidence): Figures {
  const messages = expectedMessages(events);
  const forCustomer = messages.filter(({ type }) => CUSTOMER_TYPES.includes(type));
  const idOf = ({ eventId }: { readonly eventId: string }): string => eventId;
  const succeeded = ({ eventId, state = "success" }: { eventId: string; state?: string }): string =>
    `${eventId} ${state}`;
  const tokens = new Map<string, string>(messages.map(({ eventId, token }) => [eventId, token]));

  const stored = tally(evidence.chain, evidence.stored, ({ token, content }) => `${token} ${content}`);
  const projected = tallyRows(expectedTables(events), evidence.tables);
  const made = tally(
    messages,
    evidence.messages,
    ({ eventId, type, token }) => `${eventId} ${type} ${token}`,
  );
  const deliveries = {
    plain: tally(messages, evidence.plain.deliveries, succeeded),
    receiver: tally(forCustomer, evidence.receiver.deliveries, succeeded),
  };
  const endpoints = {
    plain: endpointFigures(messages.map(idOf), tokens, evidence.plain),
    receiver: endpointFigures(forCustomer.map(idOf), tokens, evidence.receiver),
  };
  const bookings = tally(forCustomer, evidence.effects, idOf);
  const differentSums = differentRows(expectedBackers(events), evidence.backers).length;
  const effects = { ...bookings, wrong: bookings.wrong + differentSums };

  const both = Object.values(endpoints);
  const promises = [
    promised(
      "Every event on the chain is stored once and unaltered.",
      events.length > 0 &&
        evidence.chain.length === events.length &&
        isClean(stored) &&
        evidence.problems.length === 0,
    ),
    promised(
      "The tables hold every event once, and every row is what the chain says.",
      isClean(projected) && projected.count === events.length,
    ),
    promised(
      "Each message makes one delivery for each webhook that wants it, and each arrives.",
      [made, deliveries.plain, deliveries.receiver].every(isClean) && both.every(({ lost }) => lost === 0),
    ),
    promised(
      "Every request carries the token of its event and was on record before it was sent.",
      both.every(({ offRecord }) => offRecord === 0),
    ),
    promised(
      "An endpoint sees a repeat only where the attempt before is on record as unknown.",
      both.every(({ repeats, repeatsAfterUnknown }) => repeats === repeatsAfterUnknown),
    ),
    promised("Behind the receiver library every event has its effects exactly once.", isClean(effects)),
  ];
  return {
    chain: events.length,
    stored,
    projected,
    messages: made,
    deliveries,
    endpoints,
    effects,
    problems: [...evidence.problems],
    promises,
  };
}

/** Whether every promise was kept. */
export function isKept({ promises }: Pick<Figures, "promises">): boolean {
  return promises.every(({ kept }) => kept);
}

function promised(promise: string, kept: boolean): Promised {
  return { promise, kept };
}

function isClean({ twice, lost, wrong }: Tally): boolean {
  return twice === 0 && lost === 0 && wrong === 0;
}

/** Compares two lists by what identifies their items, in full. */
function tally<T>(expected: readonly T[], found: readonly T[], keyOf: (item: T) => string): Tally {
  const wanted = new Set(expected.map(keyOf));
  const seen = new Set(found.map(keyOf));
  return {
    count: found.length,
    twice: found.length - seen.size,
    lost: [...wanted].filter((key) => !seen.has(key)).length,
    wrong: [...seen].filter((key) => !wanted.has(key)).length,
  };
}

/** Compares the tables by the count of events that their rows keep, and row by row. */
function tallyRows(expected: Rows, found: Rows): Tally {
  let [count, twice, lost] = [0, 0, 0];
  for (const key of new Set([...expected.keys(), ...found.keys()])) {
    const wanted = Number(expected.get(key)?.["events"] ?? 0);
    const counted = Number(found.get(key)?.["events"] ?? 0);
    count += counted;
    twice += Math.max(0, counted - wanted);
    lost += Math.max(0, wanted - counted);
  }
  return { count, twice, lost, wrong: differentRows(expected, found).length };
}

/** The keys of rows that are missing, too many, or not the same in a column. */
function differentRows(expected: Rows, found: Rows): readonly string[] {
  const text = (rows: Rows, key: string): string =>
    JSON.stringify(Object.entries(rows.get(key) ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)));
  const keys = new Set([...expected.keys(), ...found.keys()]);
  return [...keys].filter((key) => text(expected, key) !== text(found, key));
}

function endpointFigures(
  eventIds: readonly string[],
  tokens: ReadonlyMap<string, string>,
  { attempts, requests }: EndpointEvidence,
): EndpointFigures {
  const outcomes = new Map(attempts.map((a) => [`${a.eventId} ${a.number}`, a.outcome]));
  const accepted = requests.filter(({ status }) => status < 300);
  const repeats = requests.flatMap((request) => {
    const before = accepted.filter(
      ({ eventId, attempt }) => eventId === request.eventId && attempt < request.attempt,
    );
    return before.length > 0 ? [before] : [];
  });
  const unused = new Set(outcomes.keys());
  const onRecord = requests.filter(
    ({ eventId, attempt, token }) => unused.delete(`${eventId} ${attempt}`) && tokens.get(eventId) === token,
  );
  const acceptedIds = new Set(accepted.map(({ eventId }) => eventId));
  return {
    requests: requests.length,
    refused: requests.length - accepted.length,
    repeats: repeats.length,
    repeatsAfterUnknown: repeats.filter((before) =>
      before.every(({ eventId, attempt }) => outcomes.get(`${eventId} ${attempt}`) === "unknown"),
    ).length,
    lost: eventIds.filter((id) => !acceptedIds.has(id)).length,
    offRecord: requests.length - onRecord.length,
  };
}
