// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// A store against a model of it: statements in any order, most of them twice, under fences old and new.
import type { EventId } from "@fencepost/token";
import fc from "fast-check";
import { expect } from "vitest";
import type { Message } from "../../message/payload.ts";
import { decideOutcome } from "../decideDelivery.ts";
import type {
  AttemptResult,
  ClaimedDelivery,
  DeliveryId,
  DeliveryState,
  DeliveryStore,
  NextStep,
  Resolution,
} from "../deliveryStore.ts";
import type { NewWebhook, WebhookId } from "../webhook.ts";
import { type ConformingStore, type CreateStore, emittedMessage, messageOf } from "./conformingStore.ts";
import { HOUR_MS, LEASE_MS, RETRY_SCHEDULE_MS, webhookOf } from "./deliverySteps.ts";

/** `FENCEPOST_SEQUENCES=1000` for a long attack; the suite runs a few. */
export const SEQUENCES = Number(process.env["FENCEPOST_SEQUENCES"] ?? 10);

const WEBHOOKS: readonly NewWebhook[] = [
  webhookOf("wh_a"),
  webhookOf("wh_b", { onUnknown: "hold" }),
  webhookOf("wh_c", { onUnknown: "ask" }),
  webhookOf("wh_d", { ordering: "strict" }),
];
const STRICT = "wh_d" as WebhookId;
const DISPATCHED = ["order:1", "order:2"].map((id) => messageOf(id));
const EMITTED = [1, 2, 3, 4, 5, 6].map((n) => emittedMessage(n));

const RESULTS: readonly (readonly [AttemptResult["outcome"], number | null])[] = [
  ["delivered", 200],
  ["rejected", 400],
  ["rejected", 503],
  ["not_sent", null],
  ["unknown", null],
];
const ANSWERS: readonly NextStep[] = [
  { state: "success" },
  { state: "pending", delayMs: 0 },
  { state: "in_doubt", askInMs: HOUR_MS },
  { state: "in_doubt", askInMs: null },
  { state: "failed", disableWebhook: false },
];
const RESOLUTIONS: readonly Resolution[] = ["delivered", "resend", "skip"];

interface ModelDelivery {
  readonly webhook: NewWebhook;
  readonly eventId: EventId;
  state: DeliveryState;
  attempts: number;
  tries: number;
  /** Of the claim that holds it. */
  fence: bigint | null;
  attempted: boolean;
  asking: boolean;
  due: boolean;
  /** Under strict order: those behind it wait. */
  blocks: boolean;
}

interface Model {
  readonly deliveries: Map<DeliveryId, ModelDelivery>;
  /** Messages on record, in the order in which they were made. */
  readonly messages: Set<EventId>;
  /** Pairs, as `event id webhook id`, whose delivery must be there unless it was pruned. */
  readonly complete: Set<string>;
  /** Pairs whose delivery is gone, and must not come back. */
  readonly pruned: Set<string>;
  /** Pairs that were never made, but may look to the store as if they had been pruned. */
  readonly uncertain: Set<string>;
  readonly paused: Set<WebhookId>;
  /** Webhooks that were paused, and have not caught up since. */
  readonly behind: Set<WebhookId>;
  /** Nothing waits for a fan-out: what a strict webhook gets next is known. */
  offered: boolean;
  /** Every claim ever made: workers do not know that theirs is lost. */
  readonly claims: { readonly id: DeliveryId; readonly fence: bigint }[];
}

type Command = fc.AsyncCommand<Model, ConformingStore>;

/** Runs sequences of commands against new stores. Throws with the seed and the shortest failing sequence. */
export async function checkAgainstModel(create: CreateStore): Promise<void> {
  const index = fc.nat({ max: 30 });
  const finishing = fc
    .tuple(index, fc.constantFrom(...RESULTS))
    .map(([i, [outcome, status]]) => finish(i, outcome, status));
  const commands = fc.commands(
    [
      fc.constantFrom(...DISPATCHED).map(dispatch),
      fc.constantFrom(...EMITTED).map(emit),
      fc.constant(fanOut()),
      fc.constant(drainOutbox()),
      fc.constant(drainOutbox()),
      fc.integer({ min: 1, max: 9 }).map((limit) => claim(limit, "by one")),
      fc.integer({ min: 1, max: 9 }).map((limit) => claim(limit, "by another")),
      index.map((i) => record(i)),
      index.map((i) => record(i)),
      finishing,
      finishing,
      fc.tuple(index, fc.constantFrom(...ANSWERS)).map(([i, next]) => settle(i, next)),
      index.map(release),
      index.map(makeDue),
      index.map(makeDue),
      index.map(redeliver),
      fc.tuple(index, fc.constantFrom(...RESOLUTIONS)).map(([i, resolution]) => resolve(i, resolution)),
      fc.constant(prune()),
      fc.constantFrom(...WEBHOOKS).map(pause),
      index.map(activate),
      fc.constantFrom(...WEBHOOKS).map(replay),
    ],
    { maxCommands: 60, size: "max" },
  );
  const property = fc.asyncProperty(commands, async (sequence) => {
    const real = await create({ retryScheduleMs: RETRY_SCHEDULE_MS });
    for (const webhook of WEBHOOKS) await real.store.addWebhook(webhook);
    await real.store.catchUp(1);
    const model: Model = {
      deliveries: new Map(),
      messages: new Set(),
      complete: new Set(),
      pruned: new Set(),
      uncertain: new Set(),
      paused: new Set(),
      behind: new Set(),
      offered: true,
      claims: [],
    };
    await fc.asyncModelRun(() => ({ model, real }), sequence);
    await checkAttempts(model, real);
  });
  await fc.assert(property, { numRuns: SEQUENCES, endOnFailure: true });
}

/** A command that is followed by a comparison of every row. */
function command(
  name: string,
  run: (model: Model, store: DeliveryStore, real: ConformingStore) => Promise<void>,
  check: (model: Model) => boolean = () => true,
): Command {
  return {
    check: (model) => check(model),
    async run(model, real) {
      await run(model, real.store, real);
      await checkRows(model, real);
    },
    toString: () => name,
  };
}

const pairOf = (eventId: EventId, webhookId: WebhookId): string => `${eventId} ${webhookId}`;

function dispatch(message: Message): Command {
  return command(`dispatch ${message.eventId}, twice`, async (model, store) => {
    const { eventId } = message;
    model.messages.add(eventId);
    const first = await store.dispatch(message, {});
    const there = [...first.created, ...first.existing].map(({ webhookId }) => webhookId).sort();
    const told = [...there, ...first.forgotten].sort();
    const has = (id: WebhookId): boolean =>
      [...model.deliveries.values()].some((one) => one.eventId === eventId && one.webhook.id === id);
    expect(told).toEqual(WEBHOOKS.map(({ id }) => id).filter((id) => has(id) || !model.paused.has(id)));
    expectForgotten(
      model,
      told.map((id) => pairOf(eventId, id)),
      first.forgotten.map((id) => pairOf(eventId, id)),
    );
    const second = await store.dispatch(message, {});
    expect(second).toMatchObject({ created: [], forgotten: first.forgotten });
    expect(second.existing.map(({ webhookId }) => webhookId).sort()).toEqual(there);
  });
}

/** Of pairs that were offered, those that the store passed over are the pruned ones; all others must be there now. */
function expectForgotten(model: Model, offered: readonly string[], forgotten: readonly string[]): void {
  for (const pair of offered) {
    const isForgotten = forgotten.includes(pair);
    if (!model.uncertain.has(pair))
      expect({ pair, isForgotten }).toEqual({ pair, isForgotten: model.pruned.has(pair) });
    if (!isForgotten) model.complete.add(pair);
  }
}

function emit(message: Message): Command {
  return command(`emit ${message.eventId}, twice`, async (model, _store, real) => {
    if (!model.messages.has(message.eventId)) model.offered = false;
    model.messages.add(message.eventId);
    await real.emit([message]);
    await real.emit([message]);
  });
}

function fanOut(): Command {
  return command("fan out a little", async (_model, store) => {
    await store.fanOut({ messages: 1, webhooks: 1 });
  });
}

function drainOutbox(): Command {
  return command("fan out to the end, and catch up", async (model, store) => {
    await toTheEnd("fan-out", async () => (await store.fanOut({ messages: 2, webhooks: 1 })).messages === 0);
    await toTheEnd("catch-up", async () => (await store.catchUp(2)).messages === 0);
    model.offered = true;
    for (const { eventId } of EMITTED) {
      if (!model.messages.has(eventId)) continue;
      for (const { id } of WEBHOOKS) {
        const pair = pairOf(eventId, id);
        if (!model.paused.has(id) && !model.uncertain.has(pair)) model.complete.add(pair);
      }
    }
    for (const id of model.behind) if (!model.paused.has(id)) model.behind.delete(id);
  });
}

/** Work on so few rows ends after few steps, or never. */
async function toTheEnd(name: string, step: () => Promise<boolean>): Promise<void> {
  for (let steps = 0; steps < 100; steps++) if (await step()) return;
  throw new Error(`The ${name} has not ended after 100 steps.`);
}

/** The delivery of the strict webhook that may be sent, if it is not behind something that waits for its fan-out. */
function headOf(model: Model): ModelDelivery | undefined {
  const blocking = [...model.deliveries.values()].filter(({ blocks }) => blocks);
  const order = [...model.messages];
  return blocking.sort((a, b) => order.indexOf(a.eventId) - order.indexOf(b.eventId))[0];
}

function claim(limit: number, who: "by one" | "by another"): Command {
  return command(`claim ${limit} ${who}`, async (model, one, real) => {
    const store = who === "by one" ? one : await real.open();
    const claims = await store.claim({ limit, perOrigin: 100, skipOrigins: [], leaseMs: LEASE_MS });
    const active = [...model.deliveries.values()].filter(({ webhook }) => !model.paused.has(webhook.id));
    const free = active.filter(({ due, webhook }) => due && webhook.id !== STRICT).length;
    // One behind it that is under way is waited for: it was the first when it was claimed.
    const isBusy = active.some(({ webhook, fence, due }) => webhook.id === STRICT && fence !== null && !due);
    const head = isBusy || model.paused.has(STRICT) ? undefined : headOf(model);
    const strict = head?.due ? 1 : 0;
    expect(claims.length).toBeLessThanOrEqual(Math.min(limit, free + strict));
    expect(claims.length).toBeGreaterThanOrEqual(Math.min(limit, free + (model.offered ? strict : 0)));
    for (const claimed of claims) expectClaimed(model, claimed, head);
  });
}

function expectClaimed(
  model: Model,
  { id, fence, interrupted, asking }: ClaimedDelivery,
  head: ModelDelivery | undefined,
): void {
  const delivery = model.deliveries.get(id)!;
  expect({ id, due: delivery.due, interrupted, asking }).toEqual({
    id,
    due: true,
    interrupted: delivery.attempted,
    asking: delivery.asking,
  });
  if (delivery.webhook.id === STRICT) expect(delivery).toBe(head);
  expect(model.claims.some((earlier) => earlier.id === id && earlier.fence === fence)).toBe(false);
  Object.assign(delivery, { fence, due: false });
  model.claims.push({ id, fence });
}

/** What is tried under one of the claims that were ever made, the latest ones first. */
function workerCommand(
  name: string,
  i: number,
  run: (worker: {
    readonly id: DeliveryId;
    readonly fence: bigint;
    /** Undefined: it was pruned. */
    readonly delivery: ModelDelivery | undefined;
    readonly store: DeliveryStore;
    readonly model: Model;
  }) => Promise<void>,
): Command {
  return command(
    `${name} by claim ${i}`,
    async (model, store) => {
      const { id, fence } = model.claims.at(-1 - (i % model.claims.length))!;
      await run({ id, fence, delivery: model.deliveries.get(id), store, model });
    },
    (model) => model.claims.length > 0,
  );
}

function record(i: number): Command {
  return workerCommand("record, twice,", i, async ({ id, fence, delivery, store, model }) => {
    const isHeld = delivery?.fence === fence && !delivery.attempted && !delivery.asking;
    const may = isHeld && !model.paused.has(delivery.webhook.id);
    const recorded = await store.recordAttempts(fence, [id], LEASE_MS);
    expect(recorded.map(({ number, tries }) => [number, tries])).toEqual(
      may ? [[delivery.attempts + 1, delivery.tries + 1]] : [],
    );
    expect(await store.recordAttempts(fence, [id], LEASE_MS)).toEqual([]);
    if (!may) return;
    Object.assign(delivery, { state: "sending", attempted: true, due: false });
    delivery.attempts++;
    delivery.tries++;
  });
}

/** What a step makes of a delivery that is claimed. */
function follow(delivery: ModelDelivery, next: NextStep): void {
  const { state } = next;
  const asked = state === "in_doubt" && next.askInMs !== null;
  const delay = state === "pending" ? next.delayMs : asked ? next.askInMs : null;
  Object.assign(delivery, { state, fence: null, attempted: false, asking: asked, due: delay === 0 });
  if (state === "success") delivery.blocks = false;
}

function finish(i: number, outcome: AttemptResult["outcome"], status: number | null): Command {
  const result: AttemptResult = { outcome, status, error: null, response: null, retryAfterMs: null };
  return workerCommand(`finish ${outcome} ${status}, twice,`, i, async ({ id, fence, delivery, store }) => {
    const may = delivery?.fence === fence && delivery.attempted;
    const { onUnknown, retryOn, jitter } = delivery?.webhook ?? WEBHOOKS[0]!;
    const policy = { onUnknown, retryOn, jitter, retryScheduleMs: RETRY_SCHEDULE_MS };
    const next = decideOutcome(result, delivery?.tries ?? 1, policy, 0);
    const stale = { recorded: [], stale: [id] };
    expect(await store.finish(fence, [{ id, result, next }])).toEqual(
      may ? { recorded: [{ id, state: next.state }], stale: [] } : stale,
    );
    expect(await store.finish(fence, [{ id, result, next }])).toEqual(stale);
    if (may) follow(delivery, next);
    else if (delivery?.fence === fence) Object.assign(delivery, { fence: null, due: true });
  });
}

function settle(i: number, next: NextStep): Command {
  return workerCommand(
    `settle ${JSON.stringify(next)}, twice,`,
    i,
    async ({ id, fence, delivery, store }) => {
      const may = delivery?.fence === fence && delivery.asking;
      const stale = { recorded: [], stale: [id] };
      expect(await store.settle(fence, [{ id, next, error: null }])).toEqual(
        may ? { recorded: [{ id, state: next.state }], stale: [] } : stale,
      );
      expect(await store.settle(fence, [{ id, next, error: null }])).toEqual(stale);
      if (may) follow(delivery, next);
    },
  );
}

function release(i: number): Command {
  return workerCommand("release, twice,", i, async ({ id, fence, delivery, store }) => {
    await store.release(fence, [id]);
    await store.release(fence, [id]);
    if (delivery?.fence === fence && !delivery.attempted) Object.assign(delivery, { fence: null, due: true });
  });
}

/** A command on the i-th delivery. */
function deliveryCommand(
  name: string,
  i: number,
  run: (id: DeliveryId, delivery: ModelDelivery, real: ConformingStore) => Promise<void>,
): Command {
  return command(
    `${name} delivery ${i}`,
    async (model, _store, real) => {
      const [id, delivery] = [...model.deliveries][i % model.deliveries.size]!;
      await run(id, delivery, real);
    },
    (model) => model.deliveries.size > 0,
  );
}

function makeDue(i: number): Command {
  return deliveryCommand("end the wait of", i, async (id, delivery, real) => {
    await real.makeDue(id);
    if (!hasEnded(delivery) || delivery.asking) delivery.due = true;
  });
}

/** Pending anew: whoever had a claim has lost it. */
function begin(delivery: ModelDelivery): void {
  const blocks = delivery.webhook.id === STRICT;
  Object.assign(delivery, { state: "pending", tries: 0, fence: null, asking: false, due: true, blocks });
}

function redeliver(i: number): Command {
  return deliveryCommand("redeliver, twice,", i, async (id, delivery, { store }) => {
    if (hasEnded(delivery)) begin(delivery);
    const again = await store.redeliver(id);
    expect(again).toMatchObject({ id, state: delivery.state });
    expect(await store.redeliver(id)).toEqual(again);
  });
}

function resolve(i: number, resolution: Resolution): Command {
  return deliveryCommand(`resolve as ${resolution}, twice,`, i, async (id, delivery, { store }) => {
    if (delivery.state === "failed" || delivery.state === "in_doubt") {
      if (resolution === "resend") begin(delivery);
      else {
        const state = resolution === "delivered" ? "success" : "failed";
        Object.assign(delivery, { state, fence: null, asking: false, due: false, blocks: false });
      }
    }
    expect(await store.resolve(id, resolution)).toMatchObject({ id, state: delivery.state });
    expect(await store.resolve(id, resolution)).toMatchObject({ id, state: delivery.state });
  });
}

function prune(): Command {
  return command("prune, twice", async (model, store) => {
    const before = new Date(Date.now() + HOUR_MS);
    // A message may be looked at before the last delivery that refers to it has gone.
    for (let round = 0; round < 2; round++) {
      await toTheEnd("pruning", async () => (await store.prune({ before, limit: 3 })).done);
    }
    for (const [id, { state, blocks, eventId, webhook }] of [...model.deliveries]) {
      if (blocks || (state !== "success" && state !== "failed")) continue;
      model.deliveries.delete(id);
      model.pruned.add(pairOf(eventId, webhook.id));
    }
    const dispatched = new Set(DISPATCHED.map(({ eventId }) => eventId));
    for (const eventId of model.messages) {
      const pairs = WEBHOOKS.map(({ id }) => [id, pairOf(eventId, id)] as const);
      if (dispatched.has(eventId) && ![...model.deliveries.values()].some((one) => one.eventId === eventId)) {
        model.messages.delete(eventId);
        for (const set of [model.complete, model.pruned, model.uncertain])
          for (const [, pair] of pairs) set.delete(pair);
      } else {
        for (const [id, pair] of pairs) {
          if (!model.complete.has(pair) && (dispatched.has(eventId) || model.behind.has(id)))
            model.uncertain.add(pair);
        }
      }
    }
  });
}

function pause({ id }: NewWebhook): Command {
  return command(`pause ${id}, twice`, async (model, store) => {
    model.paused.add(id);
    model.behind.add(id);
    const paused = await store.deactivateWebhook(id, "Paused.");
    expect(paused).toMatchObject({ active: false });
    expect(await store.deactivateWebhook(id, "Paused again.")).toEqual(paused);
  });
}

/** It gets what it missed when it has caught up. */
function activate(i: number): Command {
  return command(
    `activate the one paused ${i}, twice`,
    async (model, store) => {
      const id = [...model.paused][i % model.paused.size]!;
      model.paused.delete(id);
      model.offered = false;
      const activated = await store.activateWebhook(id, "deliver");
      expect(activated).toMatchObject({ webhook: { active: true } });
      expect(await store.activateWebhook(id, "deliver")).toEqual({ webhook: activated!.webhook, missed: 0 });
    },
    (model) => model.paused.size > 0,
  );
}

function replay({ id }: NewWebhook): Command {
  return command(`replay to ${id}, twice`, async (model, store) => {
    const forgotten: string[] = [];
    let told = 0;
    let after: string | null = "";
    for (let pages = 0; after !== null && pages < 100; pages++) {
      const page = { from: new Date(0), to: new Date(9e12), limit: 2, ...(after !== "" && { after }) };
      const report = await store.replay(id, page);
      if (model.paused.has(id)) {
        expect(report).toBe(undefined);
        return;
      }
      const passedOver = [...report!.forgotten, ...report!.bodiless];
      forgotten.push(...passedOver.map((eventId) => pairOf(eventId, id)));
      told += report!.created + report!.existing + passedOver.length;
      after = report!.next;
    }
    expect(after).toBe(null);
    expect(told).toBe(model.messages.size);
    expectForgotten(
      model,
      [...model.messages].map((eventId) => pairOf(eventId, id)),
      forgotten,
    );
  });
}

function hasEnded({ state }: ModelDelivery): boolean {
  return state === "success" || state === "failed" || state === "in_doubt";
}

/** One row a pair, each as the model has it. A row that a fan-out has just made is taken into the model. */
async function checkRows(model: Model, real: ConformingStore): Promise<void> {
  const rows = await real.deliveries();
  const pairs = rows.map(({ eventId, webhookId }) => pairOf(eventId, webhookId));
  expect(new Set(pairs).size).toBe(pairs.length);
  for (const pair of model.complete) {
    expect({ pair, isThere: pairs.includes(pair) }).toEqual({ pair, isThere: !model.pruned.has(pair) });
  }
  for (const { id, eventId, webhookId, state, attempts } of rows) {
    if (!model.deliveries.has(id)) {
      expect(model.messages).toContain(eventId);
      expect(model.pruned).not.toContain(pairOf(eventId, webhookId));
      expect(model.paused).not.toContain(webhookId);
      const webhook = WEBHOOKS.find((one) => one.id === webhookId)!;
      const fresh = {
        attempts: 0,
        tries: 0,
        fence: null,
        attempted: false,
        asking: false,
        due: true,
      } as const;
      model.deliveries.set(id, {
        webhook,
        eventId,
        state: "pending",
        blocks: webhookId === STRICT,
        ...fresh,
      });
    }
    const expected = model.deliveries.get(id)!;
    expect({ id, state, attempts }).toEqual({ id, state: expected.state, attempts: expected.attempts });
  }
  expect(rows.length).toBe(model.deliveries.size);

  const counts = { pending: 0, sending: 0, success: 0, failed: 0, in_doubt: 0 };
  let inDoubt = 0;
  const waiting = new Map(WEBHOOKS.map(({ id }) => [id, 0]));
  for (const { state, asking, webhook } of model.deliveries.values()) {
    counts[state]++;
    if (state === "in_doubt" && !asking) inDoubt++;
    if (state === "pending" || state === "sending" || asking)
      waiting.set(webhook.id, waiting.get(webhook.id)! + 1);
  }
  expect(await real.store.countDeliveries()).toEqual(counts);
  expect(await real.store.readHealth()).toMatchObject({ inDoubt, disabledWebhooks: model.paused.size });
  const counted = await real.store.countWaiting([...waiting.keys()]);
  for (const [id, count] of waiting) expect({ id, count: counted.get(id) ?? 0 }).toEqual({ id, count });
}

/** Attempts are numbered without a hole, each later than the one before, and only the last may be under way. */
async function checkAttempts(model: Model, real: ConformingStore): Promise<void> {
  for (const [id, { attempts, state }] of model.deliveries) {
    const stored = await real.attempts(id);
    expect(stored.map(({ number }) => number)).toEqual(Array.from({ length: attempts }, (_, i) => i + 1));
    const open = stored.filter(({ outcome }) => outcome === null).map(({ number }) => number);
    expect(open).toEqual(state === "sending" ? [attempts] : []);
    for (const [i, { timestamp }] of stored.entries()) {
      if (i > 0) expect(timestamp > stored[i - 1]!.timestamp).toBe(true);
    }
    expect(new Set(stored.map(({ fence }) => fence)).size).toBe(stored.length);
  }
}
