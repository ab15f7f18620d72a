import { asCallerEventId } from "@fencepost/token";
import { describe, expect, it, test } from "vitest";
import { buildReceiptQuery, readReceipts } from "./receiptQuery.ts";

const random = Buffer.alloc(13, 0xab);
const now = new Date("2026-06-19T00:21:26.900Z");
const seconds = BigInt(Math.floor(now.getTime() / 1_000));
const attempted = (id: string, lastTimestamp: bigint) => ({ eventId: asCallerEventId(id), lastTimestamp });

describe("a question", () => {
  it("names each event with the time of its last attempt, under an id of its own", () => {
    const query = buildReceiptQuery([attempted("a", 5n), attempted("b", seconds)], { random, now });
    expect(query.eventId).toBe("query_ababababababababababababab");
    expect(query.timestamp).toBe(seconds);
    expect(JSON.parse(query.body.toString("utf8"))).toEqual({
      type: "webhook.receipt_query",
      events: [
        { event_id: "a", before: 5 },
        { event_id: "b", before: Number(seconds) },
      ],
    });
  });

  it("is never signed for a time before that of an attempt which it names", () => {
    const ahead = seconds + 45n;
    const query = buildReceiptQuery([attempted("a", 5n), attempted("b", ahead)], { random, now });
    expect(query.timestamp).toBe(ahead);
  });
});

describe("an answer", () => {
  const read = (value: unknown) => readReceipts(Buffer.from(JSON.stringify(value)));

  it("tells each event's status, and how far back the inbox goes", () => {
    const receipts = read({
      consumer: "billing",
      retained_since: "2026-05-20T00:00:00.000Z",
      events: [
        { event_id: "a", status: "received" },
        { event_id: "b", status: "fenced", note: "more" },
        { event_id: "c", status: "in_progress" },
      ],
    });
    expect(receipts).toEqual({
      answers: new Map([
        ["a", "received"],
        ["b", "fenced"],
        ["c", "in_progress"],
      ]),
      retainedSince: new Date("2026-05-20T00:00:00.000Z"),
    });
    expect(read({ retained_since: null, events: [] })).toEqual({ answers: new Map(), retainedSince: null });
  });

  const event = { event_id: "a", status: "fenced" };
  test.each<readonly [string, unknown]>([
    ["null", null],
    ["a list", [event]],
    ["without retained_since, which could hide that it forgets", { events: [event] }],
    ["with a time that is none", { retained_since: "yesterday", events: [event] }],
    ["with a number for a time", { retained_since: 0, events: [event] }],
    ["without events", { retained_since: null }],
    ["with an unknown status", { retained_since: null, events: [event, { event_id: "b", status: "maybe" }] }],
    ["with an event without an id", { retained_since: null, events: [{ status: "received" }] }],
    ["with more events than were asked", { retained_since: null, events: Array(501).fill(event) }],
  ])("%s is none", (_what, value) => {
    expect(read(value)).toBe(undefined);
  });

  test.each(["", "ok", '{"events":[', "\u0000"])("%j is none", (text) => {
    expect(readReceipts(Buffer.from(text))).toBe(undefined);
  });

  it("that names an event twice is none", () => {
    const events = [
      { event_id: "a", status: "received" },
      { event_id: "a", status: "fenced" },
    ];
    expect(read({ retained_since: null, events })).toBe(undefined);
  });
});
