// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What the tests of the deliver stage do again and again, over any store.
import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterEach, beforeEach } from "vitest";
import { createDeliverer, type Deliverer, type DeliverOptions } from "../../deliver/deliverLoop.ts";
import { createLog } from "../../observe/log.ts";
import {
  type ConformingStore,
  type CreateStore,
  messageOf,
} from "../../store/conformance/conformingStore.ts";
import { webhookOf } from "../../store/conformance/deliverySteps.ts";
import type { Delivery, DeliveryId, DeliveryStore } from "../../store/deliveryStore.ts";
import type { NewWebhook, Webhook, WebhookId } from "../../store/webhook.ts";
import { waitUntil } from "./waitUntil.ts";

export interface DelivererSteps {
  readonly conforming: ConformingStore;
  readonly store: DeliveryStore;
  /** Runs this after the test, the last one first. */
  onClose(close: () => Promise<unknown>): void;
  openEndpoint(answer?: Parameters<Endpoint["answerWith"]>[0]): Promise<Endpoint>;
  addWebhook(url: string, overrides?: Partial<NewWebhook>): Promise<Webhook>;
  /** Dispatches so many messages, under ids of their own unless one is given. Returns the deliveries made. */
  dispatch(count?: number, eventId?: string, only?: WebhookId): Promise<readonly Delivery[]>;
  /** Delivers until the end of the test. */
  start(options?: Partial<DeliverOptions>): Deliverer;
  /** One that is not started. */
  open(options?: Partial<DeliverOptions>): Deliverer;
  /** Waits until so many deliveries have these states, and none another. */
  waitForStates(expected: Readonly<Record<string, number>>): Promise<void>;
  /** `success after 2` attempts. */
  stateOf(id: DeliveryId): Promise<string>;
  /** Of each attempt of each delivery: its number, its outcome, its status if it has one, and what came too late. */
  outcomes(): Promise<readonly (readonly unknown[])[]>;
}

/** A store for each test, whose retries come after 20 ms, and steps on it. */
export function useDeliverers(create: CreateStore): DelivererSteps {
  const closing: (() => Promise<unknown>)[] = [];
  let conforming: ConformingStore;
  let webhooks = 0;
  let events = 0;
  beforeEach(async () => {
    conforming = await create({ retryScheduleMs: [20, 20] });
  });
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });

  const steps: DelivererSteps = {
    get conforming() {
      return conforming;
    },
    get store() {
      return conforming.store;
    },
    onClose: (close) => closing.push(close),
    async openEndpoint(answer) {
      const endpoint = await startEndpoint(answer ? { answer } : {});
      closing.push(endpoint.close);
      return endpoint;
    },
    addWebhook(url, overrides = {}) {
      const id = `wh_${String(++webhooks).padStart(4, "0")}`;
      return steps.store.addWebhook(webhookOf(id, { url, ...overrides }));
    },
    async dispatch(count = 1, eventId, only) {
      const made: Delivery[] = [];
      for (let i = 0; i < count; i++) {
        const message = messageOf(eventId ?? `event:${++events}`);
        made.push(...(await steps.store.dispatch(message, only ? { only } : {})).created);
      }
      return made;
    },
    open(options = {}) {
      const deliverer = createDeliverer({
        store: steps.store,
        log: createLog("silent"),
        pollMs: 20,
        allowInsecure: true,
        ...options,
      });
      let stopping: Promise<void> | undefined;
      const stop = (): Promise<void> => {
        stopping ??= deliverer.stop();
        return stopping;
      };
      closing.push(stop);
      return { ...deliverer, stop };
    },
    start(options = {}) {
      const deliverer = steps.open(options);
      deliverer.start();
      return deliverer;
    },
    async waitForStates(expected) {
      const wanted = JSON.stringify(Object.entries(expected).sort());
      const counted = async (): Promise<string> => {
        const counts = new Map<string, number>();
        for (const { state } of await conforming.deliveries())
          counts.set(state, (counts.get(state) ?? 0) + 1);
        return JSON.stringify([...counts].sort());
      };
      await waitUntil(async () => (await counted()) === wanted, {
        what: `the deliveries are ${wanted}`,
        timeoutMs: 30_000,
      });
    },
    async stateOf(id) {
      const delivery = await steps.store.findDelivery(id);
      return `${delivery?.state} after ${delivery?.attempts}`;
    },
    async outcomes() {
      const all: unknown[][] = [];
      for (const { id } of await conforming.deliveries()) {
        for (const { number, outcome, status, lateOutcome } of await conforming.attempts(id))
          all.push([number, outcome, status, lateOutcome].filter((value) => value !== null));
      }
      return all;
    },
  };
  return steps;
}

export const idsOf = (endpoint: Endpoint): readonly string[] =>
  endpoint.requests.map(({ headers }) => headers["webhook-id"] ?? "");
