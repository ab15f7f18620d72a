// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Which webhooks get a message, and that each pair is made once, as every store must have it.
import { inspect } from "node:util";
import { testEventId } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { EventContentMismatchError } from "../../message/payload.ts";
import type { DeliveryStore, DispatchReport } from "../deliveryStore.ts";
import type { JsonObject, NewWebhook, WebhookId } from "../webhook.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { DELIVERED, REFUSED, UNAVAILABLE, UNKNOWN, useStore } from "./deliverySteps.ts";

/** What a dispatch reports where nobody takes the message. */
const NOTHING: DispatchReport = { created: [], existing: [], forgotten: [] };

/** Defines the tests. */
export function dispatchingConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, addGoneWebhook } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  describe("dispatch", () => {
    it("makes one delivery for each active webhook of the type, and `*` stands for every type", async () => {
      const paid = await addWebhook({ types: ["order.sent", "order.paid"] });
      const all = await addWebhook({ types: ["*"] });
      await addWebhook({ types: ["order.sent"] });
      await addWebhook({ types: ["order"] });
      await addGoneWebhook();
      const { created: made, ...rest } = await store.dispatch(messageOf("order:1"), {});
      expect(rest).toEqual({ existing: [], forgotten: [] });
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
          blockedBy: null,
          createdAt: expect.any(Date),
          finishedAt: null,
        })),
      );
      expect((await claim()).map(({ id }) => id).sort()).toEqual(made.map(({ id }) => id).sort());
    });

    it("makes nothing for a type that nobody wants, and what a later call finds", async () => {
      await addWebhook({ types: ["order.sent"] });
      expect(await store.dispatch(messageOf("order:1"), {})).toEqual(NOTHING);
      expect(await claim()).toEqual([]);
      const late = await addWebhook({ types: ["order.paid"] });
      expect(await dispatch(messageOf("order:1"))).toMatchObject([{ webhookId: late.id }]);
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
        const [made] = await dispatch(messageOf("order:1"));
        await bring();
        await claim();
        const before = await store.findDelivery(made!.id);
        expect(await store.dispatch(messageOf("order:1"), {})).toEqual({ ...NOTHING, existing: [before] });
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
      expect((await store.dispatch(same, {})).existing.length).toBe(1);
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
      const reports = await Promise.all(callers.map((caller) => caller.dispatch(messageOf("order:1"), {})));
      const ids = ({ created, existing }: DispatchReport) =>
        [...created, ...existing].map(({ id }) => id).sort();
      for (const report of reports) expect(ids(report)).toEqual(ids(reports[0]!));
      expect(ids(reports[0]!).length).toBe(2);
      expect(reports.flatMap(({ created }) => created).length).toBe(2);
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
      expect(await dispatch(message, only.id)).toMatchObject([{ webhookId: only.id }]);
      expect((await claim()).length).toBe(1);
      expect(await store.dispatch(messageOf("x"), { only: "wh_none" as WebhookId })).toEqual(NOTHING);
    });

    it("to a webhook that is not active makes nothing, and an existing pair is returned", async () => {
      const gone = await addGoneWebhook();
      expect(await store.dispatch(messageOf("order:1"), { only: gone.id })).toEqual(NOTHING);
      expect(await store.dispatch(messageOf("order:1"), {})).toEqual(NOTHING);
      const report = await store.dispatch(messageOf(`gone:${gone.id}`), { only: gone.id });
      expect(report).toMatchObject({ created: [], existing: [{ state: "failed" }], forgotten: [] });
    });

    it("of a type of the system reaches only webhooks that name it", async () => {
      const named = await addWebhook({ types: ["webhook.disabled"] });
      await addWebhook({ types: ["*"] });
      const both = await addWebhook({ types: ["*", "webhook.disabled"] });
      const made = await dispatch(messageOf("op:1", { type: "webhook.disabled" }));
      expect(made.map(({ webhookId }) => webhookId)).toEqual([named.id, both.id]);
      const like = await dispatch(messageOf("op:2", { type: "webhooks.disabled" }));
      expect(like.length).toBe(2);
    });

    it("reaches a webhook with a filter where the data contain it", async () => {
      const all = await addWebhook();
      const filtered = await addWebhook({ filter: { pool: { id: 7 } } });
      await addWebhook({ filter: { pool: { id: 7 } }, types: ["order.sent"] });
      const takers = async (eventId: string, data: unknown) =>
        (await dispatch(messageOf(eventId, { data }))).map(({ webhookId }) => webhookId);
      expect(await takers("order:1", { pool: { id: 7, name: "a" }, more: [1] })).toEqual([
        all.id,
        filtered.id,
      ]);
      expect(await takers("order:2", { pool: { id: 8 } })).toEqual([all.id]);
      expect(await takers("order:3", { id: 7 })).toEqual([all.id]);
      expect(await takers("order:4", null)).toEqual([all.id]);
    });
  });

  describe("a filter", () => {
    // As PostgreSQL's jsonb @> has it, in every store.
    const contained: readonly (readonly [boolean, JsonObject, unknown])[] = [
      [true, { a: 1 }, { a: 1, b: 2 }],
      [false, { a: 1 }, { a: 2 }],
      [false, { a: 1 }, { b: 1 }],
      [false, { a: 1 }, { a: "1" }],
      [true, { a: 1 }, { a: 1.0 }],
      [true, { a: 0.1 }, { a: 0.1 }],
      [false, { a: 0.1 }, { a: 0.2 }],
      [true, { a: null }, { a: null }],
      [false, { a: null }, {}],
      [true, { a: true }, { a: true }],
      [false, { a: true }, { a: false }],
      [false, { a: false }, { a: null }],
      [true, { a: { b: { c: "x" } } }, { a: { b: { c: "x", d: 1 }, e: 2 }, f: 3 }],
      [false, { a: { b: { c: "x" } } }, { a: { b: { d: "x" } } }],
      [false, { a: { b: 1 } }, { a: [{ b: 1 }] }],
      [true, { a: [1] }, { a: [3, 2, 1] }],
      [true, { a: [1, 1] }, { a: [1] }],
      [true, { a: [2, 1] }, { a: [1, 2] }],
      [false, { a: [1, 4] }, { a: [1, 2] }],
      [false, { a: [1] }, { a: 1 }],
      [false, { a: 1 }, { a: [1] }],
      [true, { a: [{ b: 1 }] }, { a: [{ b: 2 }, { b: 1, c: 3 }] }],
      [false, { a: [{ b: 1, c: 2 }] }, { a: [{ b: 1 }, { c: 2 }] }],
      [true, { a: [[1]] }, { a: [[2, 1]] }],
      [false, { a: [[1, 2]] }, { a: [[1], [2]] }],
      [true, { a: "ü\u{1f4e6}" }, { a: "ü\u{1f4e6}" }],
      [false, { a: "A" }, { a: "a" }],
      [true, { "a.b": 1 }, { "a.b": 1 }],
      [false, { "a.b": 1 }, { a: { b: 1 } }],
      [true, { a: "1" }, { a: 1n }],
      [true, { a: { length: 2 } }, { a: { length: 2 } }],
      [true, { "0": "x" }, { 0: "x" }],
      [false, { "0": "x" }, ["x"]],
      [true, { __proto__x: 1 }, { __proto__x: 1 }],
      [true, { a: "x" }, { a: "x", n: "\0", s: "\ud800", t: "\\u0000" }],
      [true, { t: "\\u0000" }, { a: "\0", t: "\\u0000" }],
      [true, { t: "\\\\" }, { a: "\ud800\udc00\udc00", t: "\\\\" }],
    ];
    const cases = contained.map(
      ([matches, filter, data]) =>
        [matches ? "takes" : "leaves", inspect(data), inspect(filter), filter, data] as const,
    );
    test.each(cases)("%s %s by %s", async (decision, _data, _filter, filter, data) => {
      await addWebhook({ filter });
      expect((await dispatch(messageOf("order:1", { data }))).length).toBe(decision === "takes" ? 1 : 0);
    });

    it("decides for a fan-out and a catch-up alike", async () => {
      await addWebhook({ filter: { n: 1 } });
      await conforming.emit([1, 2, 3].map((n) => emitted(n)));
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 3, deliveries: 1 });
      await addWebhook({ filter: { n: 2 } });
      let caughtUp = 0;
      for (let step = 0; step < 10; step++) caughtUp += (await store.catchUp(10)).deliveries;
      expect(caughtUp).toBe(1);
      expect((await claim()).length).toBe(2);
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

    it("offers a type of the system only to a webhook that names it", async () => {
      await addWebhook({ types: ["*"] });
      const named = await addWebhook({ types: ["webhook.odd"] });
      await conforming.emit([emitted(1, { type: "webhook.odd" })]);
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 1, deliveries: 1 });
      for (let step = 0; step < 5; step++) expect((await store.catchUp(10)).deliveries).toBe(0);
      expect(await claim()).toMatchObject([{ webhookId: named.id }]);
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
}
