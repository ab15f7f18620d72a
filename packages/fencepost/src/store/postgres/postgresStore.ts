import { randomBytes } from "node:crypto";
import { RETRY_SCHEDULE_MS } from "../decideDelivery.ts";
import type { DeliveryStore } from "../deliveryStore.ts";
import { claim, extend, finish, recordAttempts, release, review, settle } from "./claims.ts";
import type { Database } from "./database.ts";
import { countDeliveries, countWaiting, readHealth } from "./deliveryCounts.ts";
import {
  deliveriesOf,
  findDelivery,
  listAttempts,
  listDeliveries,
  redeliver,
  resolve,
} from "./deliveryRows.ts";
import { catchUp, dispatch, fanOut, replay } from "./dispatching.ts";
import { type PostgresTransaction, queryableOf } from "./transactions.ts";
import { endDeleted, listUntold, markTold, prune } from "./upkeep.ts";
import {
  activateWebhook,
  addWebhook,
  deactivateWebhook,
  deleteWebhook,
  findWebhook,
  listWebhooks,
  rotateSecret,
  updateWebhook,
} from "./webhooks.ts";

export interface PostgresStoreOptions {
  /** Delays between attempts, in milliseconds, of webhooks without their own; that of Standard Webhooks unless given. */
  readonly retryScheduleMs?: readonly number[];
}

/**
 * The delivery store in PostgreSQL. `tx` of `dispatch` is the caller's own transaction: a client of `pg` on which `BEGIN`
 * has run, or the `tx` of Drizzle or Prisma.
 */
export function postgresStore(
  database: Database,
  { retryScheduleMs = RETRY_SCHEDULE_MS }: PostgresStoreOptions = {},
): DeliveryStore<PostgresTransaction> {
  // Each store goes round the webhooks on its own, from a place of its own.
  let lastWebhook = `wh_${randomBytes(12).toString("hex")}`;
  return {
    addWebhook: (webhook) => database.transaction((client) => addWebhook(client, webhook)),
    findWebhook: (id) => findWebhook(database, id),
    listWebhooks: (page) => listWebhooks(database, page),
    updateWebhook: (id, changes) => database.transaction((client) => updateWebhook(client, id, changes)),
    rotateSecret: (id, secret, overlapMs) => rotateSecret(database, id, secret, overlapMs),
    activateWebhook: (id, missed) => database.transaction((client) => activateWebhook(client, id, missed)),
    deactivateWebhook: (id, reason) => deactivateWebhook(database, id, reason),
    deleteWebhook: (id) => deleteWebhook(database, id),

    dispatch: (message, { only, tx }) =>
      tx
        ? dispatch(queryableOf(tx), message, only)
        : database.hotTransaction((db) => dispatch(db, message, only)),
    fanOut: (limits) => fanOut(database, limits),
    catchUp: (limit) => database.transaction((client) => catchUp(client, limit)),
    replay: (id, page) => database.transaction((client) => replay(client, id, page)),

    async claim(options) {
      const claimed = await claim(database, options, lastWebhook);
      lastWebhook = claimed.at(-1)?.webhookId ?? lastWebhook;
      return claimed;
    },
    recordAttempts: (fence, ids, leaseMs) => recordAttempts(database, fence, ids, leaseMs, retryScheduleMs),
    review: (fence, ids) => review(database, fence, ids, retryScheduleMs),
    finish: (fence, attempts) => finish(database, fence, attempts),
    settle: (fence, doubts) => settle(database, fence, doubts),
    extend: (fence, ids, leaseMs) => extend(database, fence, ids, leaseMs),
    release: (fence, ids) => release(database, fence, ids),

    findDelivery: (id) => findDelivery(database, id),
    listDeliveries: (id, filter, page) => listDeliveries(database, id, filter, page),
    deliveriesOf: (eventId) => deliveriesOf(database, eventId),
    listAttempts: (id) => listAttempts(database, id),
    redeliver: (id) => database.transaction((client) => redeliver(client, id)),
    resolve: (id, resolution) => database.transaction((client) => resolve(client, id, resolution)),

    countDeliveries: () => countDeliveries(database),
    countWaiting: (ids) => countWaiting(database, ids),
    readHealth: () => readHealth(database),

    prune: (options) => database.transaction((client) => prune(client, options)),
    endDeleted: (limit) => database.transaction((client) => endDeleted(client, limit)),
    listUntold: () => listUntold(database),
    markTold: (webhook) => markTold(database, webhook),
  };
}
