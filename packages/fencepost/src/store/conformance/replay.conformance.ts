// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Replay over a range of time, as every store must have it.
import { testEventId } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import type { DeliveryStore, ReplayReport } from "../deliveryStore.ts";
import { InvalidCursorError } from "../errors.ts";
import type { WebhookId } from "../webhook.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { DELIVERED, HOUR_MS, REFUSED, useStore } from "./deliverySteps.ts";

const FROM = new Date("2020-01-01T00:00:00Z");
const TO = new Date("2020-01-02T00:00:00Z");
/** The n-th second of the range. */
const at = (n: number): string => new Date(FROM.getTime() + n * 1_000).toISOString();

/** Defines the tests. */
export function replayConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  const replay = (id: WebhookId, limit = 100, after?: string): Promise<ReplayReport | undefined> =>
    store.replay(id, { from: FROM, to: TO, limit, ...(after !== undefined && { after }) });
  const madeFor = async (id: WebhookId) =>
    (await conforming.deliveries()).filter(({ webhookId }) => webhookId === id).map(({ eventId }) => eventId);

  describe("a replay", () => {
    it("makes the missing deliveries of the range, the first moment included and the last not", async () => {
      await conforming.emit([
        emitted(1, { occurredAt: new Date(FROM.getTime() - 1).toISOString() }),
        emitted(2, { occurredAt: FROM.toISOString() }),
        emitted(3, { occurredAt: at(5) }),
        emitted(4, { occurredAt: new Date(TO.getTime() - 1).toISOString() }),
        emitted(5, { occurredAt: TO.toISOString() }),
      ]);
      while ((await store.fanOut({ messages: 10, webhooks: 10 })).messages > 0);
      const webhook = await addWebhook();
      const other = await addWebhook();
      while ((await store.catchUp(10)).messages > 0);
      const report = await replay(webhook.id);
      expect(report).toEqual({ created: 3, existing: 0, forgotten: [], bodiless: [], next: null });
      expect((await madeFor(webhook.id)).sort()).toEqual([2, 3, 4].map((n) => emitted(n).eventId).sort());
      expect(await madeFor(other.id)).toEqual([]);
      expect((await claim()).length).toBe(3);
    });

    it("again makes nothing, whatever became of what it made", async () => {
      await conforming.emit([emitted(1, { occurredAt: at(1) }), emitted(2, { occurredAt: at(2) })]);
      const webhook = await addWebhook();
      expect(await replay(webhook.id, 1)).toMatchObject({ created: 1 });
      await attemptWith(REFUSED);
      expect(await replay(webhook.id)).toMatchObject({ created: 1, existing: 1 });
      await attemptWith(DELIVERED);
      expect(await replay(webhook.id)).toMatchObject({ created: 0, existing: 2 });
      expect(await claim()).toEqual([]);
    });

    it("sends what a rebuild kept silent and what callers dispatched, and no test", async () => {
      const webhook = await addWebhook();
      await conforming.emit([emitted(1, { occurredAt: at(1) })], "suppressed");
      await store.dispatch(messageOf("order:1", { occurredAt: at(2) }), {});
      const late = await addWebhook();
      const test = messageOf(testEventId(new Uint8Array(16)), { occurredAt: at(3), type: "webhook.test" });
      await store.dispatch(test, { only: webhook.id });
      const all = await addWebhook({ types: ["*", "webhook.test"] });
      while ((await store.catchUp(10)).messages > 0);
      for (const { id } of [late, all]) {
        expect(await replay(id)).toMatchObject({ created: 2 });
        expect((await madeFor(id)).sort()).toEqual([emitted(1).eventId, "order:1"].sort());
      }
      expect(await replay(webhook.id)).toMatchObject({ created: 1, existing: 1 });
    });

    it("makes only what the webhook takes", async () => {
      await conforming.emit([
        emitted(1, { occurredAt: at(1) }),
        emitted(2, { occurredAt: at(2), type: "order.sent" }),
        emitted(3, { occurredAt: at(3), type: "webhook.odd" }),
        emitted(4, { occurredAt: at(4) }),
      ]);
      const all = await addWebhook();
      const filtered = await addWebhook({ types: ["order.paid", "webhook.odd"], filter: { n: 4 } });
      expect(await replay(all.id)).toMatchObject({ created: 3 });
      expect(await replay(filtered.id)).toMatchObject({ created: 1, existing: 0 });
      expect(await madeFor(filtered.id)).toEqual([emitted(4).eventId]);
    });

    it("goes on page by page, through messages of one moment too", async () => {
      await conforming.emit(Array.from({ length: 10 }, (_, i) => emitted(i, { occurredAt: at(i >> 2) })));
      const webhook = await addWebhook();
      const pages: ReplayReport[] = [];
      let next: string | null | undefined;
      for (let page = 0; page < 20 && next !== null; page++) {
        const report = (await replay(webhook.id, 3, next))!;
        pages.push(report);
        ({ next } = report);
      }
      expect(next).toBe(null);
      expect(pages.map(({ created }) => created).filter((created) => created > 0)).toEqual([3, 3, 3, 1]);
      expect((await madeFor(webhook.id)).length).toBe(10);
    });

    it("beside a fan-out and other replays makes each pair once", async () => {
      const { id, deliverFrom } = await addWebhook();
      const occurred = (n: number) => new Date(deliverFrom.getTime() + 1_000 + n).toISOString();
      await conforming.emit(
        Array.from({ length: 30 }, (_, i) => emitted(i, { occurredAt: occurred(i % 7) })),
      );
      const others = await Promise.all([conforming.open(), conforming.open()]);
      const range = { from: deliverFrom, to: new Date(deliverFrom.getTime() + HOUR_MS), limit: 100 };
      await Promise.all([
        store.replay(id, range),
        others[0]!.replay(id, range),
        others[1]!.fanOut({ messages: 30, webhooks: 10 }),
        store.catchUp(100),
      ]);
      expect((await madeFor(id)).length).toBe(30);
      expect((await claim()).length).toBe(30);
    });

    it("keeps the ids and bytes of its messages", async () => {
      const message = emitted(1, { occurredAt: at(1) });
      await conforming.emit([message]);
      const webhook = await addWebhook();
      await replay(webhook.id);
      const recorded = await attempt();
      expect(recorded).toMatchObject({ eventId: message.eventId, token: message.token });
      expect(recorded.body.equals(message.body)).toBe(true);
    });

    it("is none for a webhook that is not there or not active", async () => {
      await conforming.emit([emitted(1, { occurredAt: at(1) })]);
      expect(await replay("wh_none" as WebhookId)).toBe(undefined);
      const { id } = await addWebhook();
      await store.deactivateWebhook(id, "Paused.");
      expect(await replay(id)).toBe(undefined);
      expect(await conforming.deliveries()).toEqual([]);
    });

    test.each([
      "",
      "x",
      "2020-01-01",
      Buffer.from("infinity\nevt_1").toString("base64url"),
      Buffer.from("2026-02-31T00:00:00.000000Z\nevt_1").toString("base64url"),
      "'; DROP",
    ])("from %j, which is no place, is refused", async (after) => {
      const { id } = await addWebhook();
      await expect(replay(id, 10, after)).rejects.toThrow(InvalidCursorError);
    });

    it("of an empty range finds nothing", async () => {
      await dispatch(messageOf("order:1", { occurredAt: at(1) }));
      const { id } = await addWebhook();
      const report = await store.replay(id, { from: TO, to: FROM, limit: 10 });
      expect(report).toEqual({ created: 0, existing: 0, forgotten: [], bodiless: [], next: null });
    });
  });
}
