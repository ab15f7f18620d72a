import { formatRpcId, rpcCursorAfterLedger } from "@fencepost/token";
import { describe, expect, test } from "vitest";
import { SourceUnavailableError } from "./errors.ts";
import { parseEventsPage } from "./eventsPage.ts";

const MINE = "CMINE";
const watched = new Set([MINE]);
const after = rpcCursorAfterLedger(9);

function row(ledger: number, event: number, fields: object = {}): object {
  return {
    type: "contract",
    ledger,
    ledgerClosedAt: "2026-06-19T00:21:26Z",
    contractId: MINE,
    id: formatRpcId({ ledger, tx: 1, op: 0, event }),
    operationIndex: 0,
    transactionIndex: 1,
    txHash: "ab".repeat(32),
    topic: ["AAAA"],
    value: "AAAA",
    ...fields,
  };
}

function page(fields: object = {}): object {
  return {
    events: [row(10, 0), row(11, 0)],
    cursor: rpcCursorAfterLedger(11),
    latestLedger: 20,
    oldestLedger: 1,
    latestLedgerCloseTime: "1781828486",
    oldestLedgerCloseTime: "1781828000",
    ...fields,
  };
}

const idsOf = (result: object) => parseEventsPage(result, watched, after).events.map((event) => event.id);

test("a page whose cursor ends a ledger completes that ledger; one that ends in a ledger completes the one before", () => {
  expect(parseEventsPage(page(), watched, after)).toMatchObject({
    completeThrough: 11,
    latestLedger: 20,
    oldestLedger: 1,
  });
  const inside = formatRpcId({ ledger: 11, tx: 1, op: 0, event: 0 });
  expect(parseEventsPage(page({ cursor: inside }), watched, after).completeThrough).toBe(10);
});

test.each([
  ["as text, as getEvents writes them", "1781828486", 1_781_828_486],
  ["as numbers, as other methods do", 1_781_828_486, 1_781_828_486],
  ["not at all, as some providers do", undefined, undefined],
  ["as nothing that is a time", "soon", undefined],
])("close times of the range may stand in it %s", (_, given, expected) => {
  const parsed = parseEventsPage(page({ latestLedgerCloseTime: given }), watched, after);
  expect(parsed.latestClosedAt).toBe(expected);
  expect(parsed.oldestClosedAt).toBe(1_781_828_000);
});

test("rows come in chain order, each once, whatever order and number they are served in", () => {
  const [a, b, c] = [row(10, 0), row(10, 1), row(11, 0)];
  expect(idsOf(page({ events: [c, a, b, a, c] }))).toEqual(idsOf(page({ events: [a, b, c] })));
  expect(idsOf(page({ events: [c, a, b, a, c] }))).toHaveLength(3);
});

test("rows up to the asked position and beyond the page's own cursor are left out", () => {
  expect(idsOf(page({ events: [row(9, 7), row(10, 0), row(12, 0)] }))).toEqual([
    formatRpcId({ ledger: 10, tx: 1, op: 0, event: 0 }),
  ]);
});

test("rows of other contracts, of no contract and of other types are left out", () => {
  const others = [
    row(10, 1, { contractId: "COTHER" }),
    row(10, 2, { contractId: "" }),
    row(10, 3, { type: "diagnostic" }),
  ];
  expect(idsOf(page({ events: [row(10, 0), ...others] }))).toHaveLength(1);
});

test("an event without topics has none, and one of type system is kept with its type", () => {
  const events = [row(10, 0, { topic: undefined, type: "system", inSuccessfulContractCall: undefined })];
  expect(parseEventsPage(page({ events }), watched, after).events).toEqual([
    {
      id: formatRpcId({ ledger: 10, tx: 1, op: 0, event: 0 }),
      type: "system",
      ledger: 10,
      closedAt: "2026-06-19T00:21:26Z",
      contractId: MINE,
      txHash: "ab".repeat(32),
      topics: [],
      value: "AAAA",
    },
  ]);
});

describe("an answer that no sound node gives is refused, to be asked for again:", () => {
  test.each<[why: string, result: unknown, reason: RegExp]>([
    ["no object", null, /not an object/],
    ["no cursor", page({ cursor: undefined }), /cursor is not a text/],
    ["a cursor that is none", page({ cursor: "12" }), /wrong id or cursor/],
    ["a cursor that went back", page({ cursor: rpcCursorAfterLedger(8) }), /went back/],
    ["a cursor that stands still below the latest ledger", page({ cursor: after }), /stands still/],
    ["a cursor beyond the latest ledger", page({ cursor: rpcCursorAfterLedger(21) }), /ahead of its latest/],
    ["an oldest ledger above the latest", page({ oldestLedger: 21 }), /has ledgers 21 to 20/],
    ["a ledger as a text", page({ latestLedger: "20" }), /latestLedger is not a ledger/],
    ["a ledger beyond 31 bits", page({ latestLedger: 2 ** 31 }), /latestLedger is not a ledger/],
    ["events that are no list", page({ events: {} }), /not a list/],
    ["an event that is no object", page({ events: ["x"] }), /an event is not an object/],
    ["an id of another ledger", page({ events: [row(10, 0, { ledger: 11 })] }), /says it is of ledger 11/],
    ["a wrong id", page({ events: [row(10, 0, { id: "1-1" })] }), /wrong id or cursor/],
    [
      "a close time that is none",
      page({ events: [row(10, 0, { ledgerClosedAt: "1781828486" })] }),
      /close time/,
    ],
    ["topics that are no texts", page({ events: [row(10, 0, { topic: [1] })] }), /topic is not a text/],
    [
      "topics that are no list",
      page({ events: [row(10, 0, { topic: "AAAA" })] }),
      /topics that are not a list/,
    ],
    ["a value that is missing", page({ events: [row(10, 0, { value: undefined })] }), /value is not a text/],
    ["a NUL, which no database keeps", page({ events: [row(10, 0, { value: "A\0" })] }), /no text/],
    ["half a character", page({ events: [row(10, 0, { topic: ["\ud800"] })] }), /no text/],
    [
      "one event with two contents",
      page({ events: [row(10, 0), row(10, 0, { value: "AAAB" })] }),
      /twice, with different content/,
    ],
  ])("%s", (_, result, reason) => {
    const parse = () => parseEventsPage(result, watched, after);
    expect(parse).toThrow(SourceUnavailableError);
    expect(parse).toThrow(reason);
  });
});

test("a cursor may stand still at the latest ledger, and where the node no longer has the next one", () => {
  const atEnd = page({ events: [], cursor: after, latestLedger: 9 });
  expect(parseEventsPage(atEnd, watched, after).completeThrough).toBe(9);
  const expired = page({ events: [], cursor: after, oldestLedger: 15 });
  expect(parseEventsPage(expired, watched, after).oldestLedger).toBe(15);
});
