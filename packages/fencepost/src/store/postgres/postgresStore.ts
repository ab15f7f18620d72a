import { RETRY_SCHEDULE_MS } from "../decideDelivery.ts";
import type { DeliveryStore } from "../deliveryStore.ts";
import { claim, extend, finish, recordAttempts, release, review, settle } from "./claims.ts";
import type { Database, Queryable } from "./database.ts";
import {
  deliveriesOf,
  findDelivery,
  listAttempts,
  listDeliveries,
  redeliver,
  resolve,
} from "./deliveryRows.ts";
import { catchUp, dispatch, fanOut, replay } from "./dispatching.ts";
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

/** The delivery store in PostgreSQL. `tx` of `dispatch` is a client of the caller's, inside its transaction. */
export function postgresStore(
  database: Database,
  { retryScheduleMs = RETRY_SCHEDULE_MS }: PostgresStoreOptions = {},
): DeliveryStore<Queryable> {
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
      tx ? dispatch(tx, message, only) : database.transaction((client) => dispatch(client, message, only)),
    fanOut: (limits) => fanOut(database, limits),
    catchUp: (limit) => database.transaction((client) => catchUp(client, limit)),
    replay: (id, page) => database.transaction((client) => replay(client, id, page)),

    claim: (options) => claim(database, options),
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

    prune: (options) => database.transaction((client) => prune(client, options)),
    endDeleted: (limit) => database.transaction((client) => endDeleted(client, limit)),
    listUntold: () => listUntold(database),
    markTold: (webhook) => markTold(database, webhook),
  };
}
