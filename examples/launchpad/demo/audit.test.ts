import { seededRandom, startChain } from "@fencepost/simulator";
import { expect, test } from "vitest";
import { type ChainEvent, closeLedger, planActivity, tokenOnChain, WATCHED } from "./activity.ts";
import { audit, isKept } from "./audit.ts";
import { CUSTOMER_TYPES } from "./customer.ts";
import type { EndpointEvidence, Evidence, StoredEvent } from "./evidence.ts";
import { type ExpectedMessage, expectedBackers, expectedMessages, expectedTables } from "./truth.ts";

const SEED = 11;
const { events, chain } = playActivity();
const messages = expectedMessages(events);
const forCustomer = messages.filter(({ type }) => CUSTOMER_TYPES.includes(type));
const first = messages[0]!;

function playActivity(): { events: readonly ChainEvent[]; chain: readonly StoredEvent[] } {
  const simulated = startChain({ firstLedger: 100 });
  const events = planActivity(seededRandom(SEED), 200).flatMap((ledger, i) =>
    closeLedger(simulated, ledger, 1_800_000_000 + i),
  );
  const chain = [...simulated.events()]
    .filter(({ contractId }) => WATCHED.includes(contractId))
    .map(({ id, value }) => ({ token: tokenOnChain(id), content: value }));
  return { events, chain };
}

/** An endpoint that accepted each event at the first attempt, all of it on record. */
function faultless(wanted: readonly ExpectedMessage[]): EndpointEvidence {
  return {
    deliveries: wanted.map(({ eventId }) => ({ eventId, state: "success" })),
    attempts: wanted.map(({ eventId }) => ({ eventId, number: 1, outcome: "delivered" })),
    requests: wanted.map(({ eventId, token }) => ({ eventId, token, attempt: 1, status: 200 })),
  };
}

const FAULTLESS: Evidence = {
  chain,
  stored: chain,
  problems: [],
  tables: expectedTables(events),
  messages,
  plain: faultless(messages),
  receiver: faultless(forCustomer),
  effects: forCustomer,
  backers: expectedBackers(events),
};

const broken = (evidence: Evidence): readonly number[] =>
  audit(events, evidence).promises.flatMap(({ kept }, i) => (kept ? [] : [i + 1]));

test("one seed gives one chain, with as many events as were asked for", () => {
  expect(events).toHaveLength(200);
  expect(chain).toEqual(playActivity().chain);
  const kinds = new Set(
    planActivity(seededRandom(SEED), 5_000).flatMap((ledger) => ledger.flat().map((e) => e.kind)),
  );
  expect(kinds.size).toBe(9);
});

test("a run without a fault keeps every promise", () => {
  expect(broken(FAULTLESS)).toEqual([]);
  expect(isKept(audit(events, FAULTLESS))).toBe(true);
  expect(isKept(audit(events, { ...FAULTLESS, effects: [] }))).toBe(false);
});

test("an event that is not stored, stored twice, altered or from nowhere breaks the first promise", () => {
  const [event, ...others] = chain as [StoredEvent, ...StoredEvent[]];
  expect(broken({ ...FAULTLESS, stored: others })).toEqual([1]);
  expect(broken({ ...FAULTLESS, stored: [...chain, event] })).toEqual([1]);
  expect(broken({ ...FAULTLESS, stored: [{ ...event, content: "other" }, ...others] })).toEqual([1]);
  expect(broken({ ...FAULTLESS, problems: ["a gap"] })).toEqual([1]);
  expect(broken({ ...FAULTLESS, chain: others, stored: others })).toEqual([1]);
});

test("a row that counts an event twice or not at all, differs or is missing breaks the second promise", () => {
  const change = (key: string, columns: Record<string, string>): Evidence => ({
    ...FAULTLESS,
    tables: new Map(FAULTLESS.tables).set(key, { ...FAULTLESS.tables.get(key), ...columns }),
  });
  const counted = Number(FAULTLESS.tables.get("campaigns 1")!["events"]);
  expect(broken(change("campaigns 1", { events: String(counted + 1) }))).toEqual([2]);
  expect(audit(events, change("campaigns 1", { events: String(counted + 1) })).projected.twice).toBe(1);
  expect(audit(events, change("campaigns 1", { events: String(counted - 1) })).projected.lost).toBe(1);
  expect(broken(change("campaigns 1", { raised: "1" }))).toEqual([2]);
  expect(broken(change("campaigns 1", { last_token: first.token }))).toEqual([2]);
  expect(broken(change("accounts somebody", { balance: "1" }))).toEqual([2]);
  const missing = new Map(FAULTLESS.tables);
  missing.delete("campaigns 1");
  expect(broken({ ...FAULTLESS, tables: missing })).toEqual([2]);
});

test("a message or a delivery that is missing, made twice or has not arrived breaks the third promise", () => {
  const { plain } = FAULTLESS;
  const [delivery, ...others] = plain.deliveries;
  const withDeliveries = (deliveries: EndpointEvidence["deliveries"]): Evidence => ({
    ...FAULTLESS,
    plain: { ...plain, deliveries },
  });
  expect(broken({ ...FAULTLESS, messages: messages.slice(1) })).toEqual([3]);
  expect(broken({ ...FAULTLESS, messages: [...messages, first] })).toEqual([3]);
  expect(broken({ ...FAULTLESS, messages: [{ ...first, type: "other" }, ...messages.slice(1)] })).toEqual([
    3,
  ]);
  expect(broken(withDeliveries(others))).toEqual([3]);
  expect(broken(withDeliveries([...plain.deliveries, delivery!]))).toEqual([3]);
  expect(broken(withDeliveries([{ ...delivery!, state: "failed" }, ...others]))).toEqual([3]);
  expect(broken({ ...FAULTLESS, plain: { ...plain, requests: plain.requests.slice(1) } })).toEqual([3]);
});

test("a request that is not on record, shares an attempt or has another token breaks the fourth promise", () => {
  const { plain } = FAULTLESS;
  const [request, ...others] = plain.requests;
  const withRequests = (requests: EndpointEvidence["requests"]): Evidence => ({
    ...FAULTLESS,
    plain: { ...plain, requests },
  });
  expect(broken(withRequests([...plain.requests, request!]))).toEqual([4]);
  expect(broken(withRequests([{ ...request!, token: messages[1]!.token }, ...others]))).toEqual([4]);
  expect(broken({ ...FAULTLESS, plain: { ...plain, attempts: plain.attempts.slice(1) } })).toEqual([4]);
});

test("a repeat breaks the fifth promise unless what was accepted before is on record as unknown", () => {
  const { plain } = FAULTLESS;
  const { eventId, token } = first;
  const repeatedAfter = (outcome: string): Evidence => ({
    ...FAULTLESS,
    plain: {
      ...plain,
      attempts: [
        ...plain.attempts.map((attempt) => (attempt.eventId === eventId ? { ...attempt, outcome } : attempt)),
        { eventId, number: 2, outcome: "delivered" },
      ],
      requests: [...plain.requests, { eventId, token, attempt: 2, status: 200 }],
    },
  });
  expect(broken(repeatedAfter("delivered"))).toEqual([5]);
  expect(broken(repeatedAfter("rejected"))).toEqual([5]);
  expect(broken(repeatedAfter("unknown"))).toEqual([]);
  expect(audit(events, repeatedAfter("unknown")).endpoints.plain).toMatchObject({
    repeats: 1,
    repeatsAfterUnknown: 1,
  });
});

test("an effect that is missing, happens twice or sums up to something else breaks the sixth promise", () => {
  expect(broken({ ...FAULTLESS, effects: forCustomer.slice(1) })).toEqual([6]);
  expect(broken({ ...FAULTLESS, effects: [...forCustomer, forCustomer[0]!] })).toEqual([6]);
  expect(broken({ ...FAULTLESS, effects: [...forCustomer, first] })).toEqual([6]);
  const backers = new Map([...FAULTLESS.backers].map(([key]) => [key, { pledged: "1" }]));
  expect(broken({ ...FAULTLESS, backers })).toEqual([6]);
});
