// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// What the tests of a store do again and again.
import { beforeEach, expect } from "vitest";
import type { Message } from "../../message/payload.ts";
import { decideOutcome } from "../decideDelivery.ts";
import type {
  AttemptOutcome,
  AttemptResult,
  ClaimedDelivery,
  ClaimOptions,
  Delivery,
  DeliveryId,
  DeliveryStore,
  FinishedAttempt,
  RecordedAttempt,
} from "../deliveryStore.ts";
import type { NewWebhook, Webhook, WebhookId } from "../webhook.ts";
import { type ConformingStore, type CreateStore, messageOf } from "./conformingStore.ts";

export const LEASE_MS = 3_600_000;
export const HOUR_MS = 3_600_000;
export const EVERYTHING: ClaimOptions = {
  limit: 1_000,
  perOrigin: 1_000,
  skipOrigins: [],
  leaseMs: LEASE_MS,
};
/** Retries that a test does not wait for, but makes due. */
export const RETRY_SCHEDULE_MS = [HOUR_MS, HOUR_MS];

export const secretOf = (n: number): string => `whsec_${Buffer.alloc(32, n).toString("base64")}`;
export const resultOf = (outcome: AttemptOutcome, status: number | null = null): AttemptResult => ({
  outcome,
  status,
  error: outcome === "delivered" ? null : "an error",
  response: status === null ? null : "a body",
  retryAfterMs: null,
});
export const DELIVERED = resultOf("delivered", 200);
export const UNAVAILABLE = resultOf("rejected", 503);
export const REFUSED = resultOf("rejected", 400);
export const GONE = resultOf("rejected", 410);
export const UNKNOWN = resultOf("unknown");

/** A webhook that takes everything, with nothing set. */
export function webhookOf(id: string, overrides: Partial<NewWebhook> = {}): NewWebhook {
  return {
    id: id as WebhookId,
    url: `https://${id.replace(/^wh_/, "customer-")}.example/hook`,
    types: ["*"],
    filter: null,
    secrets: [secretOf(1)],
    headers: {},
    description: "",
    onUnknown: "resend",
    retryOn: "default",
    retryScheduleMs: null,
    jitter: 0.5,
    ordering: "none",
    ratePerSecond: null,
    maxInFlight: null,
    disableAfterMs: null,
    ...overrides,
  };
}

/** An attempt that ended so, with what the deliver stage decides then. */
export function ended(
  { id, tries, policy }: Pick<RecordedAttempt, "id" | "tries" | "policy">,
  result: AttemptResult,
): FinishedAttempt {
  return { id, result, next: decideOutcome(result, tries, policy, 0.5) };
}

export interface DeliverySteps {
  readonly conforming: ConformingStore;
  readonly store: DeliveryStore;
  addWebhook(overrides?: Partial<NewWebhook>): Promise<Webhook>;
  /** The deliveries that it makes now. */
  dispatch(message: Message, only?: WebhookId): Promise<readonly Delivery[]>;
  claim(options?: Partial<ClaimOptions>): Promise<readonly ClaimedDelivery[]>;
  /** Claims the only delivery that is due and puts an attempt of it on record. */
  attempt(): Promise<RecordedAttempt>;
  /** The only delivery that is due goes through one attempt with this result. */
  attemptWith(result: AttemptResult): Promise<Delivery>;
  /** Makes one delivery to a new webhook. */
  deliver(overrides?: Partial<NewWebhook>): Promise<Delivery>;
  /** A webhook whose endpoint is gone: no longer active. */
  addGoneWebhook(): Promise<Webhook>;
  outcomesOf(id: DeliveryId): Promise<readonly unknown[]>;
}

/** A new store for each test of a suite, and steps on it. */
export function useStore(create: CreateStore): DeliverySteps {
  let conforming: ConformingStore;
  let webhooks = 0;
  beforeEach(async () => {
    conforming = await create({ retryScheduleMs: RETRY_SCHEDULE_MS });
    webhooks = 0;
  });

  const steps: DeliverySteps = {
    get conforming() {
      return conforming;
    },
    get store() {
      return conforming.store;
    },
    addWebhook(overrides = {}) {
      webhooks++;
      return steps.store.addWebhook(webhookOf(`wh_${String(webhooks).padStart(4, "0")}`, overrides));
    },
    async dispatch(message, only) {
      return (await steps.store.dispatch(message, only ? { only } : {})).created;
    },
    claim: (options = {}) => steps.store.claim({ ...EVERYTHING, ...options }),
    async attempt() {
      const claims = await steps.claim();
      expect(claims.length).toBe(1);
      const [recorded] = await steps.store.recordAttempts(claims[0]!.fence, [claims[0]!.id], LEASE_MS);
      return recorded!;
    },
    async attemptWith(result) {
      const recorded = await steps.attempt();
      const report = await steps.store.finish(recorded.fence, [ended(recorded, result)]);
      expect(report.stale).toEqual([]);
      return (await steps.store.findDelivery(recorded.id))!;
    },
    async deliver(overrides = {}) {
      const webhook = await steps.addWebhook(overrides);
      const [made] = await steps.dispatch(messageOf("order:1"), webhook.id);
      return made!;
    },
    async addGoneWebhook() {
      const webhook = await steps.addWebhook();
      await steps.dispatch(messageOf(`gone:${webhook.id}`), webhook.id);
      await steps.attemptWith(GONE);
      return (await steps.store.findWebhook(webhook.id))!;
    },
    async outcomesOf(id) {
      const attempts = await conforming.attempts(id);
      return attempts.map(({ number, outcome, status }) => [number, outcome, status]);
    },
  };
  return steps;
}
