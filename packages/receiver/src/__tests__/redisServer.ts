import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import { waitUntil } from "../../../fencepost/src/__tests__/support/waitUntil.ts";

/** False where the machine has no redis-server: then tests of Redis are skipped. */
export const hasRedis = spawnSync("redis-server", ["--version"]).status === 0;

export interface RedisServer {
  /** A socket file: the server has no port that another test could meet. */
  readonly path: string;
  stop(): Promise<void>;
}

/** Starts a real Redis, which keeps everything in memory. */
export async function startRedis(): Promise<RedisServer> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-redis-"));
  const path = join(folder, "redis.sock");
  const options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder];
  const server = spawn("redis-server", options, { stdio: "ignore" });
  const exited = once(server, "exit");
  try {
    await waitUntil(() => answers(path), { what: "the Redis of the test answers" });
  } catch (error) {
    server.kill("SIGKILL");
    throw error;
  }
  return {
    path,
    stop: async () => {
      server.kill();
      await exited;
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function answers(path: string): Promise<boolean> {
  const client = new Redis(path, { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {}); // it is not there yet
  try {
    await client.connect();
    return (await client.ping()) === "PONG";
  } catch {
    return false;
  } finally {
    client.disconnect();
  }
}
