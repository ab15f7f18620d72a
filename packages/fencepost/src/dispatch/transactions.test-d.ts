// Which transactions a dispatch joins: the compiler reads this file, nothing runs it.

import { drizzle as drizzleSqlite } from "drizzle-orm/better-sqlite3";
import { drizzle } from "drizzle-orm/node-postgres";
import type { Client, Pool, PoolClient } from "pg";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import type { Database } from "../store/postgres/database.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { sealedSecrets } from "../store/sealedSecrets.ts";
import { createDispatcher } from "./dispatcher.ts";

declare const database: Database;
declare const seal: Parameters<typeof sealedSecrets>[1];
declare const elsewhere: DeliveryStore;
declare const pool: Pool;
declare const client: Client;
declare const poolClient: PoolClient;
/** As Prisma's generated client has it. */
declare const prisma: { $queryRawUnsafe<T = unknown>(query: string, ...values: unknown[]): Promise<T> };
const now = () => new Date();
const order = { event_type: "order.paid", event_id: "order:1", data: {} };

// ── what is right ────────────────────────────────────────────────────────────────────────────────────────
const dispatcher = createDispatcher({ store: postgresStore(database), now });
await dispatcher.dispatch(order);
await dispatcher.dispatch(order, { tx: client });
await dispatcher.dispatch(order, { tx: poolClient });
await dispatcher.dispatch(order, { tx: prisma });
await drizzle(pool).transaction((tx) => dispatcher.dispatch(order, { tx }));
const sealed = createDispatcher({ store: sealedSecrets(postgresStore(database), seal), now });
await sealed.dispatch(order, { tx: client });
const onRedis = createDispatcher({ store: elsewhere, now });
await onRedis.dispatch(order);
await onRedis.dispatch(order, {});

// ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────
// @ts-expect-error a store that is not PostgreSQL joins no transaction
await onRedis.dispatch(order, { tx: client });
// @ts-expect-error nor one of Drizzle
await drizzle(pool).transaction((tx) => onRedis.dispatch(order, { tx }));
// @ts-expect-error a connection string is no transaction
await dispatcher.dispatch(order, { tx: "postgres://localhost" });
// @ts-expect-error a transaction on another database
drizzleSqlite(":memory:").transaction((tx) => dispatcher.dispatch(order, { tx }));
