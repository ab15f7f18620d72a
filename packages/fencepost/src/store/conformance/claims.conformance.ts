// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Claims, attempts and their outcomes, as every store must have them.
import { deriveEventId, ledgerToken } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { INTERRUPTED } from "../decideDelivery.ts";
import type {
  ClaimedDelivery,
  DeliveryId,
  DeliveryStore,
  NextStep,
  RecordedAttempt,
} from "../deliveryStore.ts";
import type { Webhook, WebhookId } from "../webhook.ts";
import { type ConformingStore, type CreateStore, emittedMessage, messageOf } from "./conformingStore.ts";
import {
  DELIVERED,
  EVERYTHING,
  ended,
  GONE,
  HOUR_MS,
  LEASE_MS,
  REFUSED,
  secretOf,
  UNAVAILABLE,
  UNKNOWN,
  useStore,
} from "./deliverySteps.ts";

/** Defines the tests. */
export function claimsConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, deliver, addGoneWebhook, outcomesOf } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  /** Takes over the only delivery that is due from a worker that died, and settles what it left. */
  async function settleInterrupted(): Promise<void> {
    const [settling] = await claim();
    const [review] = await store.review(settling!.fence, [settling!.id]);
    await store.finish(settling!.fence, [ended(review!, INTERRUPTED)]);
  }

  /** A strict webhook that has caught up, with so many deliveries in their order. */
  async function deliverInOrder(count: number): Promise<{ webhook: Webhook; ids: readonly DeliveryId[] }> {
    const webhook = await addWebhook({ ordering: "strict" });
    while ((await store.catchUp(100)).messages > 0);
    const ids: DeliveryId[] = [];
    for (let i = 1; i <= count; i++) ids.push((await dispatch(messageOf(`order:${i}`), webhook.id))[0]!.id);
    return { webhook, ids };
  }

  /** A delivery in doubt that is claimed to be asked about. */
  async function askable(): Promise<{ id: DeliveryId; fence: bigint; attempted: RecordedAttempt }> {
    const { id } = await deliver({ onUnknown: "ask" });
    const attempted = await attempt();
    expect(await store.finish(attempted.fence, [ended(attempted, UNKNOWN)])).toEqual({
      recorded: [{ id, state: "in_doubt" }],
      stale: [],
    });
    const [asking] = await claim();
    expect(asking).toMatchObject({ id, asking: true, interrupted: false });
    return { id, fence: asking!.fence, attempted };
  }

  const settle = (id: DeliveryId, fence: bigint, next: NextStep, error: string | null = null) =>
    store.settle(fence, [{ id, next, error }]);

  describe("a claim", () => {
    it("takes each due delivery once among eight workers", async () => {
      await Promise.all(Array.from({ length: 5 }, () => addWebhook()));
      for (let i = 0; i < 40; i++) await store.dispatch(messageOf(`order:${i}`), {});
      const workers = await Promise.all(Array.from({ length: 8 }, () => conforming.open()));
      const claimed: ClaimedDelivery[] = [];
      await Promise.all(
        workers.map(async (worker) => {
          for (let idle = 0; idle < 20; ) {
            const claims = await worker.claim({ ...EVERYTHING, limit: 7 });
            expect(new Set(claims.map(({ fence }) => fence)).size).toBeLessThanOrEqual(1);
            claimed.push(...claims);
            idle = claims.length === 0 ? idle + 1 : 0;
          }
        }),
      );
      expect(claimed.length).toBe(200);
      expect(new Set(claimed.map(({ id }) => id)).size).toBe(200);
    });

    it("takes no more than its limit, and draws a fence of its own each time", async () => {
      await addWebhook();
      for (let i = 0; i < 5; i++) await store.dispatch(messageOf(`order:${i}`), {});
      const claims = [await claim({ limit: 2 }), await claim({ limit: 2 }), await claim({ limit: 2 })];
      expect(claims.map(({ length }) => length)).toEqual([2, 2, 1]);
      const fences = claims.map(([first]) => first!.fence);
      expect(new Set(fences).size).toBe(3);
      for (const fence of fences) expect(typeof fence).toBe("bigint");
    });

    it("is not due again until its lease has ended", async () => {
      const { id } = await deliver();
      const [first] = await claim({ leaseMs: 1_000_000 });
      expect(await claim()).toEqual([]);
      await conforming.makeDue(id);
      const [second] = await claim();
      expect(second).toMatchObject({ id, interrupted: false });
      expect(second!.fence).not.toBe(first!.fence);
    });

    it("whose lease is short is due again by itself", async () => {
      const { id } = await deliver();
      expect((await claim({ leaseMs: 1 })).length).toBe(1);
      let again: readonly ClaimedDelivery[] = [];
      const deadline = performance.now() + 10_000;
      while (again.length === 0 && performance.now() < deadline) again = await claim();
      expect(again).toMatchObject([{ id }]);
    });

    it("takes the due deliveries of an origin up to its share, whichever of its webhooks they are for", async () => {
      for (let i = 0; i < 3; i++) await addWebhook({ url: `https://shared.example/${i}` });
      await addWebhook({ url: "https://alone.example/" });
      for (let i = 0; i < 20; i++) await store.dispatch(messageOf(`order:${i}`), {});
      const claims = await claim({ perOrigin: 6 });
      const count = (origin: string) => claims.filter((claimed) => claimed.origin === origin).length;
      expect([count("https://shared.example"), count("https://alone.example")]).toEqual([6, 6]);
      expect(new Set(claims.map(({ webhookId }) => webhookId)).size).toBe(4);
    });

    it("takes from more webhooks of an origin than its share in turn, and no more than the share", async () => {
      for (let i = 0; i < 9; i++) await addWebhook({ url: `https://shared.example/${i}` });
      await store.dispatch(messageOf("order:1"), {});
      const sizes: number[] = [];
      for (let i = 0; i < 3; i++) sizes.push((await claim({ perOrigin: 4 })).length);
      expect(sizes).toEqual([4, 4, 1]);
    });

    it("skips the origins that it is told to skip", async () => {
      await addWebhook({ url: "https://a.example/1" });
      await addWebhook({ url: "https://a.example:8443/2" });
      await addWebhook({ url: "https://a.example.org/3" });
      await store.dispatch(messageOf("order:1"), {});
      const claims = await claim({ skipOrigins: ["https://a.example", "https://b.example"] });
      expect(claims.map(({ origin }) => origin).sort()).toEqual([
        "https://a.example.org",
        "https://a.example:8443",
      ]);
      expect(await claim()).toMatchObject([{ origin: "https://a.example" }]);
    });

    it("serves every webhook that has something due within a few claims, however much others have", async () => {
      const busy = await addWebhook();
      for (let i = 0; i < 50; i++) await store.dispatch(messageOf(`order:${i}`), { only: busy.id });
      const quiet = await addWebhook();
      await store.dispatch(messageOf("quiet"), { only: quiet.id });
      const seen = new Set<string>();
      for (let i = 0; i < 10; i++) {
        for (const { webhookId } of await claim({ limit: 10, perOrigin: 5 })) seen.add(webhookId);
      }
      expect(seen).toContain(quiet.id);
    });

    it("passes over what waits for a webhook that is not active, or that is deleted", async () => {
      const ends = [
        (id: WebhookId) => store.deactivateWebhook(id, "paused"),
        (id: WebhookId) => store.deleteWebhook(id),
      ];
      for (const end of ends) {
        const webhook = await addWebhook();
        await dispatch(messageOf(`order:${webhook.id}`), webhook.id);
        await end(webhook.id);
        expect(await claim()).toEqual([]);
      }
    });
  });

  describe("a claim of one delivery by name", () => {
    it("takes it and no other, also where it is not due and its origin is to be skipped", async () => {
      const { id, webhookId } = await deliver();
      await attemptWith(UNAVAILABLE);
      await dispatch(messageOf("order:2"), webhookId);
      const skipOrigins = ["https://customer-0001.example"];
      const claims = await claim({ only: id, skipOrigins, perOrigin: 1 });
      expect(claims).toMatchObject([{ id, interrupted: false, asking: false }]);
      expect((await store.recordAttempts(claims[0]!.fence, [id], LEASE_MS))[0]).toMatchObject({ number: 2 });
    });

    it("takes none that somebody holds, that has ended, or whose webhook is not active", async () => {
      const { id, webhookId } = await deliver();
      await claim();
      expect(await claim({ only: id })).toEqual([]);
      await conforming.makeDue(id);
      await attemptWith(DELIVERED);
      expect(await claim({ only: id })).toEqual([]);
      const [paused] = await dispatch(messageOf("order:2"), webhookId);
      await store.deactivateWebhook(webhookId, "paused");
      expect(await claim({ only: paused!.id })).toEqual([]);
      expect(await claim({ only: "dlv_0" as DeliveryId })).toEqual([]);
    });

    it("takes over from a worker whose lease has ended", async () => {
      const { id } = await deliver();
      await attempt();
      await conforming.makeDue(id);
      expect(await claim({ only: id })).toMatchObject([{ id, interrupted: true }]);
    });

    it("by many at once is one", async () => {
      const { id } = await deliver();
      await attemptWith(UNAVAILABLE);
      const workers = await Promise.all(Array.from({ length: 8 }, () => conforming.open()));
      const claims = await Promise.all(workers.map((worker) => worker.claim({ ...EVERYTHING, only: id })));
      expect(claims.flat().length).toBe(1);
    });

    it("that is given back is as due as it was", async () => {
      const { id } = await deliver();
      const { nextAt } = await attemptWith(UNAVAILABLE);
      const [claimed] = await claim({ only: id });
      await store.release(claimed!.fence, [id]);
      expect(await claim()).toEqual([]);
      expect((await store.findDelivery(id))!.nextAt).toEqual(nextAt);
    });
  });

  describe("a webhook that limits how many are in flight", () => {
    it("has no more claimed than that, by however many workers at once", async () => {
      for (let i = 0; i < 8; i++) await addWebhook({ maxInFlight: 3 });
      const free = await addWebhook();
      for (let i = 0; i < 8; i++) await dispatch(messageOf(`order:${i}`));
      const workers = await Promise.all(Array.from({ length: 8 }, () => conforming.open()));
      const counts = new Map<string, number>();
      await Promise.all(
        workers.map(async (worker) => {
          for (let i = 0; i < 10; i++) {
            for (const { webhookId } of await worker.claim({ ...EVERYTHING, limit: 4 }))
              counts.set(webhookId, (counts.get(webhookId) ?? 0) + 1);
          }
        }),
      );
      expect(counts.get(free.id)).toBe(8);
      counts.delete(free.id);
      expect([...counts.values()]).toEqual(Array.from({ length: 8 }, () => 3));
    });

    it("has as many claimed again as have ended, were given back, or lost their lease", async () => {
      const webhook = await addWebhook({ maxInFlight: 3 });
      for (let i = 0; i < 9; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      const first = await claim();
      expect(first.length).toBe(3);
      const [done, back, lost] = first.map(({ id }) => id);
      const { fence } = first[0]!;
      const [recorded] = await store.recordAttempts(fence, [done!], LEASE_MS);
      expect(await claim()).toEqual([]);
      await store.finish(fence, [ended(recorded!, DELIVERED)]);
      expect((await claim()).length).toBe(1);
      await store.release(fence, [back!]);
      expect((await claim()).length).toBe(1);
      await conforming.makeDue(lost!);
      expect((await claim()).length).toBe(1);
      expect(await claim()).toEqual([]);
    });

    it("has another claimed at once where one that is not due yet was claimed by name and is given back", async () => {
      const webhook = await addWebhook({ maxInFlight: 1 });
      await dispatch(messageOf("order:1"), webhook.id);
      const { id } = await attemptWith(UNAVAILABLE);
      const [due] = await dispatch(messageOf("order:2"), webhook.id);
      const [claimed] = await claim({ only: id });
      expect(await claim()).toEqual([]);
      await store.release(claimed!.fence, [id]);
      expect(await claim()).toMatchObject([{ id: due!.id }]);
    });

    it("has one claimed by name only where that leaves it within its limit", async () => {
      const webhook = await addWebhook({ maxInFlight: 1 });
      const made = [];
      for (let i = 0; i < 2; i++) made.push(...(await dispatch(messageOf(`order:${i}`), webhook.id)));
      expect((await claim({ only: made[0]!.id })).length).toBe(1);
      expect(await claim({ only: made[1]!.id })).toEqual([]);
    });

    it("follows the limit as it is changed", async () => {
      const webhook = await addWebhook({ maxInFlight: 1 });
      for (let i = 0; i < 9; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      expect((await claim()).length).toBe(1);
      await store.updateWebhook(webhook.id, { maxInFlight: 4 });
      expect((await claim()).length).toBe(3);
      await store.updateWebhook(webhook.id, { maxInFlight: null });
      expect((await claim()).length).toBe(5);
    });
  });

  describe("a webhook that limits its attempts a second", () => {
    it("has one second's worth claimed at once, by however many workers, and no more", async () => {
      const webhook = await addWebhook({ ratePerSecond: 20 });
      for (let i = 0; i < 30; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      const workers = await Promise.all(Array.from({ length: 8 }, () => conforming.open()));
      const began = performance.now();
      let claimed = 0;
      await Promise.all(
        workers.map(async (worker) => {
          while (claimed < 30 && performance.now() - began < 20_000) {
            const { length } = await worker.claim({ ...EVERYTHING, limit: 7 });
            claimed += length;
          }
        }),
      );
      expect(claimed).toBe(30);
      // Twenty at once, and the other ten at twenty a second.
      expect(performance.now() - began).toBeGreaterThan(480);
    });

    it("has one claimed at once where it is less than one a second", async () => {
      const webhook = await addWebhook({ ratePerSecond: 0.000_1 });
      for (let i = 0; i < 3; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      const claims = [await claim(), await claim()].map(({ length }) => length);
      expect(claims).toEqual([1, 0]);
    });

    it("is served again within a second when the limit is raised, and no sooner for another change", async () => {
      const webhook = await addWebhook({ ratePerSecond: 0.000_1 });
      for (let i = 0; i < 3; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      expect((await claim()).length).toBe(1);
      await store.updateWebhook(webhook.id, { description: "slow" });
      expect(await claim()).toEqual([]);
      await store.updateWebhook(webhook.id, { ratePerSecond: 1_000 });
      const claimed: ClaimedDelivery[] = [];
      await waitUntil(async () => claimed.push(...(await claim())) === 2, { what: "both are claimed" });
    });

    it("is served again at once when the limit is lifted", async () => {
      const webhook = await addWebhook({ ratePerSecond: 0.000_1 });
      for (let i = 0; i < 3; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      expect((await claim()).length).toBe(1);
      await store.updateWebhook(webhook.id, { ratePerSecond: null });
      expect((await claim()).length).toBe(2);
    });
  });

  describe("a webhook of strict order", () => {
    it("has one delivery claimed at a time, in the order of their messages, by however many workers", async () => {
      const { ids } = await deliverInOrder(12);
      const workers = await Promise.all(Array.from({ length: 4 }, () => conforming.open()));
      const order: DeliveryId[] = [];
      let held = 0;
      await Promise.all(
        workers.map(async (worker) => {
          const deadline = performance.now() + 30_000;
          while (order.length < ids.length && performance.now() < deadline) {
            for (const { id, fence } of await worker.claim(EVERYTHING)) {
              held++;
              expect(held).toBe(1);
              order.push(id);
              const [recorded] = await worker.recordAttempts(fence, [id], LEASE_MS);
              held--;
              await worker.finish(fence, [ended(recorded!, DELIVERED)]);
            }
          }
        }),
      );
      expect(order).toEqual(ids);
    });

    it("waits behind one that is retried, and behind one that failed until it is resolved", async () => {
      const { ids } = await deliverInOrder(4);
      expect(await attemptWith(UNAVAILABLE)).toMatchObject({ id: ids[0], state: "pending" });
      expect(await claim()).toEqual([]);
      expect(await claim({ only: ids[1]! })).toEqual([]);
      await conforming.makeDue(ids[0]!);
      expect(await attemptWith(REFUSED)).toMatchObject({ id: ids[0], state: "failed" });
      expect(await claim()).toEqual([]);
      expect(await store.findDelivery(ids[1]!)).toMatchObject({ state: "pending", blockedBy: ids[0] });
      await store.resolve(ids[0]!, "skip");
      expect((await store.findDelivery(ids[1]!))!.blockedBy).toBe(null);
      expect(await attemptWith(REFUSED)).toMatchObject({ id: ids[1] });
      await store.resolve(ids[1]!, "delivered");
      expect(await attemptWith(REFUSED)).toMatchObject({ id: ids[2] });
      await store.redeliver(ids[2]!);
      expect(await attemptWith(DELIVERED)).toMatchObject({ id: ids[2] });
      expect((await claim({ only: ids[3]! })).length).toBe(1);
    });

    it("has one that is redelivered wait for the one after it that is under way", async () => {
      const { ids } = await deliverInOrder(2);
      await attemptWith(DELIVERED);
      const second = await attempt();
      await store.redeliver(ids[0]!);
      expect(await claim()).toEqual([]);
      expect(await claim({ only: ids[0]! })).toEqual([]);
      await store.finish(second.fence, [ended(second, UNAVAILABLE)]);
      expect(await claim()).toMatchObject([{ id: ids[0] }]);
    });

    it("waits behind one in doubt", async () => {
      const { webhook, ids } = await deliverInOrder(2);
      await store.updateWebhook(webhook.id, { onUnknown: "ask" });
      await attemptWith(UNKNOWN);
      const [asking] = await claim();
      expect(asking).toMatchObject({ id: ids[0], asking: true });
      expect(await claim()).toEqual([]);
      await settle(ids[0]!, asking!.fence, { state: "in_doubt", askInMs: null });
      expect(await claim()).toEqual([]);
      await store.resolve(ids[0]!, "resend");
      expect(await attemptWith(DELIVERED)).toMatchObject({ id: ids[0] });
      expect((await claim()).map(({ id }) => id)).toEqual([ids[1]]);
    });

    it("waits for the outbox, which may hold an earlier message, and for its catch-up", async () => {
      const { webhook } = await deliverInOrder(0);
      await conforming.emit([emittedMessage(1)]);
      await dispatch(messageOf("order:2"), webhook.id);
      expect(await claim()).toEqual([]);
      await store.fanOut({ messages: 10, webhooks: 10 });
      expect((await attempt()).eventId).toBe(emittedMessage(1).eventId);
      const late = await addWebhook({ ordering: "strict" });
      await dispatch(messageOf("order:3"), late.id);
      expect(await claim()).toEqual([]);
      while ((await store.catchUp(100)).messages > 0);
      expect((await attempt()).eventId).toBe(emittedMessage(1).eventId);
    });
  });

  describe("an attempt", () => {
    it("carries the stored bytes, token and secrets, under a number and a timestamp of its own", async () => {
      const token = ledgerToken({ stream: "testnet", epoch: "20251217", ledger: 7, tx: 1, op: 0, event: 3 });
      const eventId = deriveEventId(token, "order.paid");
      const secrets = [secretOf(1), secretOf(2)];
      const webhook = await addWebhook({ secrets });
      const message = messageOf(eventId, { token, data: { z: 1, a: ["ü", "\u{1f4e6}"], n: 2n ** 80n } });
      const [made] = await dispatch(message);
      const before = BigInt(Math.floor(Date.now() / 1_000));
      const recorded = await attempt();
      expect(recorded).toEqual({
        id: made!.id,
        webhookId: webhook.id,
        fence: recorded.fence,
        eventId,
        token,
        number: 1,
        tries: 1,
        url: webhook.url,
        secrets,
        headers: {},
        policy: { onUnknown: "resend", retryOn: "default", jitter: 0.5, retryScheduleMs: [HOUR_MS, HOUR_MS] },
        timestamp: recorded.timestamp,
        body: message.body,
      });
      expect(Number(recorded.timestamp - before)).toBeGreaterThanOrEqual(-2);
      expect(await store.findDelivery(made!.id)).toMatchObject({ state: "sending", attempts: 1 });
      expect(await conforming.attempts(made!.id)).toEqual([
        {
          number: 1,
          fence: recorded.fence,
          timestamp: recorded.timestamp,
          outcome: null,
          status: null,
          lateOutcome: null,
        },
      ]);
    });

    it("carries the headers, schedule and live secrets of its own webhook, as they are now", async () => {
      const settings = { headers: { "x-a": "1" }, retryScheduleMs: [1_000, 2_500], jitter: 0.25 } as const;
      const one = await addWebhook({ ...settings, retryOn: "all", onUnknown: "hold" });
      const two = await addWebhook({ onUnknown: "ask", secrets: [secretOf(4)] });
      for (let i = 0; i < 2; i++) await dispatch(messageOf(`order:${i}`));
      await store.updateWebhook(two.id, { url: "https://new.example/", headers: { "x-b": "2" } });
      await store.rotateSecret(one.id, secretOf(2), HOUR_MS);
      await store.rotateSecret(two.id, secretOf(5), 0);
      const claims = await claim();
      const { fence } = claims[0]!;
      const ids = claims.map(({ id }) => id);
      const recorded = await store.recordAttempts(fence, ids, LEASE_MS);
      expect(recorded.length).toBe(4);
      for (const { webhookId, url, headers, secrets, policy } of recorded) {
        expect({ url, headers, secrets, policy }).toEqual(
          webhookId === one.id
            ? {
                url: one.url,
                headers: { "x-a": "1" },
                secrets: [secretOf(2), secretOf(1)],
                policy: { onUnknown: "hold", retryOn: "all", jitter: 0.25, retryScheduleMs: [1_000, 2_500] },
              }
            : {
                url: "https://new.example/",
                headers: { "x-b": "2" },
                secrets: [secretOf(5)],
                policy: {
                  onUnknown: "ask",
                  retryOn: "default",
                  jitter: 0.5,
                  retryScheduleMs: [HOUR_MS, HOUR_MS],
                },
              },
        );
      }
    });

    it("counts its tries from the last redelivery on", async () => {
      const { id } = await deliver();
      const seen: unknown[] = [];
      for (let round = 0; round < 4; round++) {
        const recorded = await attempt();
        seen.push([recorded.number, recorded.tries]);
        await store.finish(recorded.fence, [ended(recorded, round === 1 ? REFUSED : UNAVAILABLE)]);
        if (round === 1) await store.redeliver(id);
        else await conforming.makeDue(id);
      }
      expect(seen).toEqual([
        [1, 1],
        [2, 2],
        [3, 1],
        [4, 2],
      ]);
    });

    it("is recorded for all of a claim at once, and only for what is asked", async () => {
      await addWebhook();
      for (let i = 0; i < 5; i++) await store.dispatch(messageOf(`order:${i}`), {});
      const claims = await claim();
      const ids = claims.map(({ id }) => id);
      const { fence } = claims[0]!;
      const recorded = await store.recordAttempts(fence, ids.slice(0, 3), LEASE_MS);
      expect(recorded.map(({ id }) => id).sort()).toEqual(ids.slice(0, 3).sort());
      expect((await store.findDelivery(ids[3]!))!.attempts).toBe(0);
    });

    it("is refused a second time under the same claim", async () => {
      const { id } = await deliver();
      const { fence } = await attempt();
      expect(await store.recordAttempts(fence, [id], LEASE_MS)).toEqual([]);
      expect((await conforming.attempts(id)).length).toBe(1);
    });

    it("is recorded once when two ask for it at once under the same claim", async () => {
      const { id } = await deliver();
      const [claimed] = await claim();
      const other = await conforming.open();
      const recorded = await Promise.all(
        [store, other, store, other].map((one) => one.recordAttempts(claimed!.fence, [id], LEASE_MS)),
      );
      expect(recorded.flat().length).toBe(1);
      expect((await conforming.attempts(id)).length).toBe(1);
    });

    it("is refused to a worker that lost its claim, and to one that never had it", async () => {
      const { id } = await deliver();
      const [lost] = await claim();
      await conforming.makeDue(id);
      const [held] = await claim();
      for (const fence of [lost!.fence, 0n, held!.fence + 1_000n]) {
        expect(await store.recordAttempts(fence, [id], LEASE_MS)).toEqual([]);
      }
      expect(await store.recordAttempts(held!.fence, ["dlv_999999999" as DeliveryId], LEASE_MS)).toEqual([]);
      expect((await store.recordAttempts(held!.fence, [id], LEASE_MS)).length).toBe(1);
    });

    it("is refused once its webhook is no longer active, and the claim can be given back", async () => {
      const webhook = await addWebhook();
      await store.dispatch(messageOf("order:1"), {});
      await store.dispatch(messageOf("order:2"), {});
      const claims = await claim();
      const { fence } = claims[0]!;
      const [gone, waiting] = claims.map(({ id }) => id);
      const [recorded] = await store.recordAttempts(fence, [gone!], LEASE_MS);
      await store.finish(fence, [ended(recorded!, GONE)]);
      expect(await store.findWebhook(webhook.id)).toMatchObject({
        active: false,
        disabledReason: "The endpoint answered 410 Gone.",
      });
      expect(await store.recordAttempts(fence, [waiting!], LEASE_MS)).toEqual([]);
      await store.release(fence, [waiting!]);
      expect(await store.findDelivery(waiting!)).toMatchObject({ state: "pending", attempts: 0 });
      expect(await claim()).toEqual([]);
    });

    it("holds its claim for a lease of its own", async () => {
      const { id } = await deliver();
      const [claimed] = await claim({ leaseMs: 1 });
      expect((await store.recordAttempts(claimed!.fence, [id], LEASE_MS)).length).toBe(1);
      expect(await claim()).toEqual([]);
    });

    it("has a later timestamp than every earlier one of its delivery, also within one second", async () => {
      const { id } = await deliver();
      const timestamps: bigint[] = [];
      for (let round = 0; round < 8; round++) {
        const recorded = await attempt();
        timestamps.push(recorded.timestamp);
        await store.finish(recorded.fence, [ended(recorded, round % 3 === 2 ? REFUSED : UNAVAILABLE)]);
        if (round % 3 === 2) await store.redeliver(id);
        else await conforming.makeDue(id);
      }
      for (let i = 1; i < timestamps.length; i++) expect(timestamps[i]! > timestamps[i - 1]!).toBe(true);
    });

    it("waits when its timestamp would run more than a minute ahead of the clock", async () => {
      const { id } = await deliver();
      const first = await attempt();
      await store.finish(first.fence, [ended(first, REFUSED)]);
      // Each redelivery within the same second takes the timestamp one second further.
      let refused: ClaimedDelivery | undefined;
      for (let round = 0; round < 70 && !refused; round++) {
        await store.redeliver(id);
        const [claimed] = await claim();
        const [recorded] = await store.recordAttempts(claimed!.fence, [id], LEASE_MS);
        if (recorded) await store.finish(recorded.fence, [ended(recorded, REFUSED)]);
        else refused = claimed;
      }
      const { timestamp, number } = (await conforming.attempts(id)).at(-1)!;
      expect(Number(timestamp - first.timestamp)).toBeGreaterThanOrEqual(60);
      expect(await store.findDelivery(id)).toMatchObject({ state: "pending", attempts: number });
      // Given back, it is not due before the clock has come nearer: no worker runs in circles for it.
      await store.release(refused!.fence, [id]);
      const early = (await claim()).length > 0;
      const isNearer = Date.now() / 1_000 >= Number(timestamp) - 60;
      expect({ early, isNearer }).toEqual({ early: early && isNearer, isNearer });
    });
  });

  describe("an outcome", () => {
    it("of success ends the delivery", async () => {
      const { id } = await deliver();
      const recorded = await attempt();
      expect(await store.finish(recorded.fence, [ended(recorded, DELIVERED)])).toEqual({
        recorded: [{ id, state: "success" }],
        stale: [],
      });
      expect(await store.findDelivery(id)).toMatchObject({
        state: "success",
        attempts: 1,
        lastStatus: 200,
        lastError: null,
        nextAt: null,
        finishedAt: expect.any(Date),
      });
      expect(await outcomesOf(id)).toEqual([[1, "delivered", 200]]);
      await conforming.makeDue(id);
      expect(await claim()).toEqual([]);
    });

    it("that may pass is retried when its delay has gone by, until the schedule is used up", async () => {
      const { id } = await deliver();
      for (let round = 1; round <= 3; round++) {
        const before = Date.now();
        const { state, nextAt, lastStatus, lastError } = await attemptWith(UNAVAILABLE);
        expect({ state, lastStatus, lastError }).toEqual({
          state: round < 3 ? "pending" : "failed",
          lastStatus: 503,
          lastError: "an error",
        });
        expect(await claim()).toEqual([]);
        if (state === "failed") break;
        const delay = nextAt!.getTime() - before;
        expect(delay).toBeGreaterThan(HOUR_MS / 2 - 10_000);
        expect(delay).toBeLessThan(HOUR_MS + 60_000);
        await conforming.makeDue(id);
      }
      expect(await outcomesOf(id)).toEqual([1, 2, 3].map((number) => [number, "rejected", 503]));
    });

    it("has the endpoint's own wish respected", async () => {
      await deliver();
      const { nextAt } = await attemptWith({ ...UNAVAILABLE, retryAfterMs: 10 * HOUR_MS });
      expect(nextAt!.getTime() - Date.now()).toBeGreaterThan(9 * HOUR_MS);
    });

    it("of one delivery says nothing about the others of its claim", async () => {
      await Promise.all(Array.from({ length: 10 }, () => addWebhook()));
      await store.dispatch(messageOf("order:1"), {});
      const claims = await claim();
      const ids = claims.map(({ id }) => id);
      const { fence } = claims[0]!;
      const recorded = await store.recordAttempts(fence, ids, LEASE_MS);
      const [failing, ...others] = ids;
      await store.finish(
        fence,
        recorded.map((one) => ended(one, one.id === failing ? UNAVAILABLE : DELIVERED)),
      );
      for (const id of others) expect((await store.findDelivery(id))!.state).toBe("success");
      await conforming.makeDue(failing!);
      expect((await claim()).map(({ id }) => id)).toEqual([failing]);
    });

    it("changes nothing under a lost claim, and is noted beside the attempt", async () => {
      const { id } = await deliver();
      const late = await attempt();
      await conforming.makeDue(id);
      await settleInterrupted();
      const before = await store.findDelivery(id);
      expect(await store.finish(late.fence, [ended(late, DELIVERED)])).toEqual({ recorded: [], stale: [id] });
      expect(await store.findDelivery(id)).toEqual(before);
      expect(await conforming.attempts(id)).toMatchObject([
        { number: 1, outcome: "unknown", lateOutcome: "delivered 200" },
      ]);
    });

    it("under a lost claim cannot end a delivery that another worker is sending", async () => {
      const { id } = await deliver();
      const late = await attempt();
      await conforming.makeDue(id);
      await settleInterrupted();
      await conforming.makeDue(id);
      const second = await attempt();
      for (const result of [DELIVERED, REFUSED, UNKNOWN]) {
        expect((await store.finish(late.fence, [ended(late, result)])).stale).toEqual([id]);
      }
      expect((await store.findDelivery(id))!.state).toBe("sending");
      expect((await store.finish(second.fence, [ended(second, DELIVERED)])).stale).toEqual([]);
      expect((await store.finish(late.fence, [ended(late, UNKNOWN)])).stale).toEqual([id]);
      expect(await outcomesOf(id)).toEqual([
        [1, "unknown", null],
        [2, "delivered", 200],
      ]);
    });

    it("reported twice counts once", async () => {
      const { id } = await deliver();
      for (const result of [UNAVAILABLE, DELIVERED]) {
        await conforming.makeDue(id);
        const recorded = await attempt();
        await store.finish(recorded.fence, [ended(recorded, result)]);
        const before = await store.findDelivery(id);
        const again = await store.finish(recorded.fence, [ended(recorded, result)]);
        expect(again).toEqual({ recorded: [], stale: [id] });
        expect(await store.findDelivery(id)).toEqual(before);
      }
      expect((await conforming.attempts(id)).map(({ lateOutcome }) => lateOutcome)).toEqual([null, null]);
    });

    it("by two at once under one claim is recorded once", async () => {
      const { id } = await deliver();
      const recorded = await attempt();
      const other = await conforming.open();
      const reports = await Promise.all(
        [store, other, store].map((one) => one.finish(recorded.fence, [ended(recorded, UNAVAILABLE)])),
      );
      expect(reports.flatMap((report) => report.recorded).length).toBe(1);
      expect(await outcomesOf(id)).toEqual([[1, "rejected", 503]]);
    });

    it("of a claim without an attempt gives the claim back", async () => {
      const { id } = await deliver();
      const [first] = await claim();
      const unrecorded = { id, result: DELIVERED, next: { state: "success" } } as const;
      expect((await store.finish(first!.fence, [unrecorded])).stale).toEqual([id]);
      expect(await store.findDelivery(id)).toMatchObject({ state: "pending", attempts: 0 });
      expect(await store.recordAttempts(first!.fence, [id], LEASE_MS)).toEqual([]);
      expect(await attempt()).toMatchObject({ id, number: 1 });
    });

    it("keeps any text that an endpoint says", async () => {
      const { id } = await deliver();
      const text = "\u{1f4e6} \ufffd '\"\\ {} \n";
      await attemptWith({ ...UNAVAILABLE, error: text, response: text });
      expect((await store.findDelivery(id))!.lastError).toBe(text);
    });
  });

  describe("a worker that died", () => {
    it("before its attempt leaves a delivery that is attempted as if nothing had been", async () => {
      const { id } = await deliver();
      await claim();
      await conforming.makeDue(id);
      expect(await attempt()).toMatchObject({ id, number: 1 });
    });

    test.each([
      ["resend", "pending", [{ interrupted: false, asking: false }]],
      ["hold", "in_doubt", []],
      ["ask", "in_doubt", [{ interrupted: false, asking: true }]],
    ] as const)(
      "after its attempt leaves one that is unknown: %s makes it %s",
      async (onUnknown, state, next) => {
        const { id } = await deliver({ onUnknown });
        await attempt();
        await conforming.makeDue(id);
        const [settling] = await claim();
        expect(settling).toMatchObject({ id, interrupted: true, asking: false });
        expect(await store.recordAttempts(settling!.fence, [id], LEASE_MS)).toEqual([]);
        await store.release(settling!.fence, [id]);
        const [review] = await store.review(settling!.fence, [id]);
        const { recorded } = await store.finish(settling!.fence, [ended(review!, INTERRUPTED)]);
        expect(recorded).toEqual([{ id, state }]);
        expect(await outcomesOf(id)).toEqual([[1, "unknown", null]]);
        await conforming.makeDue(id);
        expect(await claim()).toMatchObject(next);
      },
    );

    it("while it settled the attempt of another that died leaves it to the next", async () => {
      const { id } = await deliver();
      await attempt();
      for (let i = 0; i < 3; i++) {
        await conforming.makeDue(id);
        expect(await claim()).toMatchObject([{ id, interrupted: true }]);
      }
      expect((await conforming.attempts(id)).length).toBe(1);
    });
  });

  describe("a delivery in doubt that is asked about", () => {
    it("is claimed as such, cannot be attempted, and tells what its worker must know", async () => {
      const { id, fence, attempted } = await askable();
      expect(await store.recordAttempts(fence, [id], LEASE_MS)).toEqual([]);
      const { eventId, webhookId, url, secrets, headers, policy, timestamp } = attempted;
      const target = { url, secrets, headers, policy };
      const firstAttemptAt = new Date(Number(timestamp) * 1_000);
      const counts = { tries: 1, asks: 0, lastTimestamp: timestamp, firstAttemptAt };
      expect(await store.review(fence, [id])).toEqual([{ id, eventId, webhookId, ...target, ...counts }]);
      expect(await store.review(fence + 1n, [id])).toEqual([]);
    });

    it("has one question counted for each answer, and none once it was attempted again", async () => {
      const { id, fence } = await askable();
      await settle(id, fence, { state: "in_doubt", askInMs: HOUR_MS }, "in vain");
      const waiting = await store.findDelivery(id);
      expect(waiting).toMatchObject({ state: "in_doubt", lastError: "in vain", finishedAt: null });
      expect(waiting!.nextAt!.getTime() - Date.now()).toBeGreaterThan(HOUR_MS / 2);
      expect(await claim()).toEqual([]);
      await conforming.makeDue(id);
      const [second] = await claim();
      expect(await store.review(second!.fence, [id])).toMatchObject([{ asks: 1, tries: 1 }]);
      await settle(id, second!.fence, { state: "pending", delayMs: 0 });
      const again = await attempt();
      expect(again).toMatchObject({ id, number: 2, tries: 2 });
      await store.finish(again.fence, [ended(again, UNKNOWN)]);
      const [third] = await claim();
      const [review] = await store.review(third!.fence, [id]);
      expect(review).toMatchObject({ asks: 0, tries: 2, lastTimestamp: again.timestamp });
      expect(review!.firstAttemptAt.getTime()).toBeLessThan(Number(again.timestamp) * 1_000);
    });

    test.each([
      [{ state: "success" }, { state: "success", lastError: null, finishedAt: expect.any(Date) }],
      [
        { state: "pending", delayMs: 0 },
        { state: "pending", lastError: "an error", finishedAt: null },
      ],
      [
        { state: "in_doubt", askInMs: null },
        { state: "in_doubt", nextAt: null, lastError: "an error" },
      ],
      [
        { state: "failed", disableWebhook: false },
        { state: "failed", finishedAt: expect.any(Date) },
      ],
    ] as const)("settled as %j leaves its attempt as it was", async (next, delivery) => {
      const { id, fence } = await askable();
      expect(await settle(id, fence, next)).toEqual({ recorded: [{ id, state: next.state }], stale: [] });
      expect(await store.findDelivery(id)).toMatchObject({ ...delivery, attempts: 1 });
      expect(await outcomesOf(id)).toEqual([[1, "unknown", null]]);
      await conforming.makeDue(id);
      expect(await claim()).toMatchObject(next.state === "pending" ? [{ id, asking: false }] : []);
    });

    it("is settled by nobody who lost the claim, nor once a person has resolved it", async () => {
      const { id, fence: lost } = await askable();
      await conforming.makeDue(id);
      const [held] = await claim();
      expect(held).toMatchObject({ id, asking: true });
      const stale = { recorded: [], stale: [id] };
      expect(await settle(id, lost, { state: "success" })).toEqual(stale);
      await store.resolve(id, "resend");
      expect(await settle(id, held!.fence, { state: "success" })).toEqual(stale);
      expect(await store.findDelivery(id)).toMatchObject({ state: "pending" });
      const { fence } = await attempt();
      expect(await settle(id, fence, { state: "success" })).toEqual(stale);
      expect((await store.findDelivery(id))!.state).toBe("sending");
    });

    it("is given back as such, and is not asked once its webhook is not active", async () => {
      const { id, fence } = await askable();
      await store.release(fence, [id]);
      const [again] = await claim();
      expect(again).toMatchObject({ id, asking: true });
      const { webhookId } = (await store.findDelivery(id))!;
      await store.deactivateWebhook(webhookId, "paused");
      expect(await store.review(again!.fence, [id])).toEqual([]);
      await store.release(again!.fence, [id]);
      expect(await claim()).toEqual([]);
      await store.activateWebhook(webhookId, "skip");
      expect(await claim()).toMatchObject([{ id, asking: true }]);
    });
  });

  describe("the health of a webhook", () => {
    it("is failing from its first failure on until a success", async () => {
      const { webhookId } = await deliver();
      const failingSince = async () => (await store.findWebhook(webhookId))!.failingSince;
      expect(await failingSince()).toBe(null);
      const { id } = await attemptWith(UNAVAILABLE);
      const since = await failingSince();
      expect(since).toEqual(expect.any(Date));
      await conforming.makeDue(id);
      await attemptWith(UNKNOWN);
      expect(await failingSince()).toEqual(since);
      await conforming.makeDue(id);
      await attemptWith(DELIVERED);
      expect(await failingSince()).toBe(null);
    });

    it("disables it where it has failed for long enough, and it is told once", async () => {
      const { id, webhookId } = await deliver({ disableAfterMs: 1 });
      await attemptWith(UNAVAILABLE);
      expect((await store.findWebhook(webhookId))!.active).toBe(true);
      const { failingSince } = (await store.findWebhook(webhookId))!;
      while (Date.now() <= failingSince!.getTime() + 2) await new Promise(setImmediate);
      await conforming.makeDue(id);
      await attemptWith(UNAVAILABLE);
      const disabled = (await store.findWebhook(webhookId))!;
      expect(disabled).toMatchObject({ active: false, disabledAt: expect.any(Date), failingSince });
      const second = `${failingSince!.toISOString().slice(0, 19)}Z`;
      expect(disabled.disabledReason).toBe(`Every attempt has failed since ${second}.`);
      const untold = await store.listUntold();
      const { disabledReason: reason, disabledAt } = disabled;
      expect(untold).toEqual([{ id: webhookId, reason, disabledAt }]);
      await store.markTold(untold[0]!);
      expect(await store.listUntold()).toEqual([]);
    });

    it("is judged by a success before all failures that are recorded with it", async () => {
      const webhook = await addWebhook({ disableAfterMs: 1 });
      const [first] = await dispatch(messageOf("order:0"), webhook.id);
      await attemptWith(REFUSED);
      const { failingSince } = (await store.findWebhook(webhook.id))!;
      while (Date.now() <= failingSince!.getTime() + 2) await new Promise(setImmediate);
      for (let i = 1; i <= 3; i++) await dispatch(messageOf(`order:${i}`), webhook.id);
      const claims = await claim();
      const { fence } = claims[0]!;
      const ids = claims.map(({ id }) => id);
      const recorded = await store.recordAttempts(fence, ids, LEASE_MS);
      const results = [UNAVAILABLE, DELIVERED, REFUSED];
      await store.finish(
        fence,
        recorded.map((one, i) => ended(one, results[i]!)),
      );
      expect(await store.findWebhook(webhook.id)).toMatchObject({ active: true, failingSince: null });
      expect((await store.findDelivery(first!.id))!.state).toBe("failed");
    });

    it("says of an endpoint that is gone that it is to be told", async () => {
      const gone = await addGoneWebhook();
      const { disabledReason: reason, disabledAt } = gone;
      expect(await store.listUntold()).toEqual([{ id: gone.id, reason, disabledAt }]);
      expect(reason).toBe("The endpoint answered 410 Gone.");
    });

    it("says nothing of one that its owner had paused before", async () => {
      const { webhookId } = await deliver({ disableAfterMs: 1 });
      const recorded = await attempt();
      await store.deactivateWebhook(webhookId, "paused");
      await store.finish(recorded.fence, [ended(recorded, GONE)]);
      expect(await store.findWebhook(webhookId)).toMatchObject({ active: false, disabledReason: "paused" });
      expect(await store.listUntold()).toEqual([]);
    });
  });

  describe("a lease", () => {
    it("is lengthened for who holds the claim, attempted, waiting or asking, and for nobody else", async () => {
      const { webhookId } = await deliver({ onUnknown: "ask" });
      await attemptWith(UNKNOWN);
      for (let i = 2; i <= 3; i++) await dispatch(messageOf(`order:${i}`), webhookId);
      const claims = await claim();
      const { fence } = claims[0]!;
      const ids = claims.map(({ id }) => id);
      await store.recordAttempts(fence, [claims.find(({ asking }) => !asking)!.id], LEASE_MS);
      for (const id of ids) await conforming.makeDue(id);
      expect(await store.extend(fence + 1n, ids, LEASE_MS)).toEqual([]);
      expect([...(await store.extend(fence, ids, LEASE_MS))].sort()).toEqual([...ids].sort());
      expect(await claim()).toEqual([]);
      await conforming.makeDue(ids[0]!);
      const [taken] = await claim();
      expect(await store.extend(fence, ids, LEASE_MS)).not.toContain(taken!.id);
    });

    it("of what has ended or was given back is not lengthened", async () => {
      const { id, webhookId } = await deliver();
      const recorded = await attempt();
      await store.finish(recorded.fence, [ended(recorded, DELIVERED)]);
      expect(await store.extend(recorded.fence, [id], LEASE_MS)).toEqual([]);
      await dispatch(messageOf("order:2"), webhookId);
      const [given] = await claim();
      await store.release(given!.fence, [given!.id]);
      expect(await store.extend(given!.fence, [given!.id], LEASE_MS)).toEqual([]);
      expect((await claim()).length).toBe(1);
    });
  });

  describe("release", () => {
    it("gives a claim back at once, and takes no other's", async () => {
      const { id } = await deliver();
      const [first] = await claim();
      await store.release(first!.fence + 1_000n, [id]);
      expect(await claim()).toEqual([]);
      await store.release(first!.fence, [id]);
      const [second] = await claim();
      expect(second).toMatchObject({ id, interrupted: false });
      await store.release(first!.fence, [id]);
      expect(await claim()).toEqual([]);
      expect((await store.recordAttempts(second!.fence, [id], LEASE_MS)).length).toBe(1);
    });

    it("does not give back what was attempted", async () => {
      const { id } = await deliver();
      const { fence } = await attempt();
      await store.release(fence, [id]);
      expect(await claim()).toEqual([]);
      expect((await store.findDelivery(id))!.state).toBe("sending");
    });
  });
}
