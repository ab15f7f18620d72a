// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What is read about deliveries, and what a person may do about one, as every store must have it.
import { beforeEach, describe, expect, it, test } from "vitest";
import type { AttemptResult, Delivery, DeliveryId, DeliveryStore, Resolution } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { type ConformingStore, type CreateStore, messageOf } from "./conformingStore.ts";
import { DELIVERED, ended, LEASE_MS, REFUSED, UNAVAILABLE, UNKNOWN, useStore } from "./deliverySteps.ts";

const NO_IDS = [
  "dlv_999999999",
  "dlv_",
  "evt_1",
  "dlv_1; drop",
  "dlv_99999999999999999999999",
] as DeliveryId[];

/** Defines the tests. */
export function deliveriesConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, deliver } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
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
      await store.finish(first.fence, [ended(first, result)]);
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
      await store.finish(second.fence, [ended(second, DELIVERED)]);
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
      const [recorded] = await store.recordAttempts(claimed!.fence, [id], LEASE_MS);
      await same();
      expect(await claim()).toEqual([]);
      await store.finish(claimed!.fence, [ended(recorded!, UNAVAILABLE)]);
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
        const recorded = await attempt();
        const other = await conforming.open();
        const [, after] = await Promise.all([
          store.finish(recorded.fence, [ended(recorded, REFUSED)]),
          other.redeliver(id),
        ]);
        if (after!.state !== "pending") expect(await store.redeliver(id)).toMatchObject({ state: "pending" });
      }
      expect((await claim()).map((claimed) => claimed.id)).toEqual([id]);
    });

    it("of a delivery that is not there returns nothing", async () => {
      for (const id of NO_IDS) {
        expect(await store.redeliver(id)).toBe(undefined);
        expect(await store.findDelivery(id)).toBe(undefined);
      }
    });

    it("of a webhook that was deleted leaves it as it is", async () => {
      const { id, webhookId } = await deliver();
      const before = await attemptWith(REFUSED);
      await store.deleteWebhook(webhookId);
      expect(await store.redeliver(id)).toEqual(before);
      expect(await store.resolve(id, "resend")).toEqual(before);
      expect(await claim()).toEqual([]);
    });

    it("of one that its endpoint is being asked about takes the claim from who asks", async () => {
      const { id } = await deliver({ onUnknown: "ask" });
      await attemptWith(UNKNOWN);
      await conforming.makeDue(id);
      const [asking] = await claim();
      expect(asking).toMatchObject({ id, asking: true });
      await store.redeliver(id);
      const report = await store.settle(asking!.fence, [{ id, next: { state: "success" }, error: null }]);
      expect(report).toEqual({ recorded: [], stale: [id] });
      expect(await attempt()).toMatchObject({ id, number: 2 });
    });
  });

  describe("resolve", () => {
    const ends: readonly (readonly [string, AttemptResult])[] = [
      ["failed", REFUSED],
      ["in_doubt", UNKNOWN],
    ];
    const resolutions: readonly (readonly [Resolution, Delivery["state"]])[] = [
      ["delivered", "success"],
      ["resend", "pending"],
      ["skip", "failed"],
    ];
    const cases = ends.flatMap(([state, result]) =>
      resolutions.map(([resolution, becomes]) => [state, resolution, becomes, result] as const),
    );
    test.each(cases)("of what is %s, as %s, makes it %s", async (state, resolution, becomes, result) => {
      const { id } = await deliver({ onUnknown: "hold" });
      expect((await attemptWith(result)).state).toBe(state);
      const resolved = await store.resolve(id, resolution);
      expect(resolved).toMatchObject({ id, state: becomes, attempts: 1 });
      expect(resolved!.nextAt === null).toBe(becomes !== "pending");
      expect(resolved!.finishedAt === null).toBe(becomes === "pending");
      expect(await store.findDelivery(id)).toEqual(resolved);
      expect((await claim()).map((claimed) => claimed.id)).toEqual(becomes === "pending" ? [id] : []);
      expect((await conforming.attempts(id)).length).toBe(1);
    });

    it("as a success can be redelivered, and as a failure too", async () => {
      const { id } = await deliver({ onUnknown: "hold" });
      for (const resolution of ["delivered", "skip"] as const) {
        await attemptWith(UNKNOWN);
        await store.resolve(id, resolution);
        expect(await store.redeliver(id)).toMatchObject({ state: "pending" });
      }
    });

    it("to be sent again begins the schedule anew", async () => {
      const { id } = await deliver();
      for (let round = 0; round < 3; round++) {
        await conforming.makeDue(id);
        await attemptWith(UNAVAILABLE);
      }
      expect((await store.resolve(id, "resend"))!.state).toBe("pending");
      expect((await attemptWith(UNAVAILABLE)).state).toBe("pending");
    });

    it("of anything else leaves it as it is", async () => {
      const { id } = await deliver();
      const same = async (): Promise<void> => {
        const before = await store.findDelivery(id);
        for (const [resolution] of resolutions) expect(await store.resolve(id, resolution)).toEqual(before);
      };
      await same();
      const recorded = await attempt();
      await same();
      await store.finish(recorded.fence, [ended(recorded, DELIVERED)]);
      await same();
      expect(await claim()).toEqual([]);
      for (const none of NO_IDS) expect(await store.resolve(none, "skip")).toBe(undefined);
    });

    it("takes what is being asked about from who asks", async () => {
      const { id } = await deliver({ onUnknown: "ask" });
      await attemptWith(UNKNOWN);
      await conforming.makeDue(id);
      const [asking] = await claim();
      await store.resolve(id, "delivered");
      const next = { state: "pending", delayMs: 0 } as const;
      expect((await store.settle(asking!.fence, [{ id, next, error: null }])).stale).toEqual([id]);
      expect((await store.findDelivery(id))!.state).toBe("success");
      expect(await claim()).toEqual([]);
    });

    it("by two people at once is done by one of them", async () => {
      const { id } = await deliver({ onUnknown: "hold" });
      await attemptWith(UNKNOWN);
      const other = await conforming.open();
      const results = await Promise.all([store.resolve(id, "resend"), other.resolve(id, "delivered")]);
      const { state } = (await store.findDelivery(id))!;
      expect(results.at(-1)).toBeDefined();
      expect(["pending", "success"]).toContain(state);
      expect((await claim()).length).toBe(state === "pending" ? 1 : 0);
    });
  });

  describe("the deliveries", () => {
    const idsOf = (deliveries: readonly Delivery[]) => deliveries.map(({ id }) => id);

    it("of a webhook are listed by page, the newest first", async () => {
      const webhook = await addWebhook();
      const other = await addWebhook();
      const made: DeliveryId[] = [];
      for (let i = 0; i < 7; i++) {
        const [one] = await dispatch(messageOf(`order:${i}`), webhook.id);
        made.unshift(one!.id);
        await dispatch(messageOf(`other:${i}`), other.id);
      }
      const pages: DeliveryId[][] = [];
      for (let after: string | undefined; ; after = pages.at(-1)!.at(-1)) {
        const page = await store.listDeliveries(webhook.id, {}, { limit: 3, ...(after && { after }) });
        if (page.length === 0) break;
        pages.push(idsOf(page));
      }
      expect(pages.map(({ length }) => length)).toEqual([3, 3, 1]);
      expect(pages.flat()).toEqual(made);
      const [first] = await store.listDeliveries(webhook.id, {}, { limit: 1 });
      expect(first).toEqual(await store.findDelivery(made[0]!));
      expect(await store.listDeliveries("wh_none" as WebhookId, {}, { limit: 3 })).toEqual([]);
    });

    it("of a webhook are listed by state, and by who has to do something", async () => {
      const webhook = await addWebhook({ onUnknown: "hold" });
      const inState = new Map<Delivery["state"], DeliveryId>();
      for (const result of [DELIVERED, REFUSED, UNKNOWN]) {
        await dispatch(messageOf(`order:${result.outcome}:${result.status}`), webhook.id);
        const { state, id } = await attemptWith(result);
        inState.set(state, id);
      }
      const [sending] = await dispatch(messageOf("order:sending"), webhook.id);
      await attempt();
      inState.set("sending", sending!.id);
      const [pending] = await dispatch(messageOf("order:pending"), webhook.id);
      inState.set("pending", pending!.id);
      expect(inState.size).toBe(5);
      for (const [state, id] of inState) {
        expect(idsOf(await store.listDeliveries(webhook.id, { state }, { limit: 10 }))).toEqual([id]);
      }
      const waiting = await store.listDeliveries(webhook.id, { needsPerson: true }, { limit: 10 });
      expect(idsOf(waiting)).toEqual([inState.get("in_doubt")]);
      await store.resolve(waiting[0]!.id, "skip");
      expect(await store.listDeliveries(webhook.id, { needsPerson: true }, { limit: 10 })).toEqual([]);
      expect(await store.listDeliveries(webhook.id, { state: "in_doubt" }, { limit: 10 })).toEqual([]);
    });

    it("that are asked about need no person while they are", async () => {
      const { id, webhookId } = await deliver({ onUnknown: "ask" });
      expect(await attemptWith(UNKNOWN)).toMatchObject({ state: "in_doubt", nextAt: expect.any(Date) });
      expect(await store.listDeliveries(webhookId, { needsPerson: true }, { limit: 10 })).toEqual([]);
      await conforming.makeDue(id);
      const [asking] = await claim();
      const next = { state: "in_doubt", askInMs: null } as const;
      await store.settle(asking!.fence, [{ id, next, error: "pruned" }]);
      const waiting = await store.listDeliveries(webhookId, { needsPerson: true }, { limit: 10 });
      expect(waiting).toMatchObject([{ id, state: "in_doubt", nextAt: null, lastError: "pruned" }]);
    });

    it("of a message are those to every webhook, whatever became of them", async () => {
      const webhooks = [await addWebhook(), await addWebhook(), await addWebhook()];
      await dispatch(messageOf("order:1"));
      await dispatch(messageOf("order:2"));
      await store.deleteWebhook(webhooks[1]!.id);
      const found = await store.deliveriesOf(messageOf("order:1").eventId);
      expect(found.map(({ webhookId }) => webhookId)).toEqual(webhooks.map(({ id }) => id));
      expect(await store.deliveriesOf(messageOf("order:9").eventId)).toEqual([]);
    });

    it("have their attempts listed, the oldest first, with all that is known about each", async () => {
      const { id } = await deliver({ url: "https://a.example/hook" });
      expect(await store.listAttempts(id)).toEqual([]);
      await attemptWith(UNAVAILABLE);
      await store.updateWebhook("wh_0001" as WebhookId, { url: "https://b.example/hook" });
      await conforming.makeDue(id);
      const second = await attempt();
      const stored = await conforming.attempts(id);
      expect(await store.listAttempts(id)).toEqual([
        {
          number: 1,
          url: "https://a.example/hook",
          timestamp: stored[0]!.timestamp,
          startedAt: expect.any(Date),
          finishedAt: expect.any(Date),
          outcome: "rejected",
          status: 503,
          error: "an error",
          response: "a body",
          lateOutcome: null,
        },
        {
          number: 2,
          url: "https://b.example/hook",
          timestamp: second.timestamp,
          startedAt: expect.any(Date),
          finishedAt: null,
          outcome: null,
          status: null,
          error: null,
          response: null,
          lateOutcome: null,
        },
      ]);
      for (const none of NO_IDS) expect(await store.listAttempts(none)).toEqual([]);
    });
  });
}
