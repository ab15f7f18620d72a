// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What the deliver stage does over every store: real requests to real endpoints. What it asks of endpoints in doubt is
// in doubts.conformance.ts.
import { randomBytes } from "node:crypto";
import { verifyWebhook } from "@fencepost/receiver";
import { type Reply, startEndpoint } from "@fencepost/simulator";
import { testEventId } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { idsOf, useDeliverers } from "../__tests__/support/deliverSteps.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import { type ConformingStore, type CreateStore, messageOf } from "../store/conformance/conformingStore.ts";
import { EVERYTHING, HOUR_MS, secretOf } from "../store/conformance/deliverySteps.ts";
import type { DeliveryId, DeliveryStore } from "../store/deliveryStore.ts";

/** Defines the tests. */
export function deliverConformance(create: CreateStore): void {
  const steps = useDeliverers(create);
  const { addWebhook, dispatch, openEndpoint, start, open, waitForStates, stateOf, outcomes } = steps;
  let conforming: ConformingStore;
  let store: DeliveryStore;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  describe("an answer", () => {
    test.each([200, 201, 204])("with status %d ends a delivery after one attempt", async (status) => {
      const endpoint = await openEndpoint({ status });
      await addWebhook(endpoint.url);
      const [made] = await dispatch();
      start();
      await waitForStates({ success: 1 });
      expect(await store.findDelivery(made!.id)).toMatchObject({
        state: "success",
        attempts: 1,
        lastStatus: status,
        lastError: null,
      });
      expect(endpoint.requests.length).toBe(1);
    });

    test.each([500, 503, 429, 408, 425])(
      "with status %d leaves one that is due again later",
      async (status) => {
        const endpoint = await openEndpoint({ status });
        await addWebhook(endpoint.url, { retryScheduleMs: [HOUR_MS] });
        const [made] = await dispatch();
        start();
        await waitUntil(async () => (await store.findDelivery(made!.id))!.lastStatus !== null, {
          what: "it was tried",
        });
        const delivery = (await store.findDelivery(made!.id))!;
        expect(delivery).toMatchObject({
          state: "pending",
          attempts: 1,
          lastStatus: status,
          lastError: `The endpoint answered ${status}.`,
        });
        expect(delivery.nextAt!.getTime() - Date.now()).toBeGreaterThan(HOUR_MS / 3);
      },
    );

    test.each([400, 401, 404, 409, 422, 301, 307])("with status %d is failure at once", async (status) => {
      const other = await openEndpoint();
      const endpoint = await openEndpoint({ status, headers: { location: other.url } });
      await addWebhook(endpoint.url);
      const [made] = await dispatch();
      start();
      await waitForStates({ failed: 1 });
      const failed = { attempts: 1, lastStatus: status, nextAt: null };
      expect(await store.findDelivery(made!.id)).toMatchObject(failed);
      expect([endpoint.requests.length, other.requests.length]).toEqual([1, 0]);
    });

    it("that never comes, from an endpoint that is down, leaves one that is due again, with the error", async () => {
      const endpoint = await startEndpoint();
      await endpoint.close();
      await addWebhook(endpoint.url, { retryScheduleMs: [HOUR_MS] });
      const [made] = await dispatch();
      start();
      await waitUntil(async () => (await store.findDelivery(made!.id))!.lastError !== null, {
        what: "it was tried",
      });
      const delivery = (await store.findDelivery(made!.id))!;
      expect(delivery).toMatchObject({ state: "pending", attempts: 1, lastStatus: null });
      expect(delivery.lastError).toMatch(/^ECONNREFUSED/);
      expect(delivery.nextAt!.getTime() - Date.now()).toBeGreaterThan(HOUR_MS / 3);
      expect(await outcomes()).toEqual([[1, "not_sent"]]);
    });

    test.each([
      ["resend", { success: 1 }, 2],
      ["hold", { in_doubt: 1 }, 1],
    ] as const)("that is lost on its way: %s makes it %j", async (onUnknown, states, requests) => {
      const endpoint = await openEndpoint();
      endpoint.next({ kind: "resetAfterBody" });
      await addWebhook(endpoint.url, { onUnknown });
      const [made] = await dispatch();
      start();
      await waitForStates(states);
      expect(endpoint.requests.length).toBe(requests);
      expect((await store.findDelivery(made!.id))!.nextAt).toBe(null);
      expect((await outcomes())[0]).toEqual([1, "unknown"]);
    });

    it("of a receiver that has fenced an old copy off, a 409, is not the end: it is sent again", async () => {
      const endpoint = await openEndpoint();
      endpoint.next({ status: 409, headers: { "webhook-fenced": "true" } });
      await addWebhook(endpoint.url);
      await dispatch();
      start();
      await waitForStates({ success: 1 });
      expect(await outcomes()).toEqual([
        [1, "rejected", 409],
        [2, "delivered", 200],
      ]);
    });

    it("that leaves a delivery to a person is told in the log, once", async () => {
      const endpoint = await openEndpoint({ kind: "resetAfterBody" });
      await addWebhook(endpoint.url, { onUnknown: "hold" });
      const [made] = await dispatch();
      const lines: string[] = [];
      const deliverer = start({ log: createLog("warn", { write: (line) => lines.push(line) }) });
      await waitForStates({ in_doubt: 1 });
      await deliverer.stop();
      const waits = { delivery: made!.id, msg: "delivery is in doubt and waits for a person" };
      expect(lines.map((line) => JSON.parse(line))).toMatchObject([waits]);
    });

    it("with Retry-After puts the next attempt off that long", async () => {
      const endpoint = await openEndpoint({ status: 503, headers: { "retry-after": "7200" } });
      await addWebhook(endpoint.url, { retryScheduleMs: [1_000] });
      const [made] = await dispatch();
      start();
      await waitUntil(async () => (await store.findDelivery(made!.id))!.lastStatus !== null, {
        what: "it was tried",
      });
      const { nextAt } = (await store.findDelivery(made!.id))!;
      expect(nextAt!.getTime() - Date.now()).toBeGreaterThan(1.9 * HOUR_MS);
    });
  });

  describe("a delivery", () => {
    it("carries the stored bytes, verified by the receiver, under the headers of its event", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(`${endpoint.url}/hook?a=1`, { secrets: [secretOf(1), secretOf(2)] });
      const [made] = await dispatch();
      start();
      await waitForStates({ success: 1 });
      const [request] = endpoint.requests;
      expect(request).toMatchObject({ method: "POST", path: "/hook?a=1", complete: true });
      const { headers, body } = request!;
      expect(body.equals(messageOf(made!.eventId).body)).toBe(true);
      for (const secrets of [secretOf(1), secretOf(2)]) {
        expect(verifyWebhook({ headers, body, secrets, now: new Date() })).toMatchObject({
          eventId: made!.eventId,
          attempt: 1,
        });
      }
    });

    it("is made for the webhooks that take its type and are active, and for no other", async () => {
      const endpoints = await Promise.all(Array.from({ length: 4 }, () => openEndpoint()));
      const [named, all, other, paused] = endpoints.map(({ url }) => url);
      await addWebhook(named!, { types: ["order.paid"] });
      await addWebhook(all!, { types: ["*"] });
      await addWebhook(other!, { types: ["order.sent"] });
      await store.deactivateWebhook((await addWebhook(paused!)).id, "paused");
      await dispatch();
      start();
      await waitForStates({ success: 2 });
      expect(endpoints.map(({ requests }) => requests.length)).toEqual([1, 1, 0, 0]);
    });

    it("of a type that nobody takes is none", async () => {
      await addWebhook("http://127.0.0.1:1/", { types: ["order.sent"] });
      expect(await store.dispatch(messageOf("order:1"), {})).toEqual({
        created: [],
        existing: [],
        forgotten: [],
      });
    });

    it("that is refused once and then taken succeeds, with the same id and bytes, signed anew", async () => {
      const endpoint = await openEndpoint();
      endpoint.next({ status: 500 });
      await addWebhook(endpoint.url);
      await dispatch();
      start();
      await waitForStates({ success: 1 });
      const [first, second] = endpoint.requests;
      expect(endpoint.requests.length).toBe(2);
      expect(second!.body.equals(first!.body)).toBe(true);
      expect(second!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
      const timestamp = (request: typeof first) => Number(request!.headers["webhook-timestamp"]);
      expect(timestamp(second)).toBeGreaterThan(timestamp(first));
      for (const { headers, body } of endpoint.requests) {
        expect(() => verifyWebhook({ headers, body, secrets: secretOf(1), now: new Date() })).not.toThrow();
      }
      expect(await outcomes()).toEqual([
        [1, "rejected", 500],
        [2, "delivered", 200],
      ]);
    });

    it("has failed after the last attempt of the schedule", async () => {
      const endpoint = await openEndpoint({ status: 503 });
      await addWebhook(endpoint.url, { retryScheduleMs: [10, 10] });
      const [made] = await dispatch();
      const seen: string[] = [];
      start({ onOutcome: (outcome) => seen.push(outcome) });
      await waitForStates({ failed: 1 });
      expect(endpoint.requests.length).toBe(3);
      expect((await store.findDelivery(made!.id))!.attempts).toBe(3);
      expect(seen).toEqual(["rejected", "rejected", "rejected"]);
    });

    test.each([
      ["the least", 0, 0.5],
      ["the most", 1 - 2 ** -20, 1],
    ])("waits for %s of a delay that grows by its factor", async (_what, drawn, share) => {
      const schedule = [1, 3, 9, 27].map((hours) => hours * HOUR_MS);
      const endpoint = await openEndpoint({ status: 503 });
      await addWebhook(endpoint.url, { retryScheduleMs: schedule });
      const [made] = await dispatch();
      start({ random: () => drawn });
      for (const [i, delay] of schedule.entries()) {
        const before = Date.now();
        if (i > 0) await conforming.makeDue(made!.id);
        await waitUntil(async () => (await stateOf(made!.id)) === `pending after ${i + 1}`, {
          what: "it was tried",
        });
        const { nextAt } = (await store.findDelivery(made!.id))!;
        // By the store's clock; the rest is what the attempt itself took.
        const waited = nextAt!.getTime() - before;
        expect(waited).toBeGreaterThan(delay * share - 5_000);
        expect(waited).toBeLessThan(delay * share + 60_000);
      }
    });

    it("to one endpoint that fails is retried alone: nine of ten stay as they are", async () => {
      const endpoints = await Promise.all(Array.from({ length: 10 }, () => openEndpoint()));
      for (const endpoint of endpoints) await addWebhook(endpoint.url);
      endpoints[4]!.next({ status: 503 }, { status: 503 });
      expect((await dispatch()).length).toBe(10);
      start();
      await waitForStates({ success: 10 });
      expect(endpoints.map(({ requests }) => requests.length)).toEqual([1, 1, 1, 1, 3, 1, 1, 1, 1, 1]);
    });

    it("that comes while a loop is idle is made at once when it is woken", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(endpoint.url);
      await dispatch();
      const deliverer = start({ pollMs: HOUR_MS });
      await waitForStates({ success: 1 });
      await dispatch();
      deliverer.wake();
      await waitForStates({ success: 2 });
    });

    it("carries the customer's headers, and signatures of an HMAC secret and an ed25519 key", async () => {
      const endpoint = await openEndpoint();
      const vector = {
        secret:
          "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
        publicKey: "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=",
      };
      const custom = { authorization: "Bearer abc", "webhook-id": "theirs" };
      await addWebhook(endpoint.url, { headers: custom, secrets: [vector.secret, secretOf(3)] });
      const [made] = await dispatch();
      start();
      await waitForStates({ success: 1 });
      const { headers, body } = endpoint.requests[0]!;
      expect(headers["authorization"]).toBe("Bearer abc");
      for (const secrets of [vector.publicKey, secretOf(3)]) {
        const verified = verifyWebhook({ headers, body, secrets, now: new Date() });
        expect(verified).toMatchObject({ eventId: made!.eventId });
      }
    });

    it("to a webhook whose url and secret change goes where they say from its next attempt on", async () => {
      const [old, changed] = [await openEndpoint({ status: 503 }), await openEndpoint()];
      const { id } = await addWebhook(old.url, { retryScheduleMs: [HOUR_MS] });
      const [made] = await dispatch();
      start();
      await waitUntil(async () => (await stateOf(made!.id)) === "pending after 1", { what: "it was tried" });
      await store.updateWebhook(id, { url: changed.url });
      await store.rotateSecret(id, secretOf(8), 0);
      await conforming.makeDue(made!.id);
      await waitForStates({ success: 1 });
      const { headers, body } = changed.requests[0]!;
      expect(() => verifyWebhook({ headers, body, secrets: secretOf(8), now: new Date() })).not.toThrow();
      expect(old.requests.length).toBe(1);
    });
  });

  describe("of the same event", () => {
    it("two dispatches, one after the other and at once, are sent once, and tell of the same record", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(endpoint.url);
      const message = messageOf("order:1");
      const { created } = await store.dispatch(message, {});
      expect(created.length).toBe(1);
      const others = await Promise.all(Array.from({ length: 6 }, () => conforming.open()));
      start();
      const again = await Promise.all([store, ...others].map((one) => one.dispatch(message, {})));
      await waitForStates({ success: 1 });
      for (const report of [...again, await store.dispatch(message, {})]) {
        expect(report.created).toEqual([]);
        expect(report.existing.map(({ id }) => id)).toEqual([created[0]!.id]);
      }
      expect(endpoint.requests.length).toBe(1);
    });

    it("a webhook that is activated later gets its first delivery at the next dispatch, and others none", async () => {
      const [first, later] = [await openEndpoint(), await openEndpoint()];
      await addWebhook(first.url);
      const { id } = await addWebhook(later.url);
      await store.deactivateWebhook(id, "paused");
      await dispatch(1, "order:1");
      start();
      await waitForStates({ success: 1 });
      await store.activateWebhook(id, "skip");
      await dispatch(1, "order:1");
      await waitForStates({ success: 2 });
      expect([first.requests.length, later.requests.length]).toEqual([1, 1]);
    });

    it("what failed stays failed when it is dispatched again, and is sent again by redeliver", async () => {
      const endpoint = await openEndpoint({ status: 400 });
      await addWebhook(endpoint.url);
      const [made] = await dispatch(1, "order:1");
      start();
      await waitForStates({ failed: 1 });
      endpoint.answerWith({ status: 200 });
      const { existing } = await store.dispatch(messageOf("order:1"), {});
      expect(existing).toMatchObject([{ id: made!.id, state: "failed" }]);
      const other = await addWebhook(endpoint.url, { types: ["other"] });
      await dispatch(1, "order:2", other.id);
      await waitForStates({ failed: 1, success: 1 }); // the loop has been round, and sent this one only
      expect(endpoint.requests.length).toBe(2);
      await Promise.all([store, await conforming.open(), store].map((one) => one.redeliver(made!.id)));
      await waitForStates({ success: 2 });
      const [first, , again] = endpoint.requests;
      expect(endpoint.requests.length).toBe(3);
      expect(again!.body.equals(first!.body)).toBe(true);
      expect(again!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
      expect(await stateOf(made!.id)).toBe("success after 2");
    });

    it("two test sends at once are two", async () => {
      const endpoint = await openEndpoint();
      const { id } = await addWebhook(endpoint.url);
      await Promise.all(
        [1, 2].map(() => store.dispatch(messageOf(testEventId(randomBytes(16))), { only: id })),
      );
      start();
      await waitForStates({ success: 2 });
      expect(new Set(idsOf(endpoint)).size).toBe(2);
    });
  });

  describe("a webhook", () => {
    it("whose endpoint is gone is disabled, and what was claimed for it is given back", async () => {
      const isActive = async (): Promise<boolean> => (await store.findWebhook(webhook.id))!.active;
      const endpoint = await openEndpoint(async () => {
        // The second may leave before the answer to the first is on record, and no other.
        if (endpoint.requests.length > 1)
          await waitUntil(async () => !(await isActive()), { what: "the webhook is not active" });
        return { status: 410 };
      });
      const webhook = await addWebhook(endpoint.url);
      await dispatch(6);
      const deliverer = start({ connectionsPerOrigin: 1 });
      await waitUntil(async () => !(await isActive()), { what: "the webhook is not active" });
      await deliverer.stop();
      const failed = endpoint.requests.length;
      expect([1, 2]).toContain(failed);
      await waitForStates({ failed, pending: 6 - failed });
      endpoint.answerWith({ status: 200 });
      await store.activateWebhook(webhook.id, "skip");
      start();
      await waitForStates({ failed, success: 6 - failed });
      expect(endpoint.requests.length).toBe(6);
    });

    it("that limits how many are in flight has no more requests at once, from two workers", async () => {
      const underWay = countUnderWay(2);
      const endpoint = await openEndpoint(underWay.answer);
      await addWebhook(endpoint.url, { maxInFlight: 2 });
      await dispatch(20);
      start();
      start({ store: await conforming.open() });
      await waitForStates({ success: 20 });
      expect(endpoint.requests.length).toBe(20);
      expect(underWay.most()).toBe(2);
    });

    it("of strict order gets its messages one at a time, in their order, though some are refused at first", async () => {
      const underWay = countUnderWay(1);
      const seen = new Map<string, number>();
      const endpoint = await openEndpoint(async ({ headers }) => {
        const id = headers["webhook-id"]!;
        seen.set(id, (seen.get(id) ?? 0) + 1);
        await underWay.answer();
        return { status: seen.get(id) === 1 && seen.size % 3 === 0 ? 503 : 200 };
      });
      await addWebhook(endpoint.url, { ordering: "strict", retryScheduleMs: [10] });
      while ((await store.catchUp(100)).messages > 0);
      const made = await dispatch(12);
      start();
      start({ store: await conforming.open() });
      await waitForStates({ success: 12 });
      const inOrder = made.flatMap(({ eventId }, i) => ((i + 1) % 3 === 0 ? [eventId, eventId] : [eventId]));
      expect(idsOf(endpoint)).toEqual(inOrder);
      expect(underWay.most()).toBe(1);
    });
  });

  describe("one origin", () => {
    it("never has more requests under way than it has connections, whichever webhooks they are for", async () => {
      const underWay = countUnderWay(4);
      const endpoint = await openEndpoint(underWay.answer);
      for (let i = 0; i < 3; i++) await addWebhook(`${endpoint.url}/${i}`);
      await dispatch(40);
      start({ connectionsPerOrigin: 4 });
      await waitForStates({ success: 120 });
      expect(endpoint.requests.length).toBe(120);
      expect(underWay.most()).toBe(4);
    });

    it("has no more attempts put on record than it has connections free at that moment", async () => {
      let answered = 0;
      let recorded = 0;
      let most = 0;
      const held: (() => void)[] = [];
      const endpoint = await openEndpoint(async ({ arrival }) => {
        // Three of four connections hang until the other has done the rest.
        if (arrival <= 3) await new Promise<void>((resolve) => held.push(resolve));
        answered++;
        return { status: 200 };
      });
      await addWebhook(endpoint.url);
      await dispatch(30);
      start({
        connectionsPerOrigin: 4,
        store: {
          ...store,
          recordAttempts(fence, ids, leaseMs) {
            recorded += ids.length;
            most = Math.max(most, recorded - answered);
            return store.recordAttempts(fence, ids, leaseMs);
          },
        },
      });
      await waitUntil(() => answered === 27, { what: "one connection does the rest" });
      for (const go of held) go();
      await waitForStates({ success: 30 });
      expect(most).toBe(4);
    });

    it("is worked off without a poll, however much is due", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(endpoint.url);
      await dispatch(40);
      start({ pollMs: HOUR_MS, connectionsPerOrigin: 2, maxInFlight: 4 });
      await waitForStates({ success: 40 });
    });

    it("that hangs keeps no other from being served, however many webhooks and deliveries it has", async () => {
      const hanging = await openEndpoint({ kind: "hang" });
      const serving = await openEndpoint();
      for (let i = 0; i < 5; i++) await addWebhook(`${hanging.url}/${i}`);
      await addWebhook(serving.url);
      await dispatch(20);
      // It holds up to eleven times its connections.
      start({ timeoutMs: HOUR_MS, leaseMs: 2 * HOUR_MS, connectionsPerOrigin: 4, maxInFlight: 45 });
      steps.onClose(hanging.close);
      await hanging.waitFor(4);
      const served = async (): Promise<number> =>
        (await conforming.deliveries()).filter(({ state }) => state === "success").length;
      await waitUntil(async () => (await served()) === 20, { what: "the others are delivered" });
      await dispatch(20);
      await waitUntil(async () => (await served()) === 40, { what: "the others are delivered again" });
      // Nothing has ended there in all that time.
      expect(hanging.requests.length).toBe(4);
      expect((await conforming.deliveries()).filter(({ state }) => state === "sending").length).toBe(4);
      expect(serving.requests.length).toBe(40);
    });
  });

  describe("attempt", () => {
    it("sends one delivery now that is due later, and says so once the outcome is on record", async () => {
      const endpoint = await openEndpoint();
      endpoint.next({ status: 503 }, { status: 503 });
      await addWebhook(endpoint.url, { retryScheduleMs: [HOUR_MS, HOUR_MS] });
      const [made, other] = await dispatch(2);
      const deliverer = open();
      expect(await deliverer.attempt(made!.id)).toBe(true);
      expect(await stateOf(made!.id)).toBe("pending after 1");
      expect(await deliverer.attempt(made!.id)).toBe(true);
      expect(await deliverer.attempt(made!.id)).toBe(true);
      expect(await stateOf(made!.id)).toBe("success after 3");
      expect(await stateOf(other!.id)).toBe("pending after 0");
    });

    it("of one that has ended, is not there or is paused does nothing and says so", async () => {
      const endpoint = await openEndpoint();
      const { id } = await addWebhook(endpoint.url);
      const [made, paused] = await dispatch(2);
      const deliverer = open();
      expect(await deliverer.attempt(made!.id)).toBe(true);
      expect(await deliverer.attempt(made!.id)).toBe(false);
      expect(await deliverer.attempt("dlv_none" as DeliveryId)).toBe(false);
      await store.deactivateWebhook(id, "paused");
      expect(await deliverer.attempt(paused!.id)).toBe(false);
      expect(endpoint.requests.length).toBe(1);
    });

    it("by many at once, beside a loop, is one", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(endpoint.url);
      const [made] = await dispatch();
      const deliverers = [open(), open({ store: await conforming.open() }), start()];
      const sent = await Promise.all(deliverers.map((deliverer) => deliverer.attempt(made!.id)));
      expect(sent.filter(Boolean).length).toBeLessThanOrEqual(1);
      await waitForStates({ success: 1 });
      expect(endpoint.requests.length).toBe(1);
    });

    it("of one whose worker died settles what it left, and says so", async () => {
      const endpoint = await openEndpoint();
      await addWebhook(endpoint.url, { onUnknown: "hold" });
      const [made] = await dispatch();
      const [claimed] = await store.claim({ limit: 1, perOrigin: 1, skipOrigins: [], leaseMs: HOUR_MS });
      await store.recordAttempts(claimed!.fence, [made!.id], HOUR_MS);
      await conforming.makeDue(made!.id);
      expect(await open().attempt(made!.id)).toBe(true);
      expect(await stateOf(made!.id)).toBe("in_doubt after 1");
      expect(endpoint.requests.length).toBe(0);
    });

    it("is refused after stop, and what it began is waited for by stop", async () => {
      const answer = Promise.withResolvers<Reply>();
      const endpoint = await openEndpoint(() => answer.promise);
      await addWebhook(endpoint.url);
      const [made, other] = await dispatch(2);
      const deliverer = open();
      const sending = deliverer.attempt(made!.id);
      await endpoint.waitFor(1);
      const stopped = deliverer.stop();
      expect(await deliverer.attempt(other!.id)).toBe(false);
      answer.resolve({ status: 200 });
      await stopped;
      expect(await sending).toBe(true);
      expect(await stateOf(made!.id)).toBe("success after 1");
    });
  });

  describe("a lease", () => {
    it("is lengthened while a request is under way and while claims wait behind it; who lost one drops it", async () => {
      const answer = Promise.withResolvers<Reply>();
      const endpoint = await openEndpoint(() => answer.promise);
      await addWebhook(endpoint.url);
      const [sending, waiting, stolen] = (await dispatch(3)).map(({ id }) => id);
      const other = await conforming.open();
      const extended = new Set<DeliveryId>();
      const deliverer = open({
        timeoutMs: 4_000,
        leaseMs: 9_000,
        connectionsPerOrigin: 1,
        store: {
          ...store,
          async extend(fence, ids, leaseMs) {
            for (const id of ids) {
              // As late as can be: the lease is over, and only of one has another worker noticed.
              await conforming.makeDue(id);
              if (id === stolen) await other.claim({ ...EVERYTHING, only: id });
            }
            const kept = await store.extend(fence, ids, leaseMs);
            for (const id of kept) extended.add(id);
            return kept;
          },
        },
      });
      const attempts = [deliverer.attempt(sending!)];
      await endpoint.waitFor(1);
      attempts.push(deliverer.attempt(waiting!));
      expect(await deliverer.attempt(stolen!)).toBe(false);
      await waitUntil(() => extended.size === 2, { what: "the other leases are lengthened" });
      expect(await other.claim(EVERYTHING)).toEqual([]);
      answer.resolve({ status: 200 });
      expect(await Promise.all(attempts)).toEqual([true, true]);
      expect(endpoint.requests.length).toBe(2);
    });
  });

  describe("stop", () => {
    it("waits for what was sent, and gives back what was not", async () => {
      const answers: (() => void)[] = [];
      const endpoint = await openEndpoint(
        () => new Promise<Reply>((resolve) => answers.push(() => resolve({ status: 200 }))),
      );
      await addWebhook(endpoint.url);
      await dispatch(10);
      const deliverer = start({ connectionsPerOrigin: 2 });
      await endpoint.waitFor(2);
      const stopped = deliverer.stop();
      const claimable = async (): Promise<number> => {
        const claims = await store.claim({ limit: 20, perOrigin: 20, skipOrigins: [], leaseMs: HOUR_MS });
        for (const { fence, id } of claims) await store.release(fence, [id]);
        return claims.length;
      };
      await waitUntil(async () => (await claimable()) === 8, { what: "eight are given back" });
      for (const answer of answers) answer();
      await stopped;
      expect(endpoint.requests.length).toBe(2);
      endpoint.answerWith({ status: 200 });
      start();
      await waitForStates({ success: 10 });
      expect(new Set(idsOf(endpoint)).size).toBe(10);
      expect(endpoint.requests.length).toBe(10);
    });

    it("ends a loop that has nothing to do", async () => {
      await start({ pollMs: HOUR_MS }).stop();
    });
  });
}

/** Answers 200 once so many requests have been under way together, and says how many were, at the most. */
function countUnderWay(wanted: number): { answer: () => Promise<Reply>; most: () => number } {
  let underWay = 0;
  let most = 0;
  const waiting: (() => void)[] = [];
  return {
    async answer() {
      most = Math.max(most, ++underWay);
      // The first wait for one another: so many do run at once.
      if (most < wanted) await new Promise<void>((resolve) => waiting.push(resolve));
      for (const go of waiting.splice(0)) go();
      await new Promise(setImmediate);
      underWay--;
      return { status: 200 };
    },
    most: () => most,
  };
}
