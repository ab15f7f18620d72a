// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Claims, attempts and their outcomes, as every store must have them.
import { deriveEventId, ledgerToken } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { INTERRUPTED } from "../decideDelivery.ts";
import type { ClaimedDelivery, DeliveryId, DeliveryStore } from "../deliveryStore.ts";
import { type ConformingStore, type CreateStore, messageOf } from "./conformingStore.ts";
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

    it("passes over what waits for a webhook that is not active", async () => {
      const gone = await addGoneWebhook();
      await store.dispatch(messageOf("order:1"), { only: gone.id });
      expect(await claim()).toEqual([]);
    });
  });

  describe("an attempt", () => {
    it("carries the stored bytes, token and secrets, under a number and a timestamp of its own", async () => {
      const token = ledgerToken({ stream: "testnet", epoch: "20251217", ledger: 7, tx: 1, op: 0, event: 3 });
      const eventId = deriveEventId(token, "order.paid");
      const secrets = [secretOf(1), secretOf(2)];
      const webhook = await addWebhook({ secrets });
      const message = messageOf(eventId, { token, data: { z: 1, a: ["ü", "\u{1f4e6}"], n: 2n ** 80n } });
      const [made] = await store.dispatch(message, {});
      const before = BigInt(Math.floor(Date.now() / 1_000));
      const recorded = await attempt();
      expect(recorded).toEqual({
        id: made!.id,
        fence: recorded.fence,
        eventId,
        token,
        number: 1,
        url: webhook.url,
        secrets,
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
      await store.recordAttempts(fence, [gone!], LEASE_MS);
      await store.finish(fence, [{ id: gone!, result: GONE }]);
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
        const { fence, timestamp } = await attempt();
        timestamps.push(timestamp);
        await store.finish(fence, [{ id, result: round % 3 === 2 ? REFUSED : UNAVAILABLE }]);
        if (round % 3 === 2) await store.redeliver(id);
        else await conforming.makeDue(id);
      }
      for (let i = 1; i < timestamps.length; i++) expect(timestamps[i]! > timestamps[i - 1]!).toBe(true);
    });

    it("waits when its timestamp would run more than a minute ahead of the clock", async () => {
      const { id } = await deliver();
      const first = await attempt();
      await store.finish(first.fence, [{ id, result: REFUSED }]);
      // Each redelivery within the same second takes the timestamp one second further.
      let refused: ClaimedDelivery | undefined;
      for (let round = 0; round < 70 && !refused; round++) {
        await store.redeliver(id);
        const [claimed] = await claim();
        const [recorded] = await store.recordAttempts(claimed!.fence, [id], LEASE_MS);
        if (recorded) await store.finish(recorded.fence, [{ id, result: REFUSED }]);
        else refused = claimed;
      }
      const { timestamp, number } = (await conforming.attempts(id)).at(-1)!;
      expect(Number(timestamp - first.timestamp)).toBeGreaterThanOrEqual(60);
      expect(await store.findDelivery(id)).toMatchObject({ state: "pending", attempts: number });
      // Given back, it is not due before the clock has come nearer: no worker runs in circles for it.
      await store.release(refused!.fence, [id]);
      expect(await claim()).toEqual([]);
    });
  });

  describe("an outcome", () => {
    it("of success ends the delivery", async () => {
      const { id } = await deliver();
      const { fence } = await attempt();
      expect(await store.finish(fence, [{ id, result: DELIVERED }])).toEqual({
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
      await store.recordAttempts(fence, ids, LEASE_MS);
      const [failing, ...others] = ids;
      await store.finish(
        fence,
        ids.map((id) => ({ id, result: id === failing ? UNAVAILABLE : DELIVERED })),
      );
      for (const id of others) expect((await store.findDelivery(id))!.state).toBe("success");
      await conforming.makeDue(failing!);
      expect((await claim()).map(({ id }) => id)).toEqual([failing]);
    });

    it("changes nothing under a lost claim, and is noted beside the attempt", async () => {
      const { id } = await deliver();
      const late = await attempt();
      await conforming.makeDue(id);
      const [settling] = await claim();
      await store.finish(settling!.fence, [{ id, result: INTERRUPTED }]);
      const before = await store.findDelivery(id);
      expect(await store.finish(late.fence, [{ id, result: DELIVERED }])).toEqual({
        recorded: [],
        stale: [id],
      });
      expect(await store.findDelivery(id)).toEqual(before);
      expect(await conforming.attempts(id)).toMatchObject([
        { number: 1, outcome: "unknown", lateOutcome: "delivered 200" },
      ]);
    });

    it("under a lost claim cannot end a delivery that another worker is sending", async () => {
      const { id } = await deliver();
      const late = await attempt();
      await conforming.makeDue(id);
      const [settling] = await claim();
      await store.finish(settling!.fence, [{ id, result: INTERRUPTED }]);
      await conforming.makeDue(id);
      const second = await attempt();
      for (const result of [DELIVERED, REFUSED, UNKNOWN]) {
        expect((await store.finish(late.fence, [{ id, result }])).stale).toEqual([id]);
      }
      expect((await store.findDelivery(id))!.state).toBe("sending");
      expect((await store.finish(second.fence, [{ id, result: DELIVERED }])).stale).toEqual([]);
      expect((await store.finish(late.fence, [{ id, result: UNKNOWN }])).stale).toEqual([id]);
      expect(await outcomesOf(id)).toEqual([
        [1, "unknown", null],
        [2, "delivered", 200],
      ]);
    });

    it("reported twice counts once", async () => {
      const { id } = await deliver();
      for (const result of [UNAVAILABLE, DELIVERED]) {
        await conforming.makeDue(id);
        const { fence } = await attempt();
        await store.finish(fence, [{ id, result }]);
        const before = await store.findDelivery(id);
        expect(await store.finish(fence, [{ id, result }])).toEqual({ recorded: [], stale: [id] });
        expect(await store.findDelivery(id)).toEqual(before);
      }
      expect((await conforming.attempts(id)).map(({ lateOutcome }) => lateOutcome)).toEqual([null, null]);
    });

    it("by two at once under one claim is recorded once", async () => {
      const { id } = await deliver();
      const { fence } = await attempt();
      const other = await conforming.open();
      const reports = await Promise.all(
        [store, other, store].map((one) => one.finish(fence, [{ id, result: UNAVAILABLE }])),
      );
      expect(reports.flatMap(({ recorded }) => recorded).length).toBe(1);
      expect(await outcomesOf(id)).toEqual([[1, "rejected", 503]]);
    });

    it("of a claim without an attempt gives the claim back", async () => {
      const { id } = await deliver();
      const [first] = await claim();
      expect((await store.finish(first!.fence, [{ id, result: DELIVERED }])).stale).toEqual([id]);
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
      ["resend", "pending"],
      ["hold", "in_doubt"],
    ] as const)("after its attempt leaves one that is unknown: %s makes it %s", async (onUnknown, state) => {
      const { id } = await deliver({ onUnknown });
      await attempt();
      await conforming.makeDue(id);
      const [settling] = await claim();
      expect(settling).toMatchObject({ id, interrupted: true });
      expect(await store.recordAttempts(settling!.fence, [id], LEASE_MS)).toEqual([]);
      await store.release(settling!.fence, [id]);
      const { recorded } = await store.finish(settling!.fence, [{ id, result: INTERRUPTED }]);
      expect(recorded).toEqual([{ id, state }]);
      expect(await outcomesOf(id)).toEqual([[1, "unknown", null]]);
      await conforming.makeDue(id);
      expect((await claim()).map(({ interrupted }) => interrupted)).toEqual(
        state === "pending" ? [false] : [],
      );
    });

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
