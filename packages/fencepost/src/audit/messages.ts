import type { Delivery, DeliveryState, DeliveryStore } from "../store/deliveryStore.ts";
import {
  type AuditedMessage,
  type MessagePlace,
  readCatchingUp,
  readDuePairs,
  readMessagesAfter,
  type TokenRange,
} from "../store/postgres/audit.ts";
import type { Database } from "../store/postgres/database.ts";
import type { Webhook, WebhookId } from "../store/webhook.ts";
import { Finding, type NamedMessage, type WebhookAudit } from "./report.ts";

type AuditStore = Pick<DeliveryStore, "listWebhooks" | "deliveriesOf">;

/** Messages looked at together, and webhooks that they are held against in one statement. */
const MESSAGES = 200;
const WEBHOOKS = 200;
/** Messages whose deliveries are asked for at once. */
const AT_ONCE = 8;
/** As many deliveries of one message as a store lists. */
const LISTED_DELIVERIES = 1_000;

/** A webhook while it is counted. */
interface Tally {
  readonly webhook: Webhook;
  due: number;
  waiting: number;
  unknown: number;
  readonly states: Record<DeliveryState, number>;
  readonly missing: Finding<NamedMessage>;
  readonly doubled: Finding<NamedMessage>;
}

/** Every message of a range of tokens, and the deliveries of those that a projection emitted. */
export async function auditMessages(
  database: Database,
  store: AuditStore,
  { from, through }: TokenRange,
  signal: AbortSignal,
): Promise<{
  readonly messages: { readonly count: number; readonly withoutEvent: Finding<NamedMessage> };
  readonly webhooks: readonly WebhookAudit[];
}> {
  const tallies = new Map((await readWebhooks(store)).map((webhook) => [webhook.id, tallyOf(webhook)]));
  const catchingUp = await readCatchingUp(database);
  const withoutEvent = new Finding<NamedMessage>();
  let count = 0;
  let after: MessagePlace = { token: from, eventId: "" };
  for (;;) {
    signal.throwIfAborted();
    const page = await readMessagesAfter(database, after, through, MESSAGES);
    count += page.length;
    for (const message of page) {
      if (!message.hasEvent && message.state !== "dispatched") withoutEvent.add(nameOf(message));
    }
    await auditDeliveries(database, store, page, tallies, catchingUp);
    const last = page.at(-1);
    if (!last || page.length < MESSAGES) break;
    after = last;
  }
  return { messages: { count, withoutEvent }, webhooks: [...tallies.values()].map(reportOf) };
}

async function auditDeliveries(
  database: Database,
  store: AuditStore,
  page: readonly AuditedMessage[],
  tallies: ReadonlyMap<WebhookId, Tally>,
  catchingUp: ReadonlySet<WebhookId>,
): Promise<void> {
  const emitted = page.filter(({ state }) => state === "emitted");
  const messageOf = new Map(emitted.map((message) => [message.eventId, message]));
  // Deliveries after messages and outbox: what left the outbox in between has them.
  const deliveriesOf = await readDeliveries(store, page);
  for (const message of page) noteDoubled(message, deliveriesOf.get(message.eventId) ?? [], tallies);
  const webhooks = [...tallies.values()].map(({ webhook }) => webhook);
  for (let i = 0; i < webhooks.length && messageOf.size > 0; i += WEBHOOKS) {
    for (const { eventId, webhookId, forgotten } of await readDuePairs(
      database,
      [...messageOf.keys()],
      webhooks.slice(i, i + WEBHOOKS),
    )) {
      const tally = tallies.get(webhookId);
      const message = messageOf.get(eventId);
      if (!tally || !message) continue;
      tally.due++;
      const deliveries = deliveriesOf.get(eventId) ?? [];
      const own = deliveries.find((delivery) => delivery.webhookId === webhookId);
      const isListed = deliveries.length < LISTED_DELIVERIES;
      if (own) tally.states[own.state]++;
      else if (!tally.webhook.active || forgotten || !isListed) tally.unknown++;
      else if (message.inOutbox || catchingUp.has(webhookId)) tally.waiting++;
      else tally.missing.add(nameOf(message));
    }
  }
}

function noteDoubled(
  message: AuditedMessage,
  deliveries: readonly Delivery[],
  tallies: ReadonlyMap<WebhookId, Tally>,
): void {
  const seen = new Set<WebhookId>();
  for (const { webhookId } of deliveries) {
    if (seen.has(webhookId)) tallies.get(webhookId)?.doubled.add(nameOf(message));
    seen.add(webhookId);
  }
}

async function readDeliveries(
  store: AuditStore,
  messages: readonly AuditedMessage[],
): Promise<ReadonlyMap<string, readonly Delivery[]>> {
  const found = new Map<string, readonly Delivery[]>();
  for (let i = 0; i < messages.length; i += AT_ONCE) {
    const some = messages.slice(i, i + AT_ONCE);
    const deliveries = await Promise.all(some.map(({ eventId }) => store.deliveriesOf(eventId)));
    for (const [n, { eventId }] of some.entries()) found.set(eventId, deliveries[n] ?? []);
  }
  return found;
}

async function readWebhooks(store: AuditStore): Promise<readonly Webhook[]> {
  const webhooks: Webhook[] = [];
  for (;;) {
    const after = webhooks.at(-1)?.id;
    const page = await store.listWebhooks({ limit: WEBHOOKS, ...(after !== undefined && { after }) });
    webhooks.push(...page);
    if (page.length < WEBHOOKS) return webhooks;
  }
}

function tallyOf(webhook: Webhook): Tally {
  return {
    webhook,
    due: 0,
    waiting: 0,
    unknown: 0,
    states: { pending: 0, sending: 0, success: 0, failed: 0, in_doubt: 0 },
    missing: new Finding(),
    doubled: new Finding(),
  };
}

function reportOf({ webhook: { id, active }, ...counts }: Tally): WebhookAudit {
  return { id, active, ...counts };
}

function nameOf({ token, eventId, type }: AuditedMessage): NamedMessage {
  return { token, eventId, type };
}
