// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Which webhooks get a message, and that each pair is made once, as every store must have it.
import { testEventId } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { EventContentMismatchError } from "../../message/payload.ts";
import type { AttemptResult, DeliveryId, DeliveryStore } from "../deliveryStore.ts";
import type { NewWebhook, WebhookId } from "../webhook.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { DELIVERED, LEASE_MS, REFUSED, secretOf, UNAVAILABLE, UNKNOWN, useStore } from "./deliverySteps.ts";

/** Defines the tests. */
export function dispatchingConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, deliver, addGoneWebhook } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  describe("webhooks", () => {
    it("are found and listed as they were added, active, from the database's time on", async () => {
      const input: NewWebhook = {
        id: "wh_b" as WebhookId,
        url: "https://customer.example/hook?a=1",
        types: ["order.paid", "order.sent"],
        secrets: [secretOf(1), secretOf(2)],
        description: "Orders, \u{1f4e6}",
        onUnknown: "hold",
      };
      const added = await store.addWebhook(input);
      expect(added).toEqual({
        ...input,
        active: true,
        disabledReason: null,
        deliverFrom: expect.any(Date),
        createdAt: expect.any(Date),
      });
      const other = await addWebhook({ id: "wh_a" as WebhookId });
      expect(await store.findWebhook(input.id)).toEqual(added);
      expect(await store.findWebhook("wh_none" as WebhookId)).toBe(undefined);
      expect(await store.listWebhooks()).toEqual([added, other]);
    });
  });

  describe("dispatch", () => {
    it("makes one delivery for each active webhook of the type, and `*` stands for every type", async () => {
      const paid = await addWebhook({ types: ["order.sent", "order.paid"] });
      const all = await addWebhook({ types: ["*"] });
      await addWebhook({ types: ["order.sent"] });
      await addWebhook({ types: ["order"] });
      await addGoneWebhook();
      const made = await store.dispatch(messageOf("order:1"), {});
      expect(made).toEqual(
        [paid, all].map((webhook) => ({
          id: expect.stringMatching(/^dlv_/),
          eventId: "order:1",
          webhookId: webhook.id,
          state: "pending",
          attempts: 0,
          lastStatus: null,
          lastError: null,
          nextAt: expect.any(Date),
          createdAt: expect.any(Date),
          finishedAt: null,
        })),
      );
      expect((await claim()).map(({ id }) => id).sort()).toEqual(made.map(({ id }) => id).sort());
    });

    it("makes nothing for a type that nobody wants, and what a later call finds", async () => {
      await addWebhook({ types: ["order.sent"] });
      expect(await store.dispatch(messageOf("order:1"), {})).toEqual([]);
      expect(await claim()).toEqual([]);
      const late = await addWebhook({ types: ["order.paid"] });
      expect(await store.dispatch(messageOf("order:1"), {})).toMatchObject([{ webhookId: late.id }]);
    });

    const ways: readonly (readonly [string, Partial<NewWebhook>, () => Promise<unknown>])[] = [
      ["pending", {}, async () => {}],
      ["claimed", {}, () => claim()],
      ["sending", {}, () => attempt()],
      ["success", {}, () => attemptWith(DELIVERED)],
      ["pending again", {}, () => attemptWith(UNAVAILABLE)],
      ["failed", {}, () => attemptWith(REFUSED)],
      ["in_doubt", { onUnknown: "hold" }, () => attemptWith(UNKNOWN)],
    ];
    test.each(ways)(
      "again, when %s, returns the record and sends nothing",
      async (_state, webhook, bring) => {
        await addWebhook(webhook);
        const [made] = await store.dispatch(messageOf("order:1"), {});
        await bring();
        await claim();
        const before = await store.findDelivery(made!.id);
        expect(await store.dispatch(messageOf("order:1"), {})).toEqual([before]);
        expect(await claim()).toEqual([]);
        expect(await store.findDelivery(made!.id)).toEqual(before);
      },
    );

    it("refuses the same event id with another type or other data, whoever dispatched it first", async () => {
      await addWebhook();
      await store.dispatch(messageOf("order:1", { data: { total: 1, lines: [1, 2] } }), {});
      const same = messageOf("order:1", {
        data: { lines: [1, 2], total: 1 },
        occurredAt: "2031-01-01T00:00:00Z",
      });
      expect((await store.dispatch(same, {})).length).toBe(1);
      for (const other of [
        { data: { total: 2 } },
        { data: { total: 1, lines: [1, 2] }, type: "order.sent" },
      ]) {
        const dispatching = store.dispatch(messageOf("order:1", other), {});
        await expect(dispatching).rejects.toThrow(EventContentMismatchError);
        await expect(dispatching).rejects.toMatchObject({ eventId: "order:1" });
      }
      const { body } = await attempt();
      expect(JSON.parse(body.toString())).toMatchObject({ type: "order.paid", data: { total: 1 } });
      expect(await claim()).toEqual([]);
    });

    it("of one event id by twenty callers at once makes one delivery a webhook, the same for all", async () => {
      await addWebhook();
      await addWebhook();
      const others = await Promise.all([conforming.open(), conforming.open()]);
      const callers = Array.from({ length: 20 }, (_, i) => [store, ...others][i % 3]!);
      const made = await Promise.all(callers.map((caller) => caller.dispatch(messageOf("order:1"), {})));
      for (const deliveries of made) expect(deliveries).toEqual(made[0]);
      expect(made[0]!.length).toBe(2);
      expect((await claim()).length).toBe(2);
    });

    it("of other content by several callers at once has one winner and one content", async () => {
      await addWebhook();
      const other = await conforming.open();
      const results = await Promise.allSettled(
        Array.from({ length: 10 }, (_, i) =>
          (i % 2 ? other : store).dispatch(messageOf("order:1", { data: { i } }), {}),
        ),
      );
      const won = results.flatMap((result, i) => (result.status === "fulfilled" ? i : []));
      expect(won.length).toBe(1);
      const { body } = await attempt();
      expect(JSON.parse(body.toString()).data).toEqual({ i: won[0] });
    });

    it("to one webhook only reaches no other, and asks for no type", async () => {
      await addWebhook();
      const only = await addWebhook({ types: ["order.sent"] });
      const message = messageOf(testEventId(new Uint8Array(16)), { type: "webhook.test" });
      expect(await store.dispatch(message, { only: only.id })).toMatchObject([{ webhookId: only.id }]);
      expect((await claim()).length).toBe(1);
      expect(await store.dispatch(messageOf("x"), { only: "wh_none" as WebhookId })).toEqual([]);
    });
  });

  describe("fan-out", () => {
    it("makes one delivery for each message and webhook that match, in chunks, once", async () => {
      const all = await Promise.all(Array.from({ length: 7 }, () => addWebhook()));
      const paid = await addWebhook({ types: ["order.paid"] });
      await addWebhook({ types: ["nothing"] });
      await conforming.emit([emitted(1), emitted(2), emitted(3, { type: "order.sent" })]);
      for (let step = 0; step < 20; step++) {
        const report = await store.fanOut({ messages: 2, webhooks: 3 });
        if (report.messages === 0) break;
        expect(report.messages).toBeLessThanOrEqual(2);
        expect(report.deliveries).toBeLessThanOrEqual(2 * 3);
      }
      const claims = await claim();
      const pairs = claims.map(({ webhookId }) => webhookId).sort();
      expect(pairs).toEqual([...all, ...all, ...all, paid, paid].map(({ id }) => id).sort());
      expect(await store.fanOut({ messages: 2, webhooks: 3 })).toEqual({ messages: 0, deliveries: 0 });
    });

    it("by four dispatchers at once makes each pair once", async () => {
      await Promise.all(Array.from({ length: 10 }, () => addWebhook()));
      await conforming.emit(Array.from({ length: 30 }, (_, i) => emitted(i)));
      const dispatchers = await Promise.all([1, 2, 3, 4].map(() => conforming.open()));
      let deliveries = 0;
      await Promise.all(
        dispatchers.map(async (dispatcher) => {
          // Some steps of each find nothing, while the others hold the rows.
          for (let idle = 0; idle < 50; ) {
            const report = await dispatcher.fanOut({ messages: 3, webhooks: 4 });
            deliveries += report.deliveries;
            idle = report.messages === 0 ? idle + 1 : 0;
          }
        }),
      );
      expect(deliveries).toBe(300);
      const claims = await claim();
      expect(claims.length).toBe(300);
      expect(new Set(claims.map(({ id }) => id)).size).toBe(300);
    });

    it("does not offer an event from before its webhook, and the webhook's own first moment is not before", async () => {
      const { deliverFrom } = await addWebhook();
      const at = (ms: number) => new Date(deliverFrom.getTime() + ms).toISOString();
      await conforming.emit([
        emitted(1, { occurredAt: at(-1_000) }),
        emitted(2, { occurredAt: at(-1) }),
        emitted(3, { occurredAt: at(1) }),
      ]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 3, deliveries: 1 });
      await store.catchUp(10);
      expect((await attempt()).eventId).toBe(emitted(3).eventId);
    });

    it("passes over a webhook that is not active, and so does a catch-up", async () => {
      await addGoneWebhook();
      await conforming.emit([emitted(1)]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 1, deliveries: 0 });
      expect((await store.catchUp(10)).deliveries).toBe(0);
    });

    it("gives a message no delivery when nobody wants it, and forgets it", async () => {
      await conforming.emit([emitted(1)]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 1, deliveries: 0 });
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 0, deliveries: 0 });
    });

    it("leaves a pair alone that exists: the same message again sends nothing", async () => {
      await addWebhook();
      await conforming.emit([emitted(1)]);
      await conforming.emit([emitted(1)]);
      await store.fanOut({ messages: 10, webhooks: 10 });
      expect((await attemptWith(DELIVERED)).state).toBe("success");
      await conforming.emit([emitted(1)]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 0, deliveries: 0 });
      expect(await claim()).toEqual([]);
    });
  });

  describe("a new webhook", () => {
    it("catches up on messages whose fan-out ended before it was there, in batches, and only once", async () => {
      await conforming.emit([
        ...Array.from({ length: 5 }, (_, i) => emitted(i)),
        emitted(5, { type: "order.sent" }),
        emitted(6, { occurredAt: "2020-01-01T00:00:00Z" }),
      ]);
      await conforming.emit([emitted(7)], "suppressed");
      await store.fanOut({ messages: 10, webhooks: 10 });
      await addWebhook({ types: ["order.paid"] });
      const reports = [await store.catchUp(3), await store.catchUp(3), await store.catchUp(3)];
      expect(reports.reduce((sum, report) => sum + report.deliveries, 0)).toBe(5);
      expect(await store.catchUp(3)).toEqual({ messages: 0, deliveries: 0 });
      expect((await claim()).length).toBe(5);
    });

    it("gets each message once when it catches up on what a fan-out offers it too", async () => {
      await addWebhook();
      await conforming.emit(Array.from({ length: 20 }, (_, i) => emitted(i)));
      const other = await conforming.open();
      await Promise.all([
        store.fanOut({ messages: 20, webhooks: 10 }),
        other.catchUp(20),
        store.catchUp(20),
        other.fanOut({ messages: 20, webhooks: 10 }),
      ]);
      expect((await claim()).length).toBe(20);
    });
  });

  describe("redeliver", () => {
    const ends: readonly (readonly [string, AttemptResult])[] = [
      ["success", DELIVERED],
      ["failed", REFUSED],
      ["in_doubt", UNKNOWN],
    ];
    test.each(ends)("sends again what ended as %s, with the same ids and bytes", async (state, result) => {
      const { id } = await deliver({ onUnknown: "hold" });
      const first = await attempt();
      await store.finish(first.fence, [{ id, result }]);
      expect((await store.findDelivery(id))!.state).toBe(state);
      expect(await store.redeliver(id)).toMatchObject({
        id,
        state: "pending",
        attempts: 1,
        nextAt: expect.any(Date),
        finishedAt: null,
      });
      const second = await attempt();
      expect(second).toMatchObject({ id, eventId: first.eventId, number: 2 });
      expect(second.body.equals(first.body)).toBe(true);
      expect(second.timestamp > first.timestamp).toBe(true);
      await store.finish(second.fence, [{ id, result: DELIVERED }]);
      expect((await store.findDelivery(id))!.state).toBe("success");
    });

    it("begins the schedule anew", async () => {
      const { id } = await deliver();
      const fail = async (): Promise<string[]> => {
        const states: string[] = [];
        for (let round = 0; round < 3; round++) {
          states.push((await attemptWith(UNAVAILABLE)).state);
          await conforming.makeDue(id);
        }
        return states;
      };
      expect(await fail()).toEqual(["pending", "pending", "failed"]);
      await store.redeliver(id);
      expect(await fail()).toEqual(["pending", "pending", "failed"]);
      expect((await conforming.attempts(id)).map(({ number }) => number)).toEqual([1, 2, 3, 4, 5, 6]);
    });

    it("changes nothing about a delivery that is pending, claimed or being sent", async () => {
      const { id } = await deliver();
      const same = async (): Promise<void> => {
        const before = await store.findDelivery(id);
        expect(await store.redeliver(id)).toEqual(before);
      };
      await same();
      const [claimed] = await claim();
      await same();
      expect((await store.recordAttempts(claimed!.fence, [id], LEASE_MS)).length).toBe(1);
      await same();
      expect(await claim()).toEqual([]);
      await store.finish(claimed!.fence, [{ id, result: UNAVAILABLE }]);
      await same();
      expect(await claim()).toEqual([]);
    });

    it("twice at once sends once", async () => {
      const { id } = await deliver();
      await attemptWith(REFUSED);
      const other = await conforming.open();
      const again = await Promise.all([store, other, store, other].map((one) => one.redeliver(id)));
      for (const delivery of again) expect(delivery).toMatchObject({ id, state: "pending" });
      await attemptWith(DELIVERED);
      expect(await claim()).toEqual([]);
      expect((await conforming.attempts(id)).length).toBe(2);
    });

    it("at once with the outcome that ends it loses nothing", async () => {
      const { id } = await deliver();
      for (let round = 0; round < 10; round++) {
        await conforming.makeDue(id);
        const { fence } = await attempt();
        const other = await conforming.open();
        const [, after] = await Promise.all([
          store.finish(fence, [{ id, result: REFUSED }]),
          other.redeliver(id),
        ]);
        if (after!.state !== "pending") expect(await store.redeliver(id)).toMatchObject({ state: "pending" });
      }
      expect((await claim()).map((claimed) => claimed.id)).toEqual([id]);
    });

    it("of a delivery that is not there returns nothing", async () => {
      for (const id of ["dlv_999999999", "dlv_", "evt_1", "dlv_1; drop", "dlv_99999999999999999999999"]) {
        expect(await store.redeliver(id as DeliveryId)).toBe(undefined);
        expect(await store.findDelivery(id as DeliveryId)).toBe(undefined);
      }
    });
  });
}
