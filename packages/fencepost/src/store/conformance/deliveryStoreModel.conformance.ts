// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// A store against a model of it: statements in any order, most of them twice, under fences old and new.
import fc from "fast-check";
import { expect } from "vitest";
import type { Message } from "../../message/payload.ts";
import { decideOutcome } from "../decideDelivery.ts";
import type {
  AttemptResult,
  DeliveryId,
  DeliveryState,
  DeliveryStore,
  OnUnknown,
  WebhookId,
} from "../deliveryStore.ts";
import { type ConformingStore, type CreateStore, emittedMessage, messageOf } from "./conformingStore.ts";

const RETRY_SCHEDULE_MS = [3_600_000, 3_600_000];
const LEASE_MS = 3_600_000;
const WEBHOOKS: readonly { readonly id: WebhookId; readonly onUnknown: OnUnknown }[] = [
  { id: "wh_a" as WebhookId, onUnknown: "resend" },
  { id: "wh_b" as WebhookId, onUnknown: "hold" },
];
const DISPATCHED = ["order:1", "order:2"].map((id) => messageOf(id));
const EMITTED = [1, 2, 3].map((n) => emittedMessage(n));

const RESULTS: readonly (readonly [AttemptResult["outcome"], number | null])[] = [
  ["delivered", 200],
  ["rejected", 400],
  ["rejected", 503],
  ["not_sent", null],
  ["unknown", null],
];

interface ModelDelivery {
  readonly onUnknown: OnUnknown;
  state: DeliveryState;
  attempts: number;
  tries: number;
  /** Of the claim that holds it. */
  fence: bigint | null;
  attempted: boolean;
  due: boolean;
}

interface Model {
  readonly deliveries: Map<DeliveryId, ModelDelivery>;
  /** Messages whose deliveries may be there, and those whose deliveries must be. */
  readonly offered: Set<string>;
  readonly complete: Set<string>;
  /** Every claim ever made: workers do not know that theirs is lost. */
  readonly claims: { readonly id: DeliveryId; readonly fence: bigint }[];
}

type Command = fc.AsyncCommand<Model, ConformingStore>;

/** Runs sequences of commands against new stores. Throws with the seed and the shortest failing sequence. */
export async function checkAgainstModel(create: CreateStore): Promise<void> {
  const index = fc.nat({ max: 30 });
  const commands = fc.commands(
    [
      fc.constantFrom(...DISPATCHED).map(dispatch),
      fc.constantFrom(...EMITTED).map(emit),
      fc.constant(fanOut()),
      fc.constant(drainOutbox()),
      fc.integer({ min: 1, max: 5 }).map(claim),
      fc.tuple(index).map(([i]) => record(i)),
      fc.tuple(index).map(([i]) => record(i)),
      fc
        .tuple(index, fc.constantFrom(...RESULTS))
        .map(([i, [outcome, status]]) => finish(i, outcome, status)),
      fc
        .tuple(index, fc.constantFrom(...RESULTS))
        .map(([i, [outcome, status]]) => finish(i, outcome, status)),
      index.map(release),
      index.map(makeDue),
      index.map(makeDue),
      index.map(redeliver),
    ],
    { maxCommands: 60, size: "max" },
  );
  const property = fc.asyncProperty(commands, async (sequence) => {
    const real = await create({ retryScheduleMs: RETRY_SCHEDULE_MS });
    for (const [i, webhook] of WEBHOOKS.entries()) {
      const secrets = [`whsec_${Buffer.alloc(32, i).toString("base64")}`];
      const url = `https://customer.example/${i}`;
      await real.store.addWebhook({ ...webhook, url, types: ["*"], secrets, description: "" });
    }
    const model: Model = { deliveries: new Map(), offered: new Set(), complete: new Set(), claims: [] };
    await fc.asyncModelRun(() => ({ model, real }), sequence);
    await checkAttempts(model, real);
  });
  await fc.assert(property, { numRuns: 15, endOnFailure: true });
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

function dispatch(message: Message): Command {
  return command(`dispatch ${message.eventId}, twice`, async (model, store) => {
    model.offered.add(message.eventId);
    model.complete.add(message.eventId);
    const first = await store.dispatch(message, {});
    expect(first.map(({ webhookId }) => webhookId)).toEqual(WEBHOOKS.map(({ id }) => id));
    expect(await store.dispatch(message, {})).toEqual(first);
  });
}

function emit(message: Message): Command {
  return command(`emit ${message.eventId}, twice`, async (model, _store, real) => {
    model.offered.add(message.eventId);
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
    while ((await store.fanOut({ messages: 2, webhooks: 1 })).messages > 0);
    while ((await store.catchUp(2)).messages > 0);
    for (const eventId of model.offered) model.complete.add(eventId);
  });
}

function claim(limit: number): Command {
  return command(`claim ${limit}`, async (model, store) => {
    const claims = await store.claim({ limit, perOrigin: 100, skipOrigins: [], leaseMs: LEASE_MS });
    const due = [...model.deliveries.values()].filter((delivery) => delivery.due).length;
    expect(claims.length).toBe(Math.min(limit, due));
    for (const { id, fence, interrupted } of claims) {
      const delivery = model.deliveries.get(id)!;
      expect(delivery.due).toBe(true);
      expect(interrupted).toBe(delivery.attempted);
      expect(model.claims.some((claimed) => claimed.id === id && claimed.fence === fence)).toBe(false);
      Object.assign(delivery, { fence, due: false });
      model.claims.push({ id, fence });
    }
  });
}

/** A command of a worker that holds the i-th claim, or held it once. */
function workerCommand(
  name: string,
  i: number,
  run: (worker: {
    readonly id: DeliveryId;
    readonly fence: bigint;
    readonly delivery: ModelDelivery;
    readonly store: DeliveryStore;
  }) => Promise<void>,
): Command {
  return command(
    `${name} by claim ${i}`,
    async (model, store) => {
      const { id, fence } = model.claims.at(-1 - (i % model.claims.length))!;
      await run({ id, fence, delivery: model.deliveries.get(id)!, store });
    },
    (model) => model.claims.length > 0,
  );
}

function record(i: number): Command {
  return workerCommand("record, twice,", i, async ({ id, fence, delivery, store }) => {
    const may = delivery.fence === fence && !delivery.attempted;
    const recorded = await store.recordAttempts(fence, [id], LEASE_MS);
    expect(recorded.map(({ number }) => number)).toEqual(may ? [delivery.attempts + 1] : []);
    expect(await store.recordAttempts(fence, [id], LEASE_MS)).toEqual([]);
    if (!may) return;
    Object.assign(delivery, { state: "sending", attempted: true, due: false });
    delivery.attempts++;
    delivery.tries++;
  });
}

function finish(i: number, outcome: AttemptResult["outcome"], status: number | null): Command {
  const result: AttemptResult = { outcome, status, error: null, response: null, retryAfterMs: null };
  return workerCommand(`finish ${outcome} ${status}, twice,`, i, async ({ id, fence, delivery, store }) => {
    const may = delivery.fence === fence && delivery.attempted;
    const policy = { onUnknown: delivery.onUnknown, retryScheduleMs: RETRY_SCHEDULE_MS };
    const { state } = decideOutcome(result, delivery.tries, policy, 0);
    const stale = { recorded: [], stale: [id] };
    expect(await store.finish(fence, [{ id, result }])).toEqual(
      may ? { recorded: [{ id, state }], stale: [] } : stale,
    );
    expect(await store.finish(fence, [{ id, result }])).toEqual(stale);
    if (may) Object.assign(delivery, { state, fence: null, attempted: false, due: false });
    else if (delivery.fence === fence) Object.assign(delivery, { fence: null, due: true });
  });
}

function release(i: number): Command {
  return workerCommand("release, twice,", i, async ({ id, fence, delivery, store }) => {
    await store.release(fence, [id]);
    await store.release(fence, [id]);
    if (delivery.fence === fence && !delivery.attempted) Object.assign(delivery, { fence: null, due: true });
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
    if (!hasEnded(delivery)) delivery.due = true;
  });
}

function redeliver(i: number): Command {
  return deliveryCommand("redeliver, twice,", i, async (id, delivery, { store }) => {
    if (hasEnded(delivery)) Object.assign(delivery, { state: "pending", tries: 0, due: true });
    const again = await store.redeliver(id);
    expect(again).toMatchObject({ id, state: delivery.state });
    expect(await store.redeliver(id)).toEqual(again);
  });
}

function hasEnded({ state }: ModelDelivery): boolean {
  return state === "success" || state === "failed" || state === "in_doubt";
}

/** One row a pair, each as the model has it. A row that a fan-out has just made is taken into the model. */
async function checkRows(model: Model, real: ConformingStore): Promise<void> {
  const rows = await real.deliveries();
  const pairs = rows.map(({ eventId, webhookId }) => `${eventId} ${webhookId}`);
  expect(new Set(pairs).size).toBe(pairs.length);
  for (const eventId of model.complete) {
    for (const { id } of WEBHOOKS) expect(pairs).toContain(`${eventId} ${id}`);
  }
  for (const { id, eventId, webhookId, state, attempts } of rows) {
    if (!model.deliveries.has(id)) {
      expect(model.offered).toContain(eventId);
      const { onUnknown } = WEBHOOKS.find((webhook) => webhook.id === webhookId)!;
      const fresh = { attempts: 0, tries: 0, fence: null, attempted: false, due: true } as const;
      model.deliveries.set(id, { onUnknown, state: "pending", ...fresh });
    }
    const expected = model.deliveries.get(id)!;
    expect({ id, state, attempts }).toEqual({ id, state: expected.state, attempts: expected.attempts });
  }
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
