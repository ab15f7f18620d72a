import type { RequestListener } from "node:http";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Deferred, deferred } from "../deferred.ts";
import {
  type AdapterOptions,
  AttemptFencedError,
  BodyTimeoutError,
  BodyTooLargeError,
  type ClaimTransaction,
  createReceiver,
  IncompleteBodyError,
  memoryInbox,
  type Receiver,
  type WebhookHandler,
  type WebhookMessage,
} from "../index.ts";
import { beginPost, post, serve, type TestServer } from "./httpServer.ts";
import { ATTEMPT_TIME, messageBody, NOW, OTHER_SECRET, SECRET, signedRequest } from "./signedRequest.ts";

/** Mounts a receiver and a handler on a server, as one adapter does. */
export type Mount = (
  receiver: Receiver<ClaimTransaction>,
  handler: WebhookHandler<ClaimTransaction>,
  options: AdapterOptions,
) => RequestListener;

const MAX_BODY_BYTES = 20_000;

/** What every adapter does with a request over real HTTP. */
export function adapterConformance(mount: Mount): void {
  describe("over HTTP", () => {
    let server: TestServer;
    let impatient: TestServer; // the same, with less time for a body
    let errors: { error: unknown; status: number }[];
    let applied: WebhookMessage[];
    let failure: Error | undefined;
    let arrived: Deferred;
    let refused: Deferred;

    beforeAll(async () => {
      const handler = (message: WebhookMessage) => {
        if (failure !== undefined) throw failure;
        applied.push(message);
      };
      const onError = (error: unknown, status: number) => {
        errors.push({ error, status });
        refused.resolve();
      };
      const start = (bodyTimeoutMs: number) => {
        const receiver = createReceiver({
          secrets: SECRET,
          inbox: memoryInbox({ max: 100 }),
          now: () => NOW,
          maxBodyBytes: MAX_BODY_BYTES,
          bodyTimeoutMs,
        });
        const listener = mount(receiver, handler, { onError });
        return serve((request, response) => {
          arrived.resolve();
          return listener(request, response);
        });
      };
      server = await start(20_000);
      impatient = await start(50);
    });

    afterAll(async () => {
      await server.close();
      await impatient.close();
    });

    beforeEach(() => {
      errors = [];
      applied = [];
      failure = undefined;
      arrived = deferred();
      refused = deferred();
    });

    test("an event is applied once and answered with 200 each time", async () => {
      const request = signedRequest({ id: "evt_twice" });
      const answers = [await post(server.url, request), await post(server.url, request)];
      expect(answers).toEqual([
        { status: 200, json: { outcome: "applied", event_id: "evt_twice" } },
        { status: 200, json: { outcome: "already", event_id: "evt_twice" } },
      ]);
      expect(applied.map(({ eventId }) => eventId)).toEqual(["evt_twice"]);
      expect(Buffer.from(applied[0]!.raw)).toEqual(request.body);
      expect(errors).toEqual([]);
    });

    test("eight copies at once are applied once and all answered with 200", async () => {
      const request = signedRequest({ id: "evt_race" });
      const answers = await Promise.all(Array.from({ length: 8 }, () => post(server.url, request)));
      expect(answers.map(({ status }) => status)).toEqual(Array(8).fill(200));
      expect(applied).toHaveLength(1);
    });

    test("a receipt query fences off what is not here, and the late attempt is told so in a way of its own", async () => {
      await post(server.url, signedRequest({ id: "evt_here" }));
      const events = ["evt_here", "evt_late"].map((event_id) => ({ event_id, before: ATTEMPT_TIME }));
      const body = JSON.stringify({ type: "webhook.receipt_query", events });
      expect(await post(server.url, signedRequest({ id: "query_1", body }))).toEqual({
        status: 200,
        json: {
          consumer: "default",
          retained_since: expect.any(String),
          events: [
            { event_id: "evt_here", status: "received" },
            { event_id: "evt_late", status: "fenced" },
          ],
        },
      });
      expect(await post(server.url, signedRequest({ id: "evt_late" }))).toEqual({
        status: 409,
        json: { error: "fenced", event_id: "evt_late", message: expect.any(String) },
        fenced: "true",
      });
      expect(errors).toEqual([{ error: refusal(AttemptFencedError, "evt_late"), status: 409 }]);
      const later = signedRequest({ id: "evt_late", timestamp: ATTEMPT_TIME + 1 });
      expect((await post(server.url, later)).json).toEqual({ outcome: "applied", event_id: "evt_late" });
      expect(applied.map(({ eventId }) => eventId)).toEqual(["evt_here", "evt_late"]);
    });

    test.each([
      [401, "InvalidSignatureError", { secrets: [OTHER_SECRET] }, {}],
      [401, "StaleTimestampError", { timestamp: 5 }, {}],
      [400, "MalformedBodyError", {}, { events: [] }],
      [400, "WrongConsumerError", {}, { consumer: "mail" }],
    ])("a query that is refused is answered with %d and the name %s", async (status, name, how, change) => {
      const events = [{ event_id: "evt_asked", before: 5 }];
      const body = JSON.stringify({ type: "webhook.receipt_query", events, ...change });
      const answer = await post(server.url, signedRequest({ id: "query_1", body, ...how }));
      expect(answer).toEqual({ status, json: { error: name, message: expect.any(String) } });
      expect(errors).toEqual([{ error: expect.objectContaining({ name, eventId: "query_1" }), status }]);
    });

    test("a body of every kind of character arrives as it was signed", async () => {
      const body = messageBody("evt_text", "grüße \u0000 \u2028 🌍");
      const { status } = await post(server.url, signedRequest({ id: "evt_text", body }));
      expect([status, applied[0]?.data]).toEqual([200, "grüße \u0000 \u2028 🌍"]);
    });

    test.each([
      [400, "MissingHeaderError", { headers: {} }],
      [400, "MalformedHeaderError", signedRequest({ id: "a.b" })],
      [400, "MalformedBodyError", signedRequest({ body: "{}" })],
      [400, "MalformedBodyError", signedRequest({ body: "" })],
      [400, "EventIdMismatchError", signedRequest({ body: messageBody("evt_2") })],
      [401, "InvalidSignatureError", signedRequest({ secrets: [OTHER_SECRET] })],
      [401, "StaleTimestampError", signedRequest({ timestamp: 5 })],
    ])("what is refused is answered with %d and the name %s", async (status, name, request) => {
      const answer = await post(server.url, { ...signedRequest({}), ...request });
      expect(answer).toEqual({ status, json: { error: name, message: expect.any(String) } });
      expect(errors).toEqual([{ error: expect.objectContaining({ name, status }), status }]);
      expect(applied).toEqual([]);
    });

    test("a handler that fails is answered with 500, whatever it throws, and the next attempt applies", async () => {
      const request = signedRequest({ id: "evt_failing" });
      failure = Object.assign(new Error("the password is swordfish"), { status: 404 });
      const answer = await post(server.url, request);
      expect(answer.status).toBe(500);
      expect(JSON.stringify(answer.json)).not.toContain("swordfish");
      expect(errors).toEqual([{ error: failure, status: 500 }]);
      failure = undefined;
      expect((await post(server.url, request)).json).toEqual({ outcome: "applied", event_id: "evt_failing" });
    });

    test("a body of exactly the limit is taken, and one of a byte more answered with 413", async () => {
      const bodyOf = (id: string, bytes: number) => {
        const rest = bytes - messageBody(id, "").length;
        return signedRequest({ id, body: messageBody(id, "x".repeat(rest)) });
      };
      expect((await post(server.url, bodyOf("evt_full", MAX_BODY_BYTES))).status).toBe(200);
      expect(await post(server.url, bodyOf("evt_over", MAX_BODY_BYTES + 1))).toEqual({
        status: 413,
        json: { error: "BodyTooLargeError", message: expect.stringContaining("20000") },
      });
      expect(errors).toEqual([{ error: refusal(BodyTooLargeError, "evt_over"), status: 413 }]);
    });

    test("a body that goes on for ever is given up, and its connection with it", async () => {
      const part = Buffer.alloc(10 * MAX_BODY_BYTES);
      const { closed } = beginPost(server, signedRequest({}).headers, part, 2 ** 40);
      await closed;
      expect(errors).toEqual([{ error: refusal(BodyTooLargeError, "evt_1"), status: 413 }]);
    });

    test("a body that does not come in time is answered with 408", async () => {
      const { headers, body } = signedRequest({});
      const { status } = beginPost(impatient, headers, body.subarray(0, 10), body.length);
      expect(await status).toBe(408);
      expect(errors).toEqual([{ error: refusal(BodyTimeoutError, "evt_1"), status: 408 }]);
    });

    test("a body that breaks off is no event", async () => {
      const { headers, body } = signedRequest({});
      const { abort } = beginPost(server, headers, body.subarray(0, 10), body.length);
      await arrived.promise;
      abort();
      await refused.promise;
      expect(errors).toEqual([{ error: refusal(IncompleteBodyError, "evt_1"), status: 400 }]);
      expect(applied).toEqual([]);
    });
  });
}

/** Matches an error by its class and the event that it is about. */
function refusal(kind: { readonly name: string }, eventId: string): unknown {
  return expect.objectContaining({ name: kind.name, eventId });
}
