// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// How deliveries stand, as every store must tell it. That counts hold whatever comes is checked against the model.
import { expect, it } from "vitest";
import type { DeliveryStore } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { type CreateStore, messageOf } from "./conformingStore.ts";
import { DELIVERED, HOUR_MS, REFUSED, UNAVAILABLE, UNKNOWN, useStore } from "./deliverySteps.ts";

const NONE = { pending: 0, sending: 0, success: 0, failed: 0, in_doubt: 0 };

/** Defines the tests. */
export function countsConformance(create: CreateStore): void {
  const steps = useStore(create);
  const { addWebhook, dispatch, claim, attempt, attemptWith, addGoneWebhook } = steps;

  const waitingFor = async (store: DeliveryStore, ...ids: readonly WebhookId[]) => {
    const waiting = await store.countWaiting(ids);
    return ids.map((id) => waiting.get(id) ?? 0);
  };

  it("counts deliveries by state, from the first on to the last that is pruned", async () => {
    const { store } = steps;
    expect(await store.countDeliveries()).toEqual(NONE);
    const holding = await addWebhook({ onUnknown: "hold" });
    await dispatch(messageOf("order:0"));
    const unknown = await attemptWith(UNKNOWN);
    const { id } = await addWebhook();
    for (const [n, result] of [DELIVERED, REFUSED, UNAVAILABLE].entries()) {
      await dispatch(messageOf(`order:${n + 1}`), id);
      await attemptWith(result);
    }
    await dispatch(messageOf("order:sending"), holding.id);
    await attempt();
    await dispatch(messageOf("order:pending"), id);
    await dispatch(messageOf("order:pending"), id);
    const counts = { pending: 2, sending: 1, success: 1, failed: 1, in_doubt: 1 };
    expect(await store.countDeliveries()).toEqual(counts);

    await store.resolve(unknown.id, "delivered");
    expect(await store.countDeliveries()).toEqual({ ...counts, success: 2, in_doubt: 0 });
    await store.redeliver(unknown.id);
    expect(await store.countDeliveries()).toEqual({ ...counts, pending: 3, in_doubt: 0 });
    for (let done = false; !done; ) {
      ({ done } = await store.prune({ before: new Date(Date.now() + HOUR_MS), limit: 10 }));
    }
    expect(await store.countDeliveries()).toEqual({ ...NONE, pending: 3, sending: 1 });
  });

  it("counts what is not at its end for each webhook: due, claimed, to be tried again or asked about", async () => {
    const { store } = steps;
    const asking = await addWebhook({ onUnknown: "ask" });
    const other = await addWebhook();
    const nobody = "wh_nobody" as WebhookId;
    expect(await waitingFor(store, asking.id, other.id, nobody)).toEqual([0, 0, 0]);
    await dispatch(messageOf("order:1"), asking.id);
    expect((await attemptWith(UNKNOWN)).state).toBe("in_doubt");
    await claim(); // to be asked about
    await dispatch(messageOf("order:2"), asking.id);
    await attemptWith(UNAVAILABLE);
    await dispatch(messageOf("order:3"), other.id);
    await attemptWith(DELIVERED);
    await dispatch(messageOf("order:4"), other.id);
    await attemptWith(REFUSED);
    await dispatch(messageOf("order:5"), asking.id);
    await attempt();
    await dispatch(messageOf("order:6"), asking.id);
    expect(await waitingFor(store, asking.id, other.id, nobody)).toEqual([4, 0, 0]);
  });

  it("knows how long the oldest has been due, of webhooks that no order and no pause holds back", async () => {
    const { store, conforming } = steps;
    const lag = async () => (await store.readHealth()).dueLagSeconds;
    expect(await lag()).toBe(0);
    const active = await addWebhook();
    const [later] = await dispatch(messageOf("order:1"), active.id);
    await attemptWith(UNAVAILABLE); // it is tried again in an hour
    const strict = await addWebhook({ ordering: "strict" });
    await dispatch(messageOf("order:2"), strict.id);
    const paused = await addWebhook();
    await dispatch(messageOf("order:3"), paused.id);
    await store.deactivateWebhook(paused.id, "Paused.");
    expect(await lag()).toBe(0);
    await conforming.makeDue(later!.id);
    await dispatch(messageOf("order:4"), active.id);
    const first = await lag();
    await expect.poll(lag, { timeout: 20_000 }).toBeGreaterThan(first + 0.05);
    await claim();
    expect(await lag()).toBe(0);
  });

  it("counts what waits for a person, and webhooks that are not active and not deleted", async () => {
    const { store } = steps;
    const healthOf = async () => {
      const { inDoubt, disabledWebhooks } = await store.readHealth();
      return { inDoubt, disabledWebhooks };
    };
    expect(await healthOf()).toEqual({ inDoubt: 0, disabledWebhooks: 0 });
    const holding = await addWebhook({ onUnknown: "hold" });
    await dispatch(messageOf("order:1"), holding.id);
    const held = await attemptWith(UNKNOWN);
    const asking = await addWebhook({ onUnknown: "ask" });
    await dispatch(messageOf("order:2"), asking.id);
    await attemptWith(UNKNOWN);
    await claim(); // its endpoint is asked: that needs nobody
    expect(await healthOf()).toEqual({ inDoubt: 1, disabledWebhooks: 0 });

    await addGoneWebhook();
    await store.deactivateWebhook(asking.id, "Paused.");
    await store.deactivateWebhook(asking.id, "Paused twice.");
    expect(await healthOf()).toEqual({ inDoubt: 1, disabledWebhooks: 2 });
    await store.activateWebhook(asking.id, "skip");
    await store.activateWebhook(asking.id, "skip");
    expect(await healthOf()).toEqual({ inDoubt: 1, disabledWebhooks: 1 });
    await store.deactivateWebhook(asking.id, "Paused.");
    await store.deleteWebhook(asking.id);
    const active = await addWebhook();
    await store.deleteWebhook(active.id);
    await store.deleteWebhook(active.id);
    expect(await healthOf()).toEqual({ inDoubt: 1, disabledWebhooks: 1 });
    await store.resolve(held.id, "skip");
    expect(await healthOf()).toEqual({ inDoubt: 0, disabledWebhooks: 1 });
  });
}
