import { Redis } from "ioredis";
import { afterAll, afterEach, beforeAll, describe, expect, it, test } from "vitest";
import { hasRedis, startRedis, startRedisCluster } from "../../__tests__/support/redisServer.ts";
import { messageOf } from "../conformance/conformingStore.ts";
import { EVERYTHING, webhookOf } from "../conformance/deliverySteps.ts";
import { openRedisStore } from "./openRedisStore.ts";

describe.skipIf(!hasRedis)("opening a store in Redis", () => {
  let server: Awaited<ReturnType<typeof startRedis>>;
  let admin: Redis;
  beforeAll(async () => {
    server = await startRedis();
    admin = new Redis(server.url);
  });
  afterAll(async () => {
    admin.disconnect();
    await server.stop();
  });
  afterEach(async () => {
    await admin.config("SET", "maxmemory-policy", "noeviction");
    await admin.flushall();
  });

  it("connects, and its end closes the connections", async () => {
    const connected = async (): Promise<number> =>
      Number(/connected_clients:(\d+)/.exec(await admin.info("clients"))?.[1]);
    const before = await connected();
    const store = await openRedisStore({ url: server.url }, { retryScheduleMs: [1] });
    await store.addWebhook(webhookOf("wh_a"));
    await store.dispatch(messageOf("order:1"), {});
    const [claimed] = await store.claim(EVERYTHING);
    const [recorded] = await store.recordAttempts(claimed!.fence, [claimed!.id], 1_000);
    expect(recorded!.policy.retryScheduleMs).toEqual([1]);
    await store.close();
    await expect.poll(connected).toBe(before);
  });

  test.each(["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])(
    "refuses a server with the policy %s: it names both, the cost and the cure",
    async (policy) => {
      await admin.config("SET", "maxmemory-policy", policy);
      const opening = openRedisStore({ url: server.url });
      await expect(opening).rejects.toMatchObject({
        name: "EvictionPolicyError",
        server: `127.0.0.1:${server.port}`,
        policy,
        message: expect.stringMatching(/deletes keys.*deliveries.*CONFIG SET maxmemory-policy noeviction/),
      });
      expect(await admin.keys("*")).toEqual([]);
    },
  );

  it("needs no right to use CONFIG, as on managed servers", async () => {
    await admin.call("ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all", "-config");
    const url = `redis://app:pass@127.0.0.1:${server.port}`;
    await (await openRedisStore({ url })).close();
    await admin.config("SET", "maxmemory-policy", "allkeys-lru");
    await expect(openRedisStore({ url })).rejects.toMatchObject({ name: "EvictionPolicyError" });
    await admin.call("ACL", "DELUSER", "app");
  });

  it("says where nobody answers, or who is refused, and keeps the password to itself", async () => {
    const { url, port, stop } = await startRedis();
    await stop();
    for (const location of [{ url }, { urls: [url] }]) {
      await expect(openRedisStore(location)).rejects.toMatchObject({
        name: "RedisUnreachableError",
        message: expect.stringContaining(`127.0.0.1:${port}`),
      });
    }
    const opening = openRedisStore({ url: `redis://nobody:secret@127.0.0.1:${server.port}` });
    await expect(opening).rejects.toMatchObject({ message: expect.stringContaining("WRONGPASS") });
    await expect(opening).rejects.toMatchObject({ message: expect.not.stringContaining("secret") });
  });

  it("of a cluster looks at every master", async () => {
    const cluster = await startRedisCluster();
    try {
      const store = await openRedisStore({ urls: cluster.urls.slice(0, 1) });
      expect((await store.runIds()).length).toBe(3);
      await store.close();
      const { url, port } = cluster.masters[2]!;
      const last = new Redis(url);
      await last.config("SET", "maxmemory-policy", "allkeys-lru");
      last.disconnect();
      await expect(openRedisStore({ urls: cluster.urls })).rejects.toMatchObject({
        name: "EvictionPolicyError",
        server: `127.0.0.1:${port}`,
      });
    } finally {
      await cluster.stop();
    }
  });
});
