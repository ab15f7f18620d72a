// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What goes with time, and what is remembered of it, as every store must have it.
import { beforeEach, describe, expect, it } from "vitest";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import type { Message } from "../../message/payload.ts";
import type { Delivery, DeliveryStore } from "../deliveryStore.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { DELIVERED, ended, HOUR_MS, REFUSED, UNAVAILABLE, UNKNOWN, useStore } from "./deliverySteps.ts";

/** Defines the tests. */
export function upkeepConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, deliver, addGoneWebhook } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  /** Prunes in small steps to the end of a round: whatever ended before now. */
  async function pruneAll(
    before = new Date(Date.now() + HOUR_MS),
  ): Promise<{ deliveries: number; messages: number }> {
    const sum = { deliveries: 0, messages: 0 };
    for (let step = 0; step < 1_000; step++) {
      const report = await store.prune({ before, limit: 2 });
      expect(report.deliveries).toBeLessThanOrEqual(2 * 16); // a store may have shards, each with a step of its own
      sum.deliveries += report.deliveries;
      sum.messages += report.messages;
      if (report.done) return sum;
    }
    throw new Error("A round of pruning did not end within 1,000 steps.");
  }

  async function fanOutAll(): Promise<void> {
    while ((await store.fanOut({ messages: 100, webhooks: 100 })).messages > 0);
    while ((await store.catchUp(100)).messages > 0);
  }

  /** Emits a message, and has it delivered by every webhook there is. */
  async function deliverEmitted(message: Message): Promise<void> {
    await conforming.emit([message]);
    await fanOutAll();
    for (const { fence, id } of await claim()) {
      const [recorded] = await store.recordAttempts(fence, [id], HOUR_MS);
      await store.finish(fence, [ended(recorded!, DELIVERED)]);
    }
  }

  const isThere = async ({ id }: Delivery): Promise<boolean> => (await store.findDelivery(id)) !== undefined;

  describe("pruning", () => {
    it("ends, wherever its rounds of deliveries and of messages stand to each other", async () => {
      await addWebhook();
      await addWebhook();
      for (const id of ["order:1", "order:2", "order:3"]) await dispatch(messageOf(id));
      await store.prune({ before: new Date(Date.now() + HOUR_MS), limit: 3 });
      expect(await pruneAll()).toEqual({ deliveries: 0, messages: 0 });
    });

    it("takes what ended, with its attempts, and nothing that did not", async () => {
      const webhook = await addWebhook({ onUnknown: "hold" });
      const kept: Delivery[] = [];
      const gone: Delivery[] = [];
      for (const [result, list] of [
        [DELIVERED, gone],
        [REFUSED, gone],
        [UNKNOWN, kept],
      ] as const) {
        await dispatch(messageOf(`order:${result.outcome}:${result.status}`), webhook.id);
        list.push(await attemptWith(result));
      }
      const [sending] = await dispatch(messageOf("order:sending"), webhook.id);
      await attempt();
      const [pending] = await dispatch(messageOf("order:pending"), webhook.id);
      kept.push(sending!, pending!);
      expect((await pruneAll(new Date(Date.now() - HOUR_MS))).deliveries).toBe(0);
      expect((await pruneAll()).deliveries).toBe(2);
      for (const delivery of gone) {
        expect(await isThere(delivery)).toBe(false);
        expect(await store.listAttempts(delivery.id)).toEqual([]);
        expect(await store.redeliver(delivery.id)).toBe(undefined);
      }
      for (const delivery of kept) expect(await isThere(delivery)).toBe(true);
      expect((await store.listAttempts(kept[0]!.id)).length).toBe(1);
      expect((await pruneAll()).deliveries).toBe(0);
      expect(await claim()).toMatchObject([{ id: pending!.id }]);
    });

    it("says when there is more to do, and begins anew after its end", async () => {
      const webhook = await addWebhook();
      const made: Delivery[] = [];
      for (let i = 0; i < 7; i++) {
        await dispatch(messageOf(`order:${i}`), webhook.id);
        made.push(await attemptWith(DELIVERED));
      }
      const first = await store.prune({ before: new Date(Date.now() + HOUR_MS), limit: 2 });
      expect(first).toMatchObject({ deliveries: 2, done: false });
      expect((await pruneAll()).deliveries).toBe(5);
      await dispatch(messageOf("order:8"), webhook.id);
      await attemptWith(DELIVERED);
      expect((await pruneAll()).deliveries).toBe(1);
    });

    it("of a webhook is remembered by it: an emitted message is not delivered again, whoever offers it", async () => {
      const webhook = await addWebhook();
      await deliverEmitted(emitted(1));
      expect((await pruneAll()).deliveries).toBe(1);
      const { prunedUntil } = (await store.findWebhook(webhook.id))!;
      expect(prunedUntil).not.toBe(null);
      await conforming.emit([emitted(1)]);
      await fanOutAll();
      await store.deactivateWebhook(webhook.id, "Paused.");
      await store.activateWebhook(webhook.id, "deliver");
      await fanOutAll();
      const report = await store.replay(webhook.id, { from: new Date(0), to: new Date(9e12), limit: 10 });
      expect(report).toMatchObject({ created: 0, existing: 0, forgotten: [emitted(1).eventId], next: null });
      expect(await conforming.deliveries()).toEqual([]);
      expect(await claim()).toEqual([]);
    });

    it("of one webhook is no reason to keep a message from another that never had it", async () => {
      await addWebhook();
      const late = await addWebhook({ types: ["order.sent"] });
      const [kept] = [await addWebhook({ onUnknown: "hold" })];
      await conforming.emit([emitted(1)]);
      await fanOutAll();
      for (const { fence, id, webhookId } of await claim()) {
        const [recorded] = await store.recordAttempts(fence, [id], HOUR_MS);
        await store.finish(fence, [ended(recorded!, webhookId === kept!.id ? UNKNOWN : DELIVERED)]);
      }
      expect(await pruneAll()).toEqual({ deliveries: 1, messages: 0 });
      await store.updateWebhook(late.id, { types: ["*"] });
      const report = await store.replay(late.id, { from: new Date(0), to: new Date(9e12), limit: 10 });
      expect(report).toMatchObject({ created: 1, forgotten: [], bodiless: [] });
      expect(await claim()).toMatchObject([{ webhookId: late.id }]);
    });

    it("takes the body of a message that nothing refers to, and a replay names it", async () => {
      await deliverEmitted(emitted(1));
      await conforming.emit([emitted(2)], "suppressed");
      expect(await pruneAll()).toEqual({ deliveries: 0, messages: 2 });
      expect(await pruneAll()).toEqual({ deliveries: 0, messages: 0 });
      const webhook = await addWebhook({ filter: { n: 1 } });
      await fanOutAll();
      const report = await store.replay(webhook.id, { from: new Date(0), to: new Date(9e12), limit: 10 });
      expect(report).toMatchObject({ created: 0, forgotten: [], next: null });
      expect([...report!.bodiless].sort()).toEqual([emitted(1).eventId, emitted(2).eventId].sort());
      expect(await claim()).toEqual([]);
      // It is remembered for as long as its event: a re-scan makes nothing anew.
      await conforming.emit([emitted(1)]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 0, deliveries: 0 });
    });

    it("does not take a message that waits for its fan-out", async () => {
      await conforming.emit([emitted(1)]);
      await addWebhook();
      expect((await pruneAll()).messages).toBe(0);
      await fanOutAll();
      expect((await attempt()).body.equals(emitted(1).body)).toBe(true);
    });

    it("forgets a caller's own event id with its records", async () => {
      await addWebhook();
      await dispatch(messageOf("order:1"));
      await attemptWith(DELIVERED);
      expect(await pruneAll()).toEqual({ deliveries: 1, messages: 1 });
      const other = await dispatch(messageOf("order:1", { data: "other" }));
      expect(other).toMatchObject([{ state: "pending", attempts: 0 }]);
    });

    it("names the webhooks of which it cannot be known, where a message is dispatched again", async () => {
      const pruned = await addWebhook();
      const waiting = await addWebhook({ onUnknown: "hold" });
      await dispatch(messageOf("order:1"));
      for (const { fence, id, webhookId } of await claim()) {
        const [recorded] = await store.recordAttempts(fence, [id], HOUR_MS);
        await store.finish(fence, [ended(recorded!, webhookId === waiting.id ? UNKNOWN : DELIVERED)]);
      }
      expect((await pruneAll()).deliveries).toBe(1);
      const fresh = await addWebhook();
      const report = await store.dispatch(messageOf("order:1"), {});
      expect(report.forgotten).toEqual([pruned.id]);
      expect(report.existing).toMatchObject([{ webhookId: waiting.id, state: "in_doubt" }]);
      expect(report.created).toMatchObject([{ webhookId: fresh.id }]);
      expect((await claim()).length).toBe(1);
    });

    it("leaves what blocks a strict webhook, until it is skipped", async () => {
      const { id } = await deliver({ ordering: "strict" });
      await fanOutAll();
      await attemptWith(REFUSED);
      expect((await pruneAll()).deliveries).toBe(0);
      await store.resolve(id, "skip");
      expect((await pruneAll()).deliveries).toBe(1);
    });

    it("takes from a deleted webhook also what blocked it, and what was in doubt", async () => {
      const strict = await addWebhook({ ordering: "strict" });
      await fanOutAll();
      await dispatch(messageOf("order:1"), strict.id);
      await attemptWith(REFUSED);
      const held = await addWebhook({ onUnknown: "hold" });
      await dispatch(messageOf("order:2"), held.id);
      await attemptWith(UNKNOWN);
      await store.deleteWebhook(strict.id);
      await store.deleteWebhook(held.id);
      expect(await pruneAll()).toEqual({ deliveries: 2, messages: 2 });
      expect(await conforming.deliveries()).toEqual([]);
    });

    it("beside redelivery, each by two at once, loses nothing: what is sent again stays", async () => {
      const webhook = await addWebhook();
      const ended: Delivery[] = [];
      for (let i = 0; i < 10; i++) {
        await dispatch(messageOf(`order:${i}`), webhook.id);
        ended.push(await attemptWith(DELIVERED));
      }
      const other = await conforming.open();
      const [redelivered] = await Promise.all([
        Promise.all(ended.map(({ id }) => other.redeliver(id))),
        pruneAll(),
        pruneAll(),
      ]);
      const pending = redelivered.flatMap((delivery) => (delivery ? [delivery.id] : []));
      const claims = await claim();
      expect(claims.map(({ id }) => id).sort()).toEqual([...pending].sort());
      for (const { fence, id } of claims) {
        expect((await store.recordAttempts(fence, [id], HOUR_MS)).length).toBe(1);
      }
    });
  });

  describe("a webhook that the system disabled", () => {
    it("is told of until somebody was, and again when it is disabled again", async () => {
      expect(await store.listUntold()).toEqual([]);
      const gone = await addGoneWebhook();
      await addWebhook();
      const [untold] = await store.listUntold();
      expect(untold).toEqual({ id: gone.id, reason: gone.disabledReason, disabledAt: gone.disabledAt });
      await store.markTold({ ...untold!, disabledAt: new Date(0) });
      expect(await store.listUntold()).toEqual([untold]);
      await store.markTold(untold!);
      expect(await store.listUntold()).toEqual([]);
      await store.markTold(untold!);

      await waitUntil(() => Date.now() > untold!.disabledAt.getTime() + 1, {
        what: "another time is told apart",
      });
      await store.activateWebhook(gone.id, "skip");
      await store.redeliver((await store.listDeliveries(gone.id, {}, { limit: 1 }))[0]!.id);
      await attemptWith({ ...UNAVAILABLE, status: 410 });
      const [again] = await store.listUntold();
      expect(again).toMatchObject({ id: gone.id });
      await store.markTold(untold!);
      expect(await store.listUntold()).toEqual([again]);
    });

    it("and then deleted, or activated, is not told of", async () => {
      const [deleted, activated] = [await addGoneWebhook(), await addGoneWebhook()];
      await store.deleteWebhook(deleted!.id);
      await store.activateWebhook(activated!.id, "skip");
      expect(await store.listUntold()).toEqual([]);
    });
  });
}
