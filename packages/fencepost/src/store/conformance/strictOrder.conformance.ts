// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// The order in which a strict webhook gets its messages, however they come to it. Which of them may be claimed is in
// claims.conformance.ts.
import { beforeEach, describe, expect, it, test } from "vitest";
import type { DeliveryStore } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { DELIVERED, ended, LEASE_MS, REFUSED, UNKNOWN, useStore } from "./deliverySteps.ts";

/** Defines the tests. */
export function strictOrderConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attemptWith } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  /** Delivers one at a time until there is nothing more, and says in which order. */
  async function deliverAll(): Promise<readonly string[]> {
    const order: string[] = [];
    for (let i = 0; i < 200; i++) {
      const claims = await claim();
      if (claims.length === 0) return order;
      expect(claims.length).toBe(1);
      const [recorded] = await store.recordAttempts(claims[0]!.fence, [claims[0]!.id], LEASE_MS);
      order.push(recorded!.eventId);
      await store.finish(recorded!.fence, [ended(recorded!, DELIVERED)]);
    }
    throw new Error("There was no end to what is due.");
  }

  async function drainCatchUps(): Promise<void> {
    while ((await store.catchUp(100)).messages > 0);
  }

  /** Neither by id nor by time in the order in which they are made. */
  const SHUFFLED = [5, 2, 9, 1, 7, 3, 8].map((n) =>
    emitted(n, { occurredAt: `2100-01-0${(n * 4) % 9 || 9}T00:00:00Z` }),
  );
  const IN_ORDER = SHUFFLED.map(({ eventId }) => eventId);

  describe("a strict webhook", () => {
    it("gets messages in the order in which they were emitted, in one batch and in many", async () => {
      await addWebhook({ ordering: "strict" });
      await conforming.emit(SHUFFLED.slice(0, 4));
      for (const message of SHUFFLED.slice(4)) await conforming.emit([message]);
      while ((await store.fanOut({ messages: 3, webhooks: 10 })).messages > 0);
      await drainCatchUps();
      expect(await deliverAll()).toEqual(IN_ORDER);
    });

    it("gets what it catches up on in that order too, and nothing before it has caught up", async () => {
      await conforming.emit(SHUFFLED);
      while ((await store.fanOut({ messages: 100, webhooks: 10 })).messages > 0);
      await addWebhook({ ordering: "strict" });
      const order: string[] = [];
      for (let step = 0; step < 50; step++) {
        const { messages } = await store.catchUp(2);
        if (messages === 0) break;
        order.push(...(await deliverAll()));
      }
      order.push(...(await deliverAll()));
      expect(order).toEqual(IN_ORDER);
    });

    it("gets messages in that order from fan-outs by four at once", async () => {
      await addWebhook({ ordering: "strict" });
      await drainCatchUps();
      const messages = Array.from({ length: 40 }, (_, i) => emitted((i * 7) % 40));
      await conforming.emit(messages);
      const dispatchers = await Promise.all([1, 2, 3, 4].map(() => conforming.open()));
      const order: string[] = [];
      await Promise.all([
        ...dispatchers.map(async (dispatcher) => {
          for (let idle = 0; idle < 30; ) {
            const report = await dispatcher.fanOut({ messages: 3, webhooks: 10 });
            idle = report.messages === 0 ? idle + 1 : 0;
          }
        }),
        (async () => {
          for (let i = 0; i < 30; i++) order.push(...(await deliverAll()));
        })(),
      ]);
      order.push(...(await deliverAll()));
      expect(order).toEqual(messages.map(({ eventId }) => eventId));
    });

    it("gets what callers dispatch in the order of their calls", async () => {
      await addWebhook({ ordering: "strict" });
      await drainCatchUps();
      const ids = ["order:9", "order:1", "order:5"];
      for (const id of ids) await dispatch(messageOf(id));
      expect(await deliverAll()).toEqual(ids);
    });

    test.each([
      ["failed", REFUSED],
      ["in_doubt", UNKNOWN],
    ] as const)("is blocked by what %s, which those behind it name", async (state, result) => {
      const { id: webhookId } = await addWebhook({ ordering: "strict", onUnknown: "hold" });
      await drainCatchUps();
      const [first] = await dispatch(messageOf("order:1"));
      const [second] = await dispatch(messageOf("order:2"));
      const [third] = await dispatch(messageOf("order:3"));
      expect(first!.blockedBy).toBe(null);
      expect([second!.blockedBy, third!.blockedBy]).toEqual([first!.id, first!.id]);
      expect(await attemptWith(result)).toMatchObject({ id: first!.id, state, blockedBy: null });
      expect(await claim()).toEqual([]);
      expect(await store.findDelivery(third!.id)).toMatchObject({ state: "pending", blockedBy: first!.id });
      const blocking = await store.listDeliveries(webhookId, { needsPerson: true }, { limit: 10 });
      expect(blocking.map(({ id }) => id)).toEqual([first!.id]);
    });

    test.each([
      ["delivered", ["order:2", "order:3"]],
      ["skip", ["order:2", "order:3"]],
      ["resend", ["order:1", "order:2", "order:3"]],
    ] as const)("goes on once that is resolved as %s", async (resolution, order) => {
      const { id: webhookId } = await addWebhook({ ordering: "strict" });
      await drainCatchUps();
      const [first] = await dispatch(messageOf("order:1"));
      for (const id of ["order:2", "order:3"]) await dispatch(messageOf(id));
      await attemptWith(REFUSED);
      await store.resolve(first!.id, resolution);
      expect(await store.listDeliveries(webhookId, { needsPerson: true }, { limit: 10 })).toEqual([]);
      expect(await deliverAll()).toEqual(order);
    });

    it("gets what is redelivered next, and one at a time", async () => {
      await addWebhook({ ordering: "strict" });
      await drainCatchUps();
      const [first] = await dispatch(messageOf("order:1"));
      await attemptWith(DELIVERED);
      const [second] = await dispatch(messageOf("order:2"));
      await store.redeliver(first!.id);
      expect(await store.findDelivery(second!.id)).toMatchObject({ blockedBy: first!.id });
      expect(await deliverAll()).toEqual(["order:1", "order:2"]);
    });

    it("gets what is replayed in the order of the messages, before what came after them", async () => {
      await conforming.emit(SHUFFLED, "suppressed");
      const { id } = await addWebhook({ ordering: "strict" });
      await drainCatchUps();
      await dispatch(messageOf("order:1"));
      const range = { from: new Date(0), to: new Date("2101-01-01T00:00:00Z"), limit: 100 };
      expect(await store.replay(id, range)).toMatchObject({ created: SHUFFLED.length });
      expect(await deliverAll()).toEqual([...IN_ORDER, "order:1"]);
    });

    it("does not hold up the others", async () => {
      const strict = await addWebhook({ ordering: "strict" });
      const other = await addWebhook();
      await drainCatchUps();
      for (let i = 0; i < 3; i++) await dispatch(messageOf(`order:${i}`));
      const byWebhook = (id: WebhookId) => (claimed: { webhookId: WebhookId }) => claimed.webhookId === id;
      const claims = await claim();
      expect(claims.filter(byWebhook(strict.id)).length).toBe(1);
      expect(claims.filter(byWebhook(other.id)).length).toBe(3);
    });
  });
}
