import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Cluster, Redis } from "ioredis";
import { waitUntil } from "./waitUntil.ts";

/** False where the machine has no redis-server: then tests of Redis are skipped. */
export const hasRedis = spawnSync("redis-server", ["--version"]).status === 0;
if (!hasRedis) {
  const missing = "There is no redis-server on this machine";
  if (process.env["FENCEPOST_REQUIRE_REDIS"] === "1")
    throw new Error(`${missing}, and its tests are required.`);
  process.stderr.write(`${missing}: tests of Redis are skipped.\n`);
}

interface RedisProcess {
  readonly port: number;
  /** What a client connects to. */
  readonly url: string;
  /** Ends it at once, as a crash would. */
  kill(): Promise<void>;
  /** Starts it again on its port and in its folder, after it was killed. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

/** Starts a real Redis on a port of its own, with further options of its command line. It keeps nothing on disk. */
export async function startRedis(options: readonly string[] = []): Promise<RedisProcess> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-redis-"));
  let server: ChildProcess | undefined;
  let port = 0;
  async function start(): Promise<void> {
    // Another process may take a free port before the server does: then others are tried.
    for (let attempt = 0; ; attempt++) {
      if (port === 0 || attempt > 0) port = await freePort();
      const clusterPort = options.includes("--cluster-enabled")
        ? ["--cluster-port", `${await freePort()}`]
        : [];
      const listen = ["--port", `${port}`, "--bind", "127.0.0.1", "--dir", folder];
      server = spawn("redis-server", [...listen, ...clusterPort, ...WITHOUT_FILES, ...options], {
        stdio: "ignore",
      });
      if (await answers(server, port)) return;
      server.kill("SIGKILL");
      if (attempt === 5) throw new Error("redis-server did not start, six times.");
    }
  }
  async function end(signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    if (!server || server.exitCode !== null || server.signalCode !== null) return;
    const exited = once(server, "exit");
    server.kill(signal);
    await exited;
  }
  await start();
  return {
    port,
    url: `redis://127.0.0.1:${port}`,
    kill: () => end("SIGKILL"),
    restart: start,
    async stop() {
      await end("SIGKILL");
      await rm(folder, { recursive: true, force: true });
    },
  };
}

const WITHOUT_FILES = ["--save", "", "--appendonly", "no"];

/** A connection that is made at once, or not at all: for the first words with a server. */
function greet(port: number): Redis {
  const client = new Redis(port, "127.0.0.1", { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {}); // it is not there yet
  return client;
}

async function answers(server: ChildProcess, port: number): Promise<boolean> {
  let answered = false;
  const asked = async (): Promise<boolean> => {
    if (server.exitCode !== null) return true;
    const client = greet(port);
    try {
      await client.connect();
      answered = (await client.ping()) === "PONG";
    } catch {
      // Once more.
    } finally {
      client.disconnect();
    }
    return answered;
  };
  await waitUntil(asked, { what: "the Redis of the test answers, or has ended" });
  return answered;
}

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const address = listener.address();
  listener.close();
  await once(listener, "close");
  if (address === null || typeof address === "string") throw new Error("The listener has no port.");
  return address.port;
}

export interface RedisCluster {
  readonly urls: readonly string[];
  readonly masters: readonly RedisProcess[];
  stop(): Promise<void>;
}

const SLOTS = 16_384;
const MASTERS = 3;

/** Starts a real cluster of three masters, each with a third of the slots, with further options for each of them. */
export async function startRedisCluster(further: readonly string[] = []): Promise<RedisCluster> {
  const options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000", ...further];
  const masters = await Promise.all(Array.from({ length: MASTERS }, () => startRedis(options)));
  const urls = masters.map(({ url }) => url);
  const stop = async (): Promise<void> => {
    await Promise.all(masters.map((master) => master.stop()));
  };
  try {
    const clients = masters.map(({ port }) => greet(port));
    await Promise.all(clients.map((client) => client.connect()));
    for (const [i, client] of clients.entries()) {
      const [first, next] = [i, i + 1].map((n) => Math.floor((n * SLOTS) / MASTERS)) as [number, number];
      await client.call("CLUSTER", "ADDSLOTSRANGE", first, next - 1);
    }
    const busPort = /@(\d+)/.exec(String(await clients[0]?.call("CLUSTER", "NODES")))?.[1] ?? "";
    const meeting = ["127.0.0.1", masters[0]?.port ?? 0, busPort];
    for (const client of clients.slice(1)) await client.call("CLUSTER", "MEET", ...meeting);
    const isWhole = async (client: Redis): Promise<boolean> => {
      const info = String(await client.call("CLUSTER", "INFO"));
      return info.includes("cluster_state:ok") && info.includes(`cluster_known_nodes:${MASTERS}`);
    };
    await waitUntil(async () => (await Promise.all(clients.map(isWhole))).every(Boolean), {
      what: "the cluster of the test is whole",
    });
    for (const client of clients) client.disconnect();
  } catch (error) {
    await stop();
    throw error;
  }
  return { urls, masters, stop };
}

/** Takes everything out of the servers. */
export async function emptyRedis(client: Redis | Cluster): Promise<void> {
  const masters = client instanceof Cluster ? client.nodes("master") : [client];
  await Promise.all(masters.map((master) => master.flushall()));
}
