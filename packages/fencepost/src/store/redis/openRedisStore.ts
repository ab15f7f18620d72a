import type { Cluster } from "ioredis";
import { EvictionPolicyError, RedisUnreachableError, RedisVersionError } from "./errors.ts";
import { type RedisDeliveryStore, type RedisStoreOptions, redisStore } from "./redisStore.ts";
import { checkServers } from "./servers.ts";

/** One server, or some nodes of a cluster, from which the others are found. User and password are in the urls. */
export type RedisLocation = { readonly url: string } | { readonly urls: readonly string[] };

/**
 * Connects, and checks each server that takes writes. Throws {@link EvictionPolicyError} for one that may delete
 * keys, {@link RedisVersionError} for one older than Redis 7, and {@link RedisUnreachableError}.
 */
export async function openRedisStore(
  location: RedisLocation,
  options: RedisStoreOptions = {},
): Promise<RedisDeliveryStore & { close(): Promise<void> }> {
  const urls = "url" in location ? [location.url] : location.urls;
  // Loaded where it is needed: a command on PostgreSQL begins sooner without it.
  const { Cluster, Redis } = await import("ioredis");
  const client =
    "url" in location
      ? new Redis(location.url, { lazyConnect: true, ...RECONNECT })
      : openCluster(Cluster, urls);
  let reason: unknown;
  // A connection that breaks is opened again, and who waits for an answer is told.
  client.on("error", (error) => {
    reason = error;
  });
  try {
    await client.connect();
    await checkServers(client);
  } catch (error) {
    client.disconnect();
    if (error instanceof EvictionPolicyError || error instanceof RedisVersionError) throw error;
    throw new RedisUnreachableError(urls, reason ?? error);
  }
  return {
    ...redisStore(client, options),
    async close() {
      await client.quit();
    },
  };
}

/** Who waits while a server is away is told after a few seconds: every caller knows what to do then. */
const RECONNECT = {
  maxRetriesPerRequest: 5,
  retryStrategy: (times: number) => Math.min(times * 100, 1_000),
};

function openCluster(Client: typeof Cluster, urls: readonly string[]): Cluster {
  const { username, password, protocol } = new URL(urls[0] ?? "redis://127.0.0.1:6379");
  return new Client([...urls], {
    lazyConnect: true,
    // For the nodes that are found.
    redisOptions: {
      ...RECONNECT,
      ...(username !== "" && { username: decodeURIComponent(username) }),
      ...(password !== "" && { password: decodeURIComponent(password) }),
      ...(protocol === "rediss:" && { tls: {} }),
    },
  });
}
