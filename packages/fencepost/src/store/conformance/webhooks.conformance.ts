// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// The life of a webhook, as every store must have it.
import { beforeEach, describe, expect, it, test } from "vitest";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import type { DeliveryId, DeliveryStore } from "../deliveryStore.ts";
import { MAX_LIVE_SECRETS, TooManySecretsError } from "../errors.ts";
import type { NewWebhook, Webhook, WebhookChanges, WebhookId } from "../webhook.ts";
import {
  type ConformingStore,
  type CreateStore,
  emittedMessage as emitted,
  messageOf,
} from "./conformingStore.ts";
import {
  DELIVERED,
  ended,
  HOUR_MS,
  LEASE_MS,
  secretOf,
  UNAVAILABLE,
  useStore,
  webhookOf,
} from "./deliverySteps.ts";

const NONE = "wh_none" as WebhookId;

/** Defines the tests. */
export function webhooksConformance(create: CreateStore): void {
  let conforming: ConformingStore;
  let store: DeliveryStore;
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, deliver, addGoneWebhook } = steps;
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  const found = async (id: WebhookId): Promise<Webhook> => (await store.findWebhook(id))!;
  const secretsOf = ({ secrets }: Webhook): readonly string[] => secrets.map(({ secret }) => secret);
  /** Everything that waits in the outbox, or for a catch-up, is offered. */
  const offerAll = async (): Promise<void> => {
    while ((await store.fanOut({ messages: 100, webhooks: 100 })).messages > 0);
    while ((await store.catchUp(100)).messages > 0);
  };

  const EVERYTHING_SET: NewWebhook = {
    id: "wh_b" as WebhookId,
    url: "https://customer.example/hook?a=1",
    types: ["order.paid", "order.sent"],
    filter: { a: { b: [1, "ü", null, true] }, "\u{1f4e6}": 0.25 },
    secrets: [secretOf(1), secretOf(2)],
    headers: { "x-key": "a b", authorization: "Bearer c" },
    description: "Orders, \u{1f4e6}",
    onUnknown: "hold",
    retryOn: "all",
    retryScheduleMs: [1_000, 7 * 24 * HOUR_MS],
    jitter: 0.25,
    ordering: "strict",
    ratePerSecond: 0.5,
    maxInFlight: 3,
    disableAfterMs: HOUR_MS,
  };

  describe("a webhook that is added", () => {
    test.each<readonly [string, NewWebhook]>([
      ["everything", EVERYTHING_SET],
      ["nothing", webhookOf("wh_b")],
    ])("with %s set is found as it was added, active, from the database's time on", async (_what, input) => {
      const before = Date.now();
      const added = await store.addWebhook(input);
      expect(added).toEqual({
        ...input,
        secrets: input.secrets.map((secret) => ({ secret, expiresAt: null })),
        active: true,
        disabledReason: null,
        disabledAt: null,
        failingSince: null,
        deliverFrom: expect.any(Date),
        prunedUntil: null,
        createdAt: expect.any(Date),
      });
      expect(Math.abs(added.createdAt.getTime() - before)).toBeLessThan(60_000);
      expect(await store.findWebhook(input.id)).toEqual(added);
      expect(await store.findWebhook(NONE)).toBe(undefined);
    });

    it("again, under the same id, is left as it is, also by many at once", async () => {
      const others = [store, await conforming.open(), await conforming.open()];
      const added = await Promise.all(
        Array.from({ length: 9 }, (_, i) =>
          others[i % 3]!.addWebhook(webhookOf("wh_same", { url: `https://${i}.example/` })),
        ),
      );
      for (const webhook of added) expect(webhook).toEqual(added[0]);
      expect(await store.listWebhooks({ limit: 10 })).toEqual([added[0]]);
    });

    it("is listed in pages by id", async () => {
      const ids = ["wh_c", "wh_a", "wh_e", "wh_d", "wh_b"];
      for (const id of ids) await store.addWebhook(webhookOf(id));
      const listed = async (after?: string) =>
        (await store.listWebhooks({ limit: 2, ...(after && { after }) })).map(({ id }) => id);
      expect(await listed()).toEqual(["wh_a", "wh_b"]);
      expect(await listed("wh_b")).toEqual(["wh_c", "wh_d"]);
      expect(await listed("wh_d")).toEqual(["wh_e"]);
      expect(await listed("wh_e")).toEqual([]);
    });
  });

  describe("a webhook that is changed", () => {
    const changes: readonly WebhookChanges[] = [
      { url: "https://other.example/" },
      { types: ["*"] },
      { filter: null },
      { filter: { x: 1 } },
      { headers: {} },
      { description: "" },
      { onUnknown: "ask" },
      { retryOn: "default" },
      { retryScheduleMs: null },
      { jitter: 0 },
      { ratePerSecond: null },
      { maxInFlight: null },
      { ratePerSecond: null, maxInFlight: null },
      { disableAfterMs: null },
      {},
    ];
    test.each(changes)("by %j has this and everything else as before", async (change) => {
      const before = await store.addWebhook(EVERYTHING_SET);
      const after = await store.updateWebhook(before.id, change);
      expect(after).toEqual({ ...before, ...change });
      expect(await store.findWebhook(before.id)).toEqual(after);
    });

    it("gets each setting also where it had none", async () => {
      const { id: _id, secrets: _secrets, ordering: _ordering, ...settings } = EVERYTHING_SET;
      const before = await addWebhook();
      expect(await store.updateWebhook(before.id, settings)).toEqual({ ...before, ...settings });
    });

    it("is attempted so from then on, also for older deliveries and beside claims of them", async () => {
      await addWebhook();
      const webhook = await found("wh_0001" as WebhookId);
      await dispatch(messageOf("order:1"));
      const [held] = await claim();
      const change = {
        url: "https://new.example/",
        headers: { "x-new": "1" },
        onUnknown: "ask",
        retryOn: "all",
        retryScheduleMs: [5],
        jitter: 0,
      } as const;
      await store.updateWebhook(webhook.id, change);
      const [recorded] = await store.recordAttempts(held!.fence, [held!.id], LEASE_MS);
      const { url, headers, ...policy } = change;
      expect(recorded).toMatchObject({ url, headers, policy });
    });

    it("takes other messages from then on", async () => {
      const { id } = await addWebhook({ types: ["order.sent"] });
      expect((await dispatch(messageOf("order:1"))).length).toBe(0);
      await store.updateWebhook(id, { types: ["order.paid"], filter: { order: 1 } });
      expect((await dispatch(messageOf("order:1"))).length).toBe(1);
      await store.updateWebhook(id, { filter: { order: 2 } });
      expect((await dispatch(messageOf("order:2"))).length).toBe(0);
    });

    it("is limited from then on, and no longer once its limits are gone", async () => {
      const { id } = await addWebhook();
      for (let i = 0; i < 6; i++) await dispatch(messageOf(`order:${i}`));
      await store.updateWebhook(id, { maxInFlight: 2 });
      expect((await claim()).length).toBe(2);
      expect((await claim()).length).toBe(0);
      await store.updateWebhook(id, { maxInFlight: null });
      expect((await claim()).length).toBe(4);
    });

    it("is none when it is not there", async () => {
      expect(await store.updateWebhook(NONE, { url: "https://other.example/" })).toBe(undefined);
      expect(await store.updateWebhook(NONE, {})).toBe(undefined);
      expect(await store.rotateSecret(NONE, secretOf(1), 0)).toBe(undefined);
      expect(await store.activateWebhook(NONE, "deliver")).toBe(undefined);
      expect(await store.deactivateWebhook(NONE, "")).toBe(undefined);
      expect(await store.deleteWebhook(NONE)).toBe(false);
      expect(await store.listWebhooks({ limit: 10 })).toEqual([]);
    });
  });

  describe("a rotated secret", () => {
    it("signs first, and those before it beside it until the overlap has ended", async () => {
      const { id } = await addWebhook({ secrets: [secretOf(2), secretOf(1)] });
      const before = Date.now();
      const rotated = (await store.rotateSecret(id, secretOf(3), HOUR_MS))!;
      expect(secretsOf(rotated)).toEqual([3, 2, 1].map(secretOf));
      expect(rotated.secrets[0]!.expiresAt).toBe(null);
      for (const { expiresAt } of rotated.secrets.slice(1)) {
        expect(Math.abs(expiresAt!.getTime() - before - HOUR_MS)).toBeLessThan(60_000);
      }
      expect(await store.findWebhook(id)).toEqual(rotated);
      await dispatch(messageOf("order:1"));
      expect((await attempt()).secrets).toEqual([3, 2, 1].map(secretOf));
    });

    it("ends those that end sooner no later than that", async () => {
      const { id } = await addWebhook();
      const [, first] = (await store.rotateSecret(id, secretOf(2), HOUR_MS))!.secrets;
      const twice = (await store.rotateSecret(id, secretOf(3), 2 * HOUR_MS))!;
      expect(twice.secrets[2]).toEqual(first);
      expect(twice.secrets[1]!.expiresAt!.getTime()).toBeGreaterThan(first!.expiresAt!.getTime());
      const thrice = (await store.rotateSecret(id, secretOf(4), HOUR_MS / 2))!;
      for (const { expiresAt } of thrice.secrets.slice(1)) {
        expect(expiresAt!.getTime()).toBeLessThan(first!.expiresAt!.getTime());
      }
    });

    it("is the only one at once where there is no overlap, and by itself once that has passed", async () => {
      const { id } = await addWebhook();
      expect(secretsOf((await store.rotateSecret(id, secretOf(2), 0))!)).toEqual([secretOf(2)]);
      await store.rotateSecret(id, secretOf(3), 1);
      await waitUntil(async () => secretsOf(await found(id)).length === 1, { what: "the overlap has ended" });
      await dispatch(messageOf("order:1"));
      expect((await attempt()).secrets).toEqual([secretOf(3)]);
    });

    it("is refused where too many sign, and taken where they end", async () => {
      const { id } = await addWebhook();
      for (let n = 2; n <= MAX_LIVE_SECRETS; n++) await store.rotateSecret(id, secretOf(n), HOUR_MS);
      const before = await found(id);
      expect(before.secrets.length).toBe(MAX_LIVE_SECRETS);
      const rotating = store.rotateSecret(id, secretOf(99), HOUR_MS);
      await expect(rotating).rejects.toThrow(TooManySecretsError);
      await expect(rotating).rejects.toMatchObject({ webhookId: id });
      expect(await found(id)).toEqual(before);
      expect(secretsOf((await store.rotateSecret(id, secretOf(99), 0))!)).toEqual([secretOf(99)]);
    });

    it("and another at the same time both sign", async () => {
      const { id } = await addWebhook();
      const other = await conforming.open();
      await Promise.all(
        [store, other, store, other].map((one, i) => one.rotateSecret(id, secretOf(i + 2), HOUR_MS)),
      );
      const { secrets } = await found(id);
      expect(secrets.map(({ secret }) => secret).sort()).toEqual([1, 2, 3, 4, 5].map(secretOf).sort());
      expect(secrets.filter(({ expiresAt }) => expiresAt === null).length).toBe(1);
    });
  });

  describe("a webhook that is deactivated", () => {
    it("says why and since when, gets nothing new, and keeps what is pending", async () => {
      const { id } = await addWebhook();
      const [made] = await dispatch(messageOf("order:1"));
      const off = (await store.deactivateWebhook(id, "Paused."))!;
      expect(off).toMatchObject({ active: false, disabledReason: "Paused.", disabledAt: expect.any(Date) });
      expect(await found(id)).toEqual(off);
      expect(await claim()).toEqual([]);
      expect(await dispatch(messageOf("order:2"))).toEqual([]);
      expect(await store.findDelivery(made!.id)).toMatchObject({ state: "pending" });
      await store.activateWebhook(id, "skip");
      expect(await claim()).toMatchObject([{ id: made!.id }]);
    });

    it("keeps the reason that it had first, and nobody has to be told", async () => {
      const gone = await addGoneWebhook();
      expect(await store.deactivateWebhook(gone.id, "Paused.")).toEqual(gone);
      const { id } = await addWebhook();
      await store.deactivateWebhook(id, "Paused.");
      expect((await store.listUntold()).map((untold) => untold.id)).toEqual([gone.id]);
    });
  });

  describe("a webhook that is activated", () => {
    /** A webhook that was off while this many messages were made: they occurred while it was. */
    async function missing(count: number, overrides: Partial<NewWebhook> = {}): Promise<Webhook> {
      const { id } = await addWebhook(overrides);
      await offerAll();
      const { disabledAt } = (await store.deactivateWebhook(id, "Paused."))!;
      const occurred = new Date(disabledAt!.getTime() + 2).toISOString();
      await conforming.emit(Array.from({ length: count }, (_, i) => emitted(i, { occurredAt: occurred })));
      await offerAll();
      await waitUntil(() => Date.now() > disabledAt!.getTime() + 10, { what: "that time has passed" });
      return found(id);
    }

    it("skips what it missed, unless told otherwise, and says how much that was", async () => {
      const { id, deliverFrom } = await missing(5);
      const { webhook, missed } = (await store.activateWebhook(id, "skip"))!;
      expect(missed).toBe(5);
      expect(webhook).toMatchObject({
        active: true,
        disabledReason: null,
        disabledAt: null,
        failingSince: null,
      });
      expect(webhook.deliverFrom.getTime()).toBeGreaterThan(deliverFrom.getTime());
      expect(await found(id)).toEqual(webhook);
      await offerAll();
      expect(await claim()).toEqual([]);
      expect((await dispatch(messageOf("order:1"))).length).toBe(1);
    });

    it("gets what it missed where it asks for it, each once", async () => {
      const { id, deliverFrom } = await missing(5, { types: ["order.paid"], filter: { n: 3 } });
      const { webhook, missed } = (await store.activateWebhook(id, "deliver"))!;
      expect(missed).toBe(1);
      expect(webhook.deliverFrom).toEqual(deliverFrom);
      await offerAll();
      await offerAll();
      expect((await attempt()).eventId).toBe(emitted(3).eventId);
      expect(await claim()).toEqual([]);
    });

    it("and is already changes nothing", async () => {
      const before = await addWebhook();
      for (const missed of ["skip", "deliver"] as const) {
        expect(await store.activateWebhook(before.id, missed)).toEqual({ webhook: before, missed: 0 });
      }
    });

    it("gets what had its delivery before no second time", async () => {
      const { id } = await addWebhook();
      await conforming.emit([emitted(1)]);
      await offerAll();
      expect((await attemptWith(DELIVERED)).state).toBe("success");
      await store.deactivateWebhook(id, "Paused.");
      await store.activateWebhook(id, "deliver");
      await offerAll();
      expect(await claim()).toEqual([]);
      expect((await conforming.deliveries()).length).toBe(1);
    });

    it("has what failed long ago forgiven", async () => {
      const gone = await addGoneWebhook();
      expect(gone.failingSince).not.toBe(null);
      expect((await store.activateWebhook(gone.id, "skip"))!.webhook).toMatchObject({ failingSince: null });
      expect(await store.listUntold()).toEqual([]);
    });
  });

  describe("a webhook that is deleted", () => {
    it("is neither found nor listed nor changed, and its id makes no other", async () => {
      const { id } = await addWebhook();
      const other = await addWebhook();
      expect(await store.deleteWebhook(id)).toBe(true);
      expect(await store.deleteWebhook(id)).toBe(false);
      expect(await store.findWebhook(id)).toBe(undefined);
      expect(await store.listWebhooks({ limit: 10 })).toEqual([other]);
      expect(await store.updateWebhook(id, { description: "a" })).toBe(undefined);
      expect(await store.rotateSecret(id, secretOf(2), 0)).toBe(undefined);
      expect(await store.activateWebhook(id, "deliver")).toBe(undefined);
      expect(await store.deactivateWebhook(id, "")).toBe(undefined);
      expect(await store.addWebhook(webhookOf(id))).toMatchObject({
        active: false,
        disabledReason: "The webhook was deleted.",
        secrets: [],
        headers: {},
      });
      expect(await store.findWebhook(id)).toBe(undefined);
    });

    it("gets nothing made for it by anything, and existing pairs are still returned", async () => {
      const { id } = await addWebhook();
      const [made] = await dispatch(messageOf("order:1"));
      await store.deleteWebhook(id);
      await conforming.emit([emitted(1)]);
      await offerAll();
      expect((await store.dispatch(messageOf("order:1"), {})).existing).toMatchObject([{ id: made!.id }]);
      expect(await dispatch(messageOf("order:2"))).toEqual([]);
      expect(await dispatch(messageOf("test:1"), id)).toEqual([]);
      expect(await store.replay(id, { from: new Date(0), to: new Date(9e12), limit: 10 })).toBe(undefined);
      expect((await conforming.deliveries()).length).toBe(1);
      expect(await claim()).toEqual([]);
    });

    const failed = (id: DeliveryId) => ({
      id,
      state: "failed",
      lastError: "The webhook was deleted.",
      nextAt: null,
      blockedBy: null,
      finishedAt: expect.any(Date),
    });

    it("has what was pending failed with that reason, a part at a time", async () => {
      const { id } = await addWebhook();
      const other = await addWebhook();
      for (let i = 0; i < 5; i++) await dispatch(messageOf(`order:${i}`));
      expect(await store.endDeleted(10)).toBe(0);
      await store.deleteWebhook(id);
      expect([await store.endDeleted(3), await store.endDeleted(3), await store.endDeleted(3)]).toEqual([
        3, 2, 0,
      ]);
      for (const delivery of await store.listDeliveries(id, {}, { limit: 10 })) {
        expect(delivery).toMatchObject(failed(delivery.id));
      }
      expect((await claim()).map(({ webhookId }) => webhookId)).toEqual(Array(5).fill(other.id));
    });

    it("has claims without an attempt failed, which can then record none", async () => {
      const { id, webhookId } = await deliver();
      const [held] = await claim();
      await store.deleteWebhook(webhookId);
      expect(await store.endDeleted(10)).toBe(1);
      expect(await store.recordAttempts(held!.fence, [id], LEASE_MS)).toEqual([]);
      await store.release(held!.fence, [id]);
      expect(await store.findDelivery(id)).toMatchObject(failed(id));
      await store.activateWebhook(webhookId, "skip");
      expect(await claim()).toEqual([]);
    });

    it("has an attempt that is under way recorded, and never sent again", async () => {
      const { id, webhookId } = await deliver();
      const recorded = await attempt();
      await store.deleteWebhook(webhookId);
      expect(await store.endDeleted(10)).toBe(0);
      expect(await store.finish(recorded.fence, [ended(recorded, UNAVAILABLE)])).toEqual({
        recorded: [{ id, state: "pending" }],
        stale: [],
      });
      expect(await store.endDeleted(10)).toBe(1);
      expect(await store.findDelivery(id)).toMatchObject({ ...failed(id), attempts: 1 });
    });

    it("has an attempt whose worker died failed once its lease has ended, and the worker's outcome is stale", async () => {
      const { id, webhookId } = await deliver();
      const recorded = await attempt();
      await store.deleteWebhook(webhookId);
      await conforming.makeDue(id);
      expect(await store.endDeleted(10)).toBe(1);
      expect(await store.findDelivery(id)).toMatchObject({ ...failed(id), attempts: 1 });
      expect((await store.finish(recorded.fence, [ended(recorded, DELIVERED)])).stale).toEqual([id]);
      expect(await store.findDelivery(id)).toMatchObject(failed(id));
      expect(await conforming.attempts(id)).toMatchObject([{ number: 1, lateOutcome: "delivered 200" }]);
    });

    it("leaves what had ended as it was", async () => {
      const { webhookId } = await deliver();
      const before = await attemptWith(DELIVERED);
      await store.deleteWebhook(webhookId);
      expect(await store.endDeleted(10)).toBe(0);
      expect(await store.findDelivery(before.id)).toEqual(before);
    });
  });
}
