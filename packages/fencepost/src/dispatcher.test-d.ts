// Whose transaction `dispatch` joins is a matter of types: the compiler reads this file, nothing runs it.
import { Pool } from "pg";
import { createDispatcher, openDatabase, openRedisStore, postgresStore, relayedStore } from "./index.ts";

const event = { event_type: "order.paid", event_id: "order_1", data: {} };
const database = openDatabase("postgres://127.0.0.1/shop");
const inPostgres = createDispatcher({ store: postgresStore(database) });

// ── what is right ────────────────────────────────────────────────────────────────────────────────────────
const client = await new Pool().connect();
await inPostgres.dispatch(event, { tx: client });
await inPostgres.dispatch(event, {});

// ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────
const redis = await openRedisStore({ url: "redis://127.0.0.1" });
const inRedis = createDispatcher({ store: redis });
await inRedis.dispatch(event);
// @ts-expect-error Redis is not in the caller's transaction
await inRedis.dispatch(event, { tx: client });
const relayed = createDispatcher({ store: relayedStore(database, redis) });
// @ts-expect-error nor is it behind an engine
await relayed.dispatch(event, { tx: client });
