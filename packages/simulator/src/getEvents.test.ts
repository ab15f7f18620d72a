import { parseRpcId, rpcCursorAfterLedger } from "@fencepost/token";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { CONTRACTS, chainOf, ledgers, readAll, TOPICS } from "./__tests__/support/client.ts";
import { type GetEventsSettings, getEvents, RpcError, type View } from "./getEvents.ts";
import { type Chain, type EventRow, scv, startChain } from "./index.ts";

const SETTINGS: GetEventsSettings = {
  defaultLimit: 100,
  maxLimit: 10_000,
  scanLimit: 10_000,
  expired: "error",
  filterBug: false,
  hides: () => false,
};
const viewOf = (chain: Chain): View => ({
  chain,
  latest: chain.latest,
  oldest: chain.oldestAt(chain.latest),
});
const ask = (chain: Chain, params: unknown, settings: Partial<GetEventsSettings> = {}) =>
  getEvents(viewOf(chain), params, { ...SETTINGS, ...settings });
const refusal = (chain: Chain, params: unknown): string => {
  try {
    ask(chain, params);
  } catch (error) {
    if (error instanceof RpcError) return `${error.code} ${error.message}`;
    throw error;
  }
  return "accepted";
};

interface Filter {
  type?: string;
  contractIds?: string[];
  topics?: string[][];
}

const topicRow = fc
  .tuple(fc.array(fc.constantFrom(...TOPICS, "*"), { minLength: 1, maxLength: 4 }), fc.boolean())
  .map(([segments, open]) => (open ? [...segments, "**"] : segments));
const filter: fc.Arbitrary<Filter> = fc.record(
  {
    type: fc.constantFrom("contract", "system", "contract,system", ""),
    contractIds: fc.uniqueArray(fc.constantFrom(...CONTRACTS), { maxLength: 3 }),
    topics: fc.array(fc.oneof(topicRow, fc.constant<string[]>(["**"])), { maxLength: 3 }),
  },
  { requiredKeys: [] },
);
const filters = fc.array(filter, { maxLength: 3 });

/** The same rule in another way: topics as text, topic rows as regular expressions. */
function naiveMatch(row: EventRow, all: readonly Filter[]): boolean {
  const text = (row.topic ?? []).map((topic) => `${topic} `).join("");
  const pattern = (segments: readonly string[]): RegExp =>
    new RegExp(
      `^${segments
        .map((s) => (s === "**" ? "([^ ]+ )*" : s === "*" ? "[^ ]+ " : `${s.replace(/[+/]/g, "\\$&")} `))
        .join("")}$`,
    );
  if (all.length === 0) return true;
  for (const { type, contractIds, topics } of all) {
    if (type && !type.split(",").includes(row.type)) continue;
    if (contractIds?.length && !contractIds.includes(row.contractId)) continue;
    if (topics?.length && !topics.some((segments) => pattern(segments).test(text))) continue;
    return true;
  }
  return false;
}

describe("getEvents", () => {
  test("gives a client each matching event once and in order, for any page size, window and cut", async () => {
    const cut = fc.record(
      { rows: fc.integer({ min: 1, max: 5 }), beforeFirstMatch: fc.boolean() },
      { requiredKeys: [] },
    );
    await fc.assert(
      fc.asyncProperty(
        ledgers,
        filters,
        fc.integer({ min: 1, max: 20 }),
        fc.integer({ min: 2, max: 8 }),
        fc.infiniteStream(cut),
        async (events, wanted, limit, scanLimit, cuts) => {
          const chain = chainOf(events);
          const fetchPage = (params: unknown) => ask(chain, params, { scanLimit, cut: cuts.next().value });
          const { pages } = await readAll(fetchPage, {
            startLedger: chain.first,
            until: chain.latest,
            filters: wanted,
            limit,
          });
          // concatenated as they came: no row twice, none out of order
          expect(pages.flatMap((page) => page.events)).toEqual(
            [...chain.events()].filter((row) => naiveMatch(row, wanted)),
          );
          const cursors = pages.map(({ cursor }) => cursor);
          expect(cursors).toEqual([...new Set(cursors)].sort());
        },
      ),
    );
  });

  test("returns a full page's last id as the cursor, and the end of the window otherwise", () => {
    const chain = chainOf([[{ value: scv.u32(1) }, { value: scv.u32(2) }, { value: scv.u32(3) }], []], 700);
    const full = ask(chain, { startLedger: 700, pagination: { limit: 2 } });
    expect(full.cursor).toBe(full.events[1]!.id);
    const rest = ask(chain, { pagination: { limit: 2, cursor: full.cursor } });
    expect(rest.events).toHaveLength(1);
    expect(rest.cursor).toBe(rpcCursorAfterLedger(701));
    expect(rest.cursor).toBe(`${String((702n << 32n) - 1n).padStart(19, "0")}-4294967295`);
    // exactly full, and nothing behind it: still the id, and the next page is empty
    expect(ask(chain, { startLedger: 700, pagination: { limit: 3 } }).cursor).toBe(rest.events[0]!.id);
  });

  test("goes on from a cursor at the end of the last ledger with an empty page", () => {
    const chain = chainOf([[]], 700);
    const { events, cursor } = ask(chain, { pagination: { cursor: rpcCursorAfterLedger(700) } });
    expect([events, cursor]).toEqual([[], rpcCursorAfterLedger(700)]);
  });

  test("accepts a cursor without its leading zeros, as a node does", () => {
    const chain = chainOf([[{ value: scv.u32(1) }, { value: scv.u32(2) }]], 700);
    const [first, second] = [...chain.events()];
    const short = first!.id.split("-").map(Number).join("-");
    expect(ask(chain, { pagination: { cursor: short } }).events).toEqual([second]);
  });

  test("scans at most 10,000 ledgers, and its cursor moves on without a match", () => {
    const chain = startChain();
    chain.closeMany(25_000);
    chain.close({ events: [{ value: scv.u32(1) }] });
    const cursors: string[] = [];
    let page = ask(chain, { startLedger: 1 });
    while (page.events.length === 0) {
      cursors.push(page.cursor);
      page = ask(chain, { pagination: { cursor: page.cursor } });
    }
    // from a cursor the scan begins in the cursor's own ledger, so later windows overlap by one
    expect(cursors.map((cursor) => parseRpcId(cursor).ledger)).toEqual([10_000, 19_999]);
    expect(page.events).toHaveLength(1);
  });

  test("leaves out endLedger itself, and moves the cursor back when it is not after startLedger", () => {
    const chain = chainOf([[{ value: scv.u32(1) }], [{ value: scv.u32(2) }], []], 700);
    const bounded = ask(chain, { startLedger: 700, endLedger: 701 });
    expect(bounded.events.map(({ ledger }) => ledger)).toEqual([700]);
    expect(bounded.cursor).toBe(rpcCursorAfterLedger(700));
    expect(ask(chain, { startLedger: 702, endLedger: 701 })).toMatchObject({
      events: [],
      cursor: rpcCursorAfterLedger(700),
    });
  });

  test("returns 100 rows unless asked for, and the ledger range with close times as strings", () => {
    const chain = chainOf([Array.from({ length: 101 }, () => ({ value: scv.u32(1) }))], 700);
    const { events, cursor: _, ...range } = ask(chain, { startLedger: 700 });
    expect(events).toHaveLength(100);
    const closedAt = String(chain.ledger(700)!.closedAt);
    expect(range).toEqual({
      latestLedger: 700,
      oldestLedger: 700,
      latestLedgerCloseTime: closedAt,
      oldestLedgerCloseTime: closedAt,
    });
  });

  const range = "-32600 startLedger must be within the ledger range: 702 - 704";
  const badTopic = (row: unknown) => ({ startLedger: 703, filters: [{ topics: [row] }] });
  test.each([
    ["a ledger that is too old", { startLedger: 701 }, range],
    ["latest + 1", { startLedger: 705 }, range],
    ["a cursor that is too old", { pagination: { cursor: rpcCursorAfterLedger(701) } }, range],
    ["a cursor ahead of the node", { pagination: { cursor: rpcCursorAfterLedger(705) } }, range],
    ["no start", {}, "-32602 startLedger must be positive"],
    ["no parameters", undefined, "-32602 startLedger must be positive"],
    ["a list of parameters", [703], "-32602 invalid parameters: parameters must be an object"],
    [
      "a start that is text",
      { startLedger: "703" },
      "-32602 invalid parameters: startLedger must be an unsigned 32-bit integer",
    ],
    [
      "a negative limit",
      { startLedger: 703, pagination: { limit: -1 } },
      "-32602 invalid parameters: limit must be an unsigned 32-bit integer",
    ],
    [
      "a limit of 10,001",
      { startLedger: 703, pagination: { limit: 10_001 } },
      "-32602 limit must not exceed 10000",
    ],
    [
      "a cursor and a start",
      { startLedger: 703, pagination: { cursor: rpcCursorAfterLedger(703) } },
      "-32602 ledger ranges and cursor cannot both be set",
    ],
    [
      "a cursor and an end",
      { endLedger: 703, pagination: { cursor: rpcCursorAfterLedger(703) } },
      "-32602 ledger ranges and cursor cannot both be set",
    ],
    [
      "a cursor that is none",
      { pagination: { cursor: "x" } },
      "-32602 invalid parameters: invalid event id x",
    ],
    ["six filters", { startLedger: 703, filters: Array(6).fill({}) }, "-32602 maximum 5 filters per request"],
    [
      "six contracts",
      { startLedger: 703, filters: [{ contractIds: Array(6).fill(CONTRACTS[0]) }] },
      "-32602 filter 1 invalid: maximum 5 contract IDs per filter",
    ],
    [
      "a contract that is none",
      { startLedger: 703, filters: [{}, { contractIds: [CONTRACTS[0], "CABC"] }] },
      "-32602 filter 2 invalid: contract ID 2 invalid",
    ],
    [
      "six topic rows",
      { startLedger: 703, filters: [{ topics: Array(6).fill(["*"]) }] },
      "-32602 filter 1 invalid: maximum 5 topics per filter",
    ],
    [
      "diagnostic events",
      { startLedger: 703, filters: [{ type: "diagnostic" }] },
      "-32602 filter 1 invalid: filter type invalid: if set, type must be either 'system' or 'contract'",
    ],
    [
      "an empty topic row",
      badTopic([]),
      "-32602 filter 1 invalid: topic 1 invalid: topic must have at least 1 segment",
    ],
    [
      "five segments",
      badTopic(["*", "*", "*", "*", "*"]),
      "-32602 filter 1 invalid: topic 1 invalid: topic cannot have more than 4 segments",
    ],
    ["four segments and an open end", badTopic(["*", "*", "*", "*", "**"]), "accepted"],
    ["an open end alone", badTopic(["**"]), "accepted"],
    [
      "an open end that is not last",
      badTopic(["**", "*"]),
      "-32602 filter 1 invalid: topic 1 invalid: segment 1 invalid: wildcard '**' is only allowed as the last segment",
    ],
    [
      "a segment that is no value",
      badTopic(["AAAA"]),
      "-32602 invalid parameters: a topic segment is not a base64 ScVal: AAAA",
    ],
    [
      "the JSON form",
      { startLedger: 703, xdrFormat: "json" },
      "-32602 xdrFormat json is not simulated: base64 only",
    ],
    ["the base64 form", { startLedger: 703, xdrFormat: "base64" }, "accepted"],
    ["the oldest ledger", { startLedger: 702 }, "accepted"],
    ["a cursor in the oldest ledger", { pagination: { cursor: rpcCursorAfterLedger(702) } }, "accepted"],
  ])("answers %s as a node does", (_, params, expected) => {
    const chain = startChain({ firstLedger: 700, retention: 3 });
    chain.closeMany(5);
    expect(refusal(chain, params)).toBe(expected);
  });

  test("has nothing to say before the first ledger", () => {
    expect(refusal(startChain(), { startLedger: 1 })).toBe("-32603 DB is empty");
  });

  test("answers an expired cursor with an empty page and a cursor further on, where a provider does", () => {
    const chain = startChain({ retention: 3 });
    chain.close({ events: [{ value: scv.u32(1) }] });
    chain.closeMany(9);
    const params = { pagination: { cursor: rpcCursorAfterLedger(1) } };
    expect(refusal(chain, params)).toMatch(/-32600/);
    expect(ask(chain, params, { expired: "empty" })).toMatchObject({ events: [], oldestLedger: 8 });
  });

  test("serves full pages without the rows that it is said not to have", () => {
    const chain = chainOf(
      Array.from({ length: 9 }, () => [{ value: scv.u32(1) }]),
      1,
    );
    const settings = { hides: ({ ledger }: EventRow) => ledger % 3 === 0 };
    const page = ask(chain, { startLedger: 1, pagination: { limit: 4 } }, settings);
    expect(page.events.map(({ ledger }) => ledger)).toEqual([1, 2, 4, 5]);
    expect(page.cursor).toBe(page.events.at(-1)?.id);
  });

  test("misses events for filters with different keys only where the old bug is asked for", () => {
    const chain = chainOf([[{ value: scv.u32(1), contract: CONTRACTS[1]!, topics: [TOPICS[0]!] }]], 700);
    const mixed = [{ contractIds: [CONTRACTS[0]] }, { topics: [[TOPICS[0]]] }];
    const symmetric = mixed.map((each) => ({
      contractIds: CONTRACTS.slice(0, 2),
      topics: [["**"]],
      ...each,
    }));
    const count = (filters: unknown, filterBug: boolean) =>
      ask(chain, { startLedger: 700, filters }, { filterBug }).events.length;
    expect([count(mixed, false), count(mixed, true)]).toEqual([1, 0]);
    expect([count(symmetric, false), count(symmetric, true)]).toEqual([1, 1]);
  });
});
