import { Cluster, Redis } from "ioredis";
import type { ConformingStore, CreateStore } from "../../store/conformance/conformingStore.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { insertMessages } from "../../store/postgres/messages.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { script } from "../../store/redis/lua/script.ts";
import { type RedisDeliveryStore, redisStore } from "../../store/redis/redisStore.ts";
import { relayedStore } from "../../store/redis/relayedStore.ts";
import { ALL_SHARDS, shardOfDelivery } from "../../store/redis/shards.ts";
import { emptyDeliveryTables } from "./deliveryTables.ts";
import { emptyRedis, startRedis, startRedisCluster } from "./redisServer.ts";
import { createTestDatabase } from "./testDatabase.ts";

export interface ConformingRedis {
  readonly client: Redis | Cluster;
  readonly database: Database;
  /** Deliveries in Redis, messages and their outbox in PostgreSQL. */
  readonly create: CreateStore;
  close(): Promise<void>;
}

/** A Redis of its own for one test file, one server or a cluster of three masters, and a database. */
export async function openConformingRedis(kind: "server" | "cluster"): Promise<ConformingRedis> {
  const [redis, { url, drop }] = await Promise.all([
    kind === "server" ? startServer() : startCluster(),
    createTestDatabase(),
  ]);
  /** As of four processes. */
  const processes = Array.from({ length: 4 }, () => ({
    client: redis.connect(),
    database: openDatabase(url, { maxConnections: 5 }),
  }));
  const [first, ...others] = processes as [(typeof processes)[0], ...typeof processes];
  const { client, database } = first;
  await migrate(database);
  return {
    client,
    database,
    async create(options): Promise<ConformingStore> {
      await emptyRedis(client);
      await emptyDeliveryTables(database);
      const store = redisStore(client, options);
      const open = (process: (typeof processes)[0]) =>
        relayedStore(process.database, redisStore(process.client, options));
      let opened = 0;
      return {
        store: relayedStore(database, store),
        open: async () => open(others[opened++ % others.length] ?? first),
        async emit(messages, origin = "emitted") {
          await database.transaction((tx) => insertMessages(tx, messages, origin, "orders"));
        },
        ...inspect(store),
      };
    },
    async close() {
      for (const process of processes) {
        process.client.disconnect();
        await process.database.close();
      }
      await drop();
      await redis.stop();
    },
  };
}

interface StartedRedis {
  connect(): Redis | Cluster;
  stop(): Promise<void>;
}

async function startServer(): Promise<StartedRedis> {
  const { url, stop } = await startRedis();
  return { connect: () => new Redis(url), stop };
}

async function startCluster(): Promise<StartedRedis> {
  const { urls, stop } = await startRedisCluster();
  return { connect: () => new Cluster([...urls]), stop };
}

const MAKE_DUE = script(`
local q, d = get(QUEUE, ARGV[1]), get(DELIVERIES, ARGV[1])
if not q then return end
unqueue(d.webhook, ARGV[1], q)
q.due = now
enqueue(d.webhook, ARGV[1], q)
conclude()`);
const ALL_DELIVERIES = script(`
local rows = {}
for i, id in ipairs(call("HKEYS", DELIVERIES)) do
  local d = get(DELIVERIES, id)
  rows[i] = { id, d.event, d.webhook, d.state, d.attempts }
end
return rows`);
const FENCES = script(`
local d, fences = get(DELIVERIES, ARGV[1]), {}
for number = 1, d and d.attempts or 0 do
  fences[number] = (number == d.attempts and d.attempt or get(ATTEMPTS, ARGV[1] .. "|" .. number)).fence
end
return fences`);

type Row = Awaited<ReturnType<ConformingStore["deliveries"]>>[number];

function inspect({
  shards,
  listAttempts,
}: RedisDeliveryStore): Pick<ConformingStore, "makeDue" | "deliveries" | "attempts"> {
  return {
    async makeDue(id) {
      await shards.run({ script: MAKE_DUE, shard: shardOfDelivery(id) ?? 0, args: [id] });
    },
    async deliveries() {
      const calls = ALL_SHARDS.map((shard) => ({ script: ALL_DELIVERIES, shard, args: [] }));
      const replies = (await shards.runAll(calls)) as readonly (readonly [
        Row["id"],
        Row["eventId"],
        Row["webhookId"],
        Row["state"],
        number,
      ])[][];
      return replies
        .flat()
        .map(([id, eventId, webhookId, state, attempts]) => ({ id, eventId, webhookId, state, attempts }));
    },
    async attempts(id) {
      const fences = await shards.run({ script: FENCES, shard: shardOfDelivery(id) ?? 0, args: [id] });
      const attempts = await listAttempts(id);
      return attempts.map(({ number, timestamp, outcome, status, lateOutcome }, i) => ({
        number,
        fence: BigInt((fences as string[])[i] ?? 0),
        timestamp,
        outcome,
        status,
        lateOutcome,
      }));
    },
  };
}
