// The stores of the delivery benchmark, each on a server of its own that is started for it and removed after it.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Database, migrate, openDatabase, postgresStore, startEmbeddedPostgres } from "fencepost";
import { Redis } from "ioredis";
import { readAddressRules } from "../packages/fencepost/src/address/addressRules.ts";
import { readWebhookInput } from "../packages/fencepost/src/dispatch/webhookInput.ts";
import type { Message } from "../packages/fencepost/src/message/payload.ts";
import type { DeliveryStore } from "../packages/fencepost/src/store/deliveryStore.ts";
import { insertMessages } from "../packages/fencepost/src/store/postgres/messages.ts";
import { redisStore } from "../packages/fencepost/src/store/redis/redisStore.ts";
import type { NewWebhook, WebhookId } from "../packages/fencepost/src/store/webhook.ts";

export type StoreName = "postgres" | "redis";

export interface BenchStore {
  readonly store: DeliveryStore<never>;
  /** Empties it. */
  reset(): Promise<void>;
  /** Makes a delivery of each message, all due at once. */
  enqueue(messages: readonly Message[]): Promise<void>;
}

/** Starts both. PostgreSQL with its own defaults, Redis with an append-only file that is synced each second. */
export async function benchStores(): Promise<
  Readonly<Record<StoreName, BenchStore>> & { readonly database: Database; close(): Promise<void> }
> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-bench-"));
  await chmod(folder, 0o755); // as root the server runs as another user
  const postgres = await startEmbeddedPostgres({ dataDir: join(folder, "postgres") });
  const database = openDatabase(postgres.url, { maxConnections: 10 });
  await migrate(database);
  const redis = await startRedis(folder);
  return {
    database,
    postgres: {
      store: postgresStore(database) as DeliveryStore<never>,
      async reset() {
        await database.query(
          `TRUNCATE fencepost.webhooks, fencepost.catch_ups, fencepost.webhook_pace, fencepost.messages,
             fencepost.message_bodies, fencepost.outbox, fencepost.deliveries, fencepost.delivery_queue, fencepost.attempts`,
        );
      },
      async enqueue(messages) {
        for (let i = 0; i < messages.length; i += 500) {
          const batch = messages.slice(i, i + 500);
          await database.transaction((client) => insertMessages(client, batch, "emitted", "orders"));
        }
        const store = postgresStore(database);
        while ((await store.fanOut({ messages: 500, webhooks: 10 })).messages > 0);
        while ((await store.catchUp(1_000)).messages > 0);
        // As autovacuum would in the middle of the measurement. It leaves tables alone that nothing was written to.
        await database.query(
          `VACUUM ANALYZE fencepost.webhooks, fencepost.messages, fencepost.message_bodies, fencepost.deliveries,
             fencepost.delivery_queue`,
        );
      },
    },
    redis: {
      store: redisStore(redis.client),
      async reset() {
        await redis.client.flushall();
      },
      async enqueue(messages) {
        const store = redisStore(redis.client);
        for (let i = 0; i < messages.length; i += 500) {
          await Promise.all(messages.slice(i, i + 500).map((message) => store.dispatch(message, {})));
        }
      },
    },
    async close() {
      await database.close();
      await postgres.stop();
      await redis.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

export const SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;

/** A webhook for every type, with the defaults. */
export function webhookOf(url: string): NewWebhook {
  const rules = readAddressRules({ allowInsecure: true });
  return readWebhookInput({ url, types: ["*"], secrets: [SECRET] }, rules, "wh_bench" as WebhookId);
}

async function startRedis(folder: string): Promise<{ readonly client: Redis; stop(): Promise<void> }> {
  const socket = join(folder, "redis.sock");
  const flags = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--appendonly", "yes"];
  const server: ChildProcess = spawn("redis-server", flags, { stdio: "ignore" });
  const exited = once(server, "exit");
  const client = new Redis(socket, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  client.on("error", () => {}); // until it listens
  await Promise.race([
    client.ping(),
    exited.then(() => Promise.reject(new Error("redis-server ended: is it installed?"))),
    sleep(10_000, undefined, { ref: false }).then(() =>
      Promise.reject(new Error("redis-server gave no answer.")),
    ),
  ]);
  return {
    client,
    async stop() {
      client.disconnect();
      server.kill();
      await exited;
    },
  };
}
