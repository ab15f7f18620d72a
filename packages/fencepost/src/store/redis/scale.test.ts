// Many webhooks, and many deliveries that wait: what a script does is bounded, and a claim looks at what is due alone.
import { Redis } from "ioredis";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { emptyRedis, hasRedis, startRedis } from "../../__tests__/support/redisServer.ts";
import { messageOf } from "../conformance/conformingStore.ts";
import { EVERYTHING, webhookOf } from "../conformance/deliverySteps.ts";
import type { WebhookId } from "../webhook.ts";
import { offer } from "./dispatching.ts";
import type { StoredMessage } from "./messages.ts";
import { type RedisDeliveryStore, redisStore } from "./redisStore.ts";

describe.skipIf(!hasRedis)("a store in Redis", () => {
  let server: Awaited<ReturnType<typeof startRedis>>;
  let client: Redis;
  let store: RedisDeliveryStore;
  beforeAll(async () => {
    server = await startRedis();
    client = new Redis(server.url);
  });
  afterAll(async () => {
    client.disconnect();
    await server.stop();
  });
  beforeEach(async () => {
    await emptyRedis(client);
    store = redisStore(client);
  });

  /** Commands that the server runs, those of scripts included, while `work` does. */
  async function commandsOf(work: () => Promise<unknown>): Promise<number> {
    await client.config("RESETSTAT");
    await work();
    const stats = await client.info("commandstats");
    const counts = Array.from(stats.matchAll(/^cmdstat_(?!info|config)\S+?:calls=(\d+)/gm), ([, n]) =>
      Number(n),
    );
    return counts.reduce((sum, n) => sum + n, 0);
  }

  async function addWebhooks(count: number): Promise<void> {
    const ids = Array.from({ length: count }, (_, i) => `wh_${String(i).padStart(5, "0")}`);
    for (let i = 0; i < count; i += 500) {
      await Promise.all(ids.slice(i, i + 500).map((id) => store.addWebhook(webhookOf(id))));
    }
  }

  const storedOf = (n: number): StoredMessage => {
    const { eventId, type, token, body } = messageOf(`order:${n}`);
    return { eventId, type, token, body, at: 4e12, made: Date.now(), position: BigInt(n) };
  };

  it("dispatches one message to 10,000 webhooks, each once", async () => {
    await addWebhooks(10_000);
    const { created, existing } = await store.dispatch(messageOf("order:1"), {});
    expect([created.length, existing.length]).toEqual([10_000, 0]);
    expect(new Set(created.map(({ webhookId }) => webhookId)).size).toBe(10_000);
    const again = await store.dispatch(messageOf("order:1"), {});
    expect([again.created.length, again.existing.length]).toEqual([0, 10_000]);
    expect((await store.claim({ ...EVERYTHING, limit: 256 })).length).toBe(256);
  });

  it("offers messages in steps that make no more deliveries than they may, in their order", async () => {
    await addWebhooks(300);
    let waiting = Array.from({ length: 5 }, (_, i) => storedOf(i));
    const sizes: number[] = [];
    let made = 0;
    for (let step = 0; step < 100 && waiting.length > 0; step++) {
      const { deliveries, done } = await offer(store.shards, waiting, 100);
      sizes.push(deliveries);
      made += deliveries;
      waiting = waiting.slice(done);
    }
    expect(made).toBe(5 * 300);
    expect(waiting).toEqual([]);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(100);
  });

  it("claims with as much work, whatever waits or may not be sent", async () => {
    await addWebhooks(20);
    const due = "wh_00000" as WebhookId;
    const [waiting, paused, capped] = ["wh_00001", "wh_00002", "wh_00003"] as WebhookId[];
    await store.updateWebhook(capped!, { maxInFlight: 1 });
    await store.deactivateWebhook(paused!, "Paused.");
    const fill = async (from: number, to: number): Promise<void> => {
      for (let i = from; i < to; i += 500) {
        const ids = Array.from({ length: Math.min(500, to - i) }, (_, j) => i + j);
        await Promise.all(
          ids.flatMap((n) =>
            [waiting!, capped!].map((only) => store.dispatch(messageOf(`${only}:${n}`), { only })),
          ),
        );
      }
      // Claimed, and not due before the lease has ended.
      while ((await store.claim({ ...EVERYTHING, limit: 5_000, perOrigin: 5_000 })).length > 0);
    };
    const claimOne = async (n: number): Promise<number> => {
      await store.dispatch(messageOf(`due:${n}`), { only: due });
      return commandsOf(async () => {
        const claims = await store.claim({ ...EVERYTHING, limit: 16, perOrigin: 16 });
        expect(claims.map(({ webhookId }) => webhookId)).toEqual([due]);
      });
    };
    await fill(0, 10);
    await claimOne(0);
    const few = await claimOne(1);
    await fill(10, 4_000);
    await claimOne(2);
    const many = await claimOne(3);
    expect(many).toBeLessThanOrEqual(few + 2);
  });
});
