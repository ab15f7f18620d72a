// What the servers say about themselves.
import type { Cluster, Redis } from "ioredis";
import { EvictionPolicyError, RedisVersionError } from "./errors.ts";

const MIN_VERSION = 7;

interface ServerInfo {
  readonly name: string;
  readonly runId: string;
  readonly version: string;
  readonly policy: string;
}

/** Of each server that takes writes. INFO is allowed where CONFIG is not, as on managed servers. */
async function readServers(client: Redis | Cluster): Promise<readonly ServerInfo[]> {
  const servers = client.isCluster ? (client as Cluster).nodes("master") : [client as Redis];
  return Promise.all(
    servers.map(async (server) => {
      const info = await server.info("server", "memory");
      const field = (name: string): string =>
        new RegExp(`^${name}:(.*?)\r?$`, "m").exec(info)?.[1] ?? "unknown";
      const { path, host, port } = server.options;
      const name = path ?? `${host}:${port}`;
      return {
        name,
        runId: field("run_id"),
        version: field("redis_version"),
        policy: field("maxmemory_policy"),
      };
    }),
  );
}

/** Of the servers that are running, in order: another one when a server was started again, or a replica took over. */
export async function readRunIds(client: Redis | Cluster): Promise<readonly string[]> {
  return (await readServers(client)).map(({ runId }) => runId).sort();
}

/** Throws {@link EvictionPolicyError} or {@link RedisVersionError} for the first server that cannot be relied on. */
export async function checkServers(client: Redis | Cluster): Promise<void> {
  for (const { name, version, policy } of await readServers(client)) {
    if (!(Number.parseInt(version, 10) >= MIN_VERSION)) throw new RedisVersionError(name, version);
    if (policy !== "noeviction") throw new EvictionPolicyError(name, policy);
  }
}
