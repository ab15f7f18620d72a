// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What every delivery store must do, races included. A store passes when a test runs this on the real thing.
import { deriveEventId, ledgerToken, testEventId } from "@fencepost/token";
import { beforeEach, describe, expect, it, test } from "vitest";
import { EventContentMismatchError } from "../../message/payload.ts";
import { INTERRUPTED } from "../decideDelivery.ts";
import type {
  AttemptOutcome,
  AttemptResult,
  ClaimedDelivery,
  ClaimOptions,
  Delivery,
  DeliveryId,
  DeliveryStore,
  NewWebhook,
  RecordedAttempt,
  Webhook,
  WebhookId,
} from "../deliveryStore.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import { checkAgainstModel } from "./deliveryStoreModel.conformance.ts";

const LEASE_MS = 3_600_000;
const HOUR_MS = 3_600_000;
const EVERYTHING: ClaimOptions = { limit: 1_000, perOrigin: 1_000, skipOrigins: [], leaseMs: LEASE_MS };
/** Retries that a test does not wait for, but makes due. */
const RETRY_SCHEDULE_MS = [HOUR_MS, HOUR_MS];

const secretOf = (n: number): string => `whsec_${Buffer.alloc(32, n).toString("base64")}`;
const resultOf = (outcome: AttemptOutcome, status: number | null = null): AttemptResult => ({
  outcome,
  status,
  error: outcome === "delivered" ? null : "an error",
  response: status === null ? null : "a body",
  retryAfterMs: null,
});
const DELIVERED = resultOf("delivered", 200);
const UNAVAILABLE = resultOf("rejected", 503);
const REFUSED = resultOf("rejected", 400);
const GONE = resultOf("rejected", 410);
const UNKNOWN = resultOf("unknown");

/** Defines the tests. */
export function deliveryStoreConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  let webhooks = 0;
  beforeEach(async () => {
    conforming = await create({ retryScheduleMs: RETRY_SCHEDULE_MS });
    ({ store } = conforming);
    webhooks = 0;
  });

  function addWebhook(overrides: Partial<NewWebhook> = {}): Promise<Webhook> {
    webhooks++;
    return store.addWebhook({
      id: `wh_${String(webhooks).padStart(4, "0")}` as WebhookId,
      url: `https://customer-${webhooks}.example/hook`,
      types: ["*"],
      secrets: [secretOf(1)],
      description: "",
      onUnknown: "resend",
      ...overrides,
    });
  }

  const claim = (options: Partial<ClaimOptions> = {}): Promise<readonly ClaimedDelivery[]> =>
    store.claim({ ...EVERYTHING, ...options });

  /** Claims the only delivery that is due and puts an attempt of it on record. */
  async function attempt(): Promise<RecordedAttempt> {
    const claims = await claim();
    expect(claims.length).toBe(1);
    const [recorded] = await store.recordAttempts(claims[0]!.fence, [claims[0]!.id], LEASE_MS);
    return recorded!;
  }

  /** The only delivery that is due goes through one attempt with this result. */
  async function attemptWith(result: AttemptResult): Promise<Delivery> {
    const { fence, id } = await attempt();
    const report = await store.finish(fence, [{ id, result }]);
    expect(report.stale).toEqual([]);
    return (await store.findDelivery(id))!;
  }

  /** Makes one delivery to a new webhook. */
  async function deliver(overrides: Partial<NewWebhook> = {}): Promise<Delivery> {
    const webhook = await addWebhook(overrides);
    const made = await store.dispatch(messageOf("order:1"), { only: webhook.id });
    return made[0]!;
  }

  /** A webhook whose endpoint is gone: no longer active. */
  async function addGoneWebhook(): Promise<Webhook> {
    const webhook = await addWebhook();
    await store.dispatch(messageOf(`gone:${webhook.id}`), { only: webhook.id });
    await attemptWith(GONE);
    return (await store.findWebhook(webhook.id))!;
  }

  const outcomesOf = async (id: DeliveryId): Promise<readonly unknown[]> =>
    (await conforming.attempts(id)).map(({ number, outcome, status }) => [number, outcome, status]);

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

  it("keeps its promises whatever comes in whatever order, twice over", async () => {
    await checkAgainstModel(create);
  });
}
