import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ATTEMPT_TIME, messageBody, NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  createReceiver,
  isReceiptQuery,
  MalformedBodyError,
  memoryInbox,
  verifyWebhook,
  WrongConsumerError,
} from "./index.ts";

const asked = { event_id: "evt_1", before: ATTEMPT_TIME };

function query(body: object) {
  return signedRequest({
    id: "query_1",
    body: JSON.stringify({ type: "webhook.receipt_query", events: [asked], ...body }),
  });
}

function receiverOf(consumer: string) {
  return createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 100 }), consumer, now: () => NOW });
}

const receiver = receiverOf("default");

describe("a receipt query", () => {
  test("is told from an event", () => {
    const opened = receiver.open(query({ consumer: "mail" }));
    expect(isReceiptQuery(opened)).toBe(true);
    expect(opened).toEqual({
      type: "webhook.receipt_query",
      queryId: "query_1",
      consumer: "mail",
      events: [{ eventId: "evt_1", before: ATTEMPT_TIME }],
    });
    expect(isReceiptQuery(receiver.open(signedRequest({})))).toBe(false);
    expect(receiver.open(query({ consumer: null }))).not.toHaveProperty("consumer");
  });

  test("is no event: it cannot be verified or handled as one", async () => {
    const { headers, body } = query({});
    for (const take of [
      () => receiver.verify({ headers, body }),
      () => receiver.handle({ headers, body }, () => {}),
      () => verifyWebhook({ headers, body, secrets: SECRET, now: NOW }),
    ]) {
      const error = await thrown(take);
      expect(error).toBeInstanceOf(MalformedBodyError);
      expect(error).toMatchObject({ eventId: "query_1", status: 400 });
    }
  });

  test.each([
    { events: undefined },
    { events: {} },
    { events: [] },
    { events: Array.from({ length: 501 }, (_, i) => ({ ...asked, event_id: `evt_${i}` })) },
    { events: [null] },
    { events: ["evt_1"] },
    { events: [{ before: 1 }] },
    { events: [{ ...asked, event_id: "a.b" }] },
    { events: [{ ...asked, event_id: "" }] },
    { events: [{ event_id: "evt_1" }] },
    { events: [{ ...asked, before: "1" }] },
    { events: [{ ...asked, before: -1 }] },
    { events: [{ ...asked, before: 1.5 }] },
    { events: [{ ...asked, before: ATTEMPT_TIME * 1_000 }] }, // milliseconds
    { events: [asked, asked] },
    { consumer: 5 },
  ])("that is malformed is refused whole: %j", async (body) => {
    const error = await thrown(() => receiver.open(query(body)));
    expect(error).toBeInstanceOf(MalformedBodyError);
    expect(error).toMatchObject({ eventId: "query_1", status: 400 });
  });

  test("may name 500 events, and an attempt a little ahead of its own time", () => {
    const events = Array.from({ length: 500 }, (_, i) => ({
      event_id: `evt_${i}`,
      before: ATTEMPT_TIME + 60,
    }));
    expect(receiver.open(query({ events }))).toMatchObject({ events: { length: 500 } });
  });

  test("is never taken for one whatever JSON it is, or is one with everything in its place", () => {
    const event = fc.record({ event_id: fc.constantFrom("evt_1", "evt_2", "a.b", 5), before: fc.anything() });
    fc.assert(
      fc.property(fc.oneof(fc.array(event), fc.jsonValue()), fc.jsonValue(), (events, consumer) => {
        try {
          const opened = receiver.open(query({ events, consumer }));
          if (!isReceiptQuery(opened)) throw new Error("It was taken for an event.");
          expect(opened.events.length).toBeGreaterThan(0);
          for (const { before } of opened.events) expect(Number.isSafeInteger(before)).toBe(true);
        } catch (error) {
          expect(error).toBeInstanceOf(MalformedBodyError);
        }
      }),
    );
  });
});

describe("the answer to a query", () => {
  test("names the consumer, how far back the inbox goes, and each event", async () => {
    const started = new Date("2026-06-01T00:00:00Z");
    const inbox = memoryInbox({ max: 9, now: () => started });
    const answering = createReceiver({ secrets: SECRET, inbox, consumer: "mail", now: () => NOW });
    await answering.handle(signedRequest({ id: "evt_2" }), () => {});
    const opened = answering.open(query({ events: [asked, { ...asked, event_id: "evt_2" }] }));
    expect(isReceiptQuery(opened) && (await answering.answerQuery(opened))).toEqual({
      consumer: "mail",
      retained_since: "2026-06-01T00:05:00.000Z",
      events: [
        { event_id: "evt_1", status: "fenced" },
        { event_id: "evt_2", status: "received" },
      ],
    });
  });

  test("is refused where another consumer is asked, and nothing is fenced off", async () => {
    const mail = receiverOf("mail");
    const opened = mail.open(query({ consumer: "billing" }));
    if (!isReceiptQuery(opened)) throw new Error("It is a query.");
    const error = await thrown(() => mail.answerQuery(opened));
    expect(error).toBeInstanceOf(WrongConsumerError);
    expect(error).toMatchObject({
      eventId: "query_1",
      status: 400,
      message: expect.stringContaining("billing"),
    });
    expect((await mail.handle(signedRequest({}), () => {})).outcome).toBe("applied");
  });

  test("does not depend on a body that only looks like a query", () => {
    const body = JSON.stringify({ ...JSON.parse(messageBody("evt_1")), events: [asked], consumer: "mail" });
    expect(receiver.open(signedRequest({ body }))).toMatchObject({ eventId: "evt_1" });
  });
});
