import { Cluster, Redis } from "ioredis";
import { type RedisDeliveryStore, type RedisStoreOptions, redisStore } from "./redisStore.ts";
import { checkServers } from "./servers.ts";

/** One server, or some nodes of a cluster, from which the others are found. */
export type RedisLocation = { readonly url: string } | { readonly urls: readonly string[] };

/**
 * Connects, and checks each server that takes writes. Throws {@link EvictionPolicyError} for one that may delete
 * keys, {@link RedisVersionError} for one older than Redis 7, and what the client throws where it cannot connect.
 */
export async function openRedisStore(
  location: RedisLocation,
  options: RedisStoreOptions = {},
): Promise<RedisDeliveryStore & { close(): Promise<void> }> {
  const client = connect(location);
  // A connection that breaks is opened again, and who waits for an answer is told.
  client.on("error", () => {});
  try {
    await client.connect();
    await checkServers(client);
  } catch (error) {
    client.disconnect();
    throw error;
  }
  return {
    ...redisStore(client, options),
    async close() {
      await client.quit();
    },
  };
}

function connect(location: RedisLocation): Redis | Cluster {
  if ("url" in location) return new Redis(location.url, { lazyConnect: true });
  const first = new URL(location.urls[0] ?? "redis://127.0.0.1:6379");
  return new Cluster([...location.urls], {
    lazyConnect: true,
    redisOptions: {
      ...(first.username !== "" && { username: decodeURIComponent(first.username) }),
      ...(first.password !== "" && { password: decodeURIComponent(first.password) }),
      ...(first.protocol === "rediss:" && { tls: {} }),
    },
  });
}
