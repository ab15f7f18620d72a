// What is special about Redis, without an engine: what every store does is in ../conformance.
import { randomBytes } from "node:crypto";
import { startProxy, type TcpProxy } from "@fencepost/simulator";
import { testEventId } from "@fencepost/token";
import { Redis } from "ioredis";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, test } from "vitest";
import { emptyRedis, hasRedis, startRedis } from "../../__tests__/support/redisServer.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { EventContentMismatchError, type Message } from "../../message/payload.ts";
import { messageOf } from "../conformance/conformingStore.ts";
import {
  DELIVERED,
  EVERYTHING,
  ended,
  LEASE_MS,
  REFUSED,
  secretOf,
  webhookOf,
} from "../conformance/deliverySteps.ts";
import type { Delivery, RecordedAttempt, ReplayPage } from "../deliveryStore.ts";
import type { WebhookId } from "../webhook.ts";
import { InvalidPrefixError, InvalidWebhookIdError } from "./errors.ts";
import { CLAIM, RECORD } from "./lua/claims.ts";
import { DISPATCH } from "./lua/dispatching.ts";
import { ROTATE_SECRET } from "./lua/webhooks.ts";
import { type RedisDeliveryStore, redisStore } from "./redisStore.ts";

describe.skipIf(!hasRedis)("a store in Redis", () => {
  let server: Awaited<ReturnType<typeof startRedis>>;
  let client: Redis;
  let store: RedisDeliveryStore;
  const closing: (() => Promise<unknown>)[] = [];
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
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });

  /** The same store as another process has it, over a connection that can break. */
  async function openThroughProxy(): Promise<{
    readonly proxy: TcpProxy;
    readonly other: RedisDeliveryStore;
  }> {
    const proxy = await startProxy({ targetPort: server.port });
    const connection = new Redis(proxy.port, "127.0.0.1", { retryStrategy: () => 10 });
    connection.on("error", () => {}); // it is cut on purpose
    closing.push(proxy.close, async () => connection.disconnect());
    const other = redisStore(connection);
    await other.listUntold();
    return { proxy, other };
  }

  const add = (id: string, overrides: Parameters<typeof webhookOf>[1] = {}) =>
    store.addWebhook(webhookOf(id, overrides));
  const dispatch = async (message: Message, only?: WebhookId): Promise<readonly Delivery[]> =>
    (await store.dispatch(message, only ? { only } : {})).created;

  async function attemptNext(): Promise<RecordedAttempt> {
    const [claimed] = await store.claim({ ...EVERYTHING, limit: 1 });
    const [recorded] = await store.recordAttempts(claimed!.fence, [claimed!.id], LEASE_MS);
    return recorded!;
  }

  async function deliverNext(result = DELIVERED): Promise<RecordedAttempt> {
    const recorded = await attemptNext();
    await store.finish(recorded.fence, [ended(recorded, result)]);
    return recorded;
  }

  describe("a body", () => {
    test.each<readonly [string, Buffer]>([
      ["any bytes", randomBytes(4_096)],
      ["every byte", Buffer.from(Array.from({ length: 256 }, (_, i) => i))],
      ["line breaks and NUL", Buffer.from("\n\0\n\n")],
      ["bytes that are no UTF-8", Buffer.from([0xff, 0xfe, 0xc3, 0x28])],
      ["nothing", Buffer.alloc(0)],
    ])("of %s is attempted as it is, now and after a failure", async (_what, body) => {
      await add("wh_a");
      const message = { ...messageOf("order:1"), body };
      await dispatch(message);
      expect((await deliverNext(REFUSED)).body.equals(body)).toBe(true);
      const [failed] = await store.deliveriesOf(message.eventId);
      await store.redeliver(failed!.id);
      expect((await attemptNext()).body.equals(body)).toBe(true);
    });
  });

  describe("messages of callers", () => {
    const range = (page: Partial<ReplayPage> = {}): ReplayPage => ({
      from: new Date("2026-01-01T00:00:00Z"),
      to: new Date("2027-01-01T00:00:00Z"),
      limit: 100,
      ...page,
    });
    const at = (id: string, day: number): Message =>
      messageOf(id, { occurredAt: `2026-01-${String(day).padStart(2, "0")}T00:00:00Z` });

    it("are replayed by the time of their events, page by page, and tests are not", async () => {
      const ids = Array.from({ length: 9 }, (_, i) => `order:${i}`);
      for (const [i, id] of ids.entries()) await dispatch(at(id, 9 - i));
      const { id } = await add("wh_late");
      const probe = messageOf(testEventId(new Uint8Array(16)), { occurredAt: "2026-01-05T00:00:00Z" });
      expect((await dispatch(probe, id)).length).toBe(1);
      const seen: number[] = [];
      let after: string | undefined;
      for (let page = 0; page < 10; page++) {
        const report = (await store.replay(id, range({ limit: 4, ...(after && { after }) })))!;
        seen.push(report.created);
        if (report.next === null) break;
        after = report.next;
      }
      expect(seen).toEqual([4, 4, 1]);
      expect(await store.replay(id, range())).toMatchObject({ created: 0, existing: 9, next: null });
      expect((await store.listDeliveries(id, {}, { limit: 100 })).length).toBe(10);
    });

    it("are replayed from a time on, and not to its end", async () => {
      for (const day of [1, 2, 3, 4]) await dispatch(at(`order:${day}`, day));
      const { id } = await add("wh_late");
      const [from, to] = [new Date("2026-01-02T00:00:00Z"), new Date("2026-01-04T00:00:00Z")];
      expect(await store.replay(id, range({ from, to }))).toMatchObject({ created: 2 });
      const made = await store.listDeliveries(id, {}, { limit: 10 });
      expect(made.map(({ eventId }) => eventId).sort()).toEqual(["order:2", "order:3"]);
    });

    it("go to a strict webhook in the order of the calls, over all shards", async () => {
      await add("wh_a", { ordering: "strict" });
      const ids = Array.from({ length: 40 }, (_, i) => `order:${(i * 7) % 40}`);
      for (const id of ids) await dispatch(messageOf(id));
      const order: string[] = [];
      for (const _ of ids) order.push((await deliverNext()).eventId);
      expect(order).toEqual(ids);
    });

    it("keep their order after the counter was lost: it goes on with the time", async () => {
      await add("wh_a", { ordering: "strict" });
      await dispatch(messageOf("order:1"));
      await client.hdel("{fp:0}:numbers", "position");
      await dispatch(messageOf("order:2"));
      expect((await deliverNext()).eventId).toBe("order:1");
    });

    it("are remembered by their content as long as a delivery of them is there", async () => {
      await add("wh_a", { onUnknown: "hold" });
      await dispatch(messageOf("order:1"));
      for (let round = 0; round < 3; round++) {
        await store.prune({ before: new Date(Date.now() + 1_000 * round), limit: 100 });
      }
      const other = store.dispatch(messageOf("order:1", { data: "other" }), {});
      await expect(other).rejects.toThrow(EventContentMismatchError);
      await deliverNext();
      const pruned = await store.prune({ before: new Date(Date.now() + 60_000), limit: 100 });
      expect(pruned).toEqual({ deliveries: 1, messages: 1, done: true });
      expect(await client.keys("*:messages")).toEqual([]);
      expect(await client.keys("*:contents")).toEqual([]);
    });
  });

  it("leaves nothing of what was pruned", async () => {
    const { id } = await add("wh_a");
    const before = new Set(await client.keys("*"));
    for (let i = 0; i < 5; i++) {
      await dispatch(messageOf(`order:${i}`));
      await deliverNext(REFUSED);
    }
    const [last] = await store.listDeliveries(id, {}, { limit: 1 });
    await store.prune({ before: new Date(Date.now() + 60_000), limit: 100 });
    // A page after what is gone has nothing.
    expect(await store.listDeliveries(id, {}, { limit: 10, after: last!.id })).toEqual([]);
    await store.claim(EVERYTHING); // puts the lane right
    const left = (await client.keys("*")).filter((key) => !before.has(key));
    expect(left.filter((key) => !key.endsWith(":numbers"))).toEqual([]);
  });

  describe("two callers", () => {
    it("of whom the first is held up before its deliveries make one delivery, the same for both", async () => {
      await add("wh_a");
      const { proxy, other } = await openThroughProxy();
      // Its message is on record; its deliveries do not come through before the other caller has made them.
      const held = new Promise<void>((resolve) => {
        proxy.cutWhen((chunk, direction) => {
          if (direction !== "up" || !chunk.includes(DISPATCH.sha)) return false;
          proxy.pause();
          resolve();
          return true;
        });
      });
      const first = other.dispatch(messageOf("order:1"), {});
      await held;
      const second = await store.dispatch(messageOf("order:1"), {});
      expect(second).toMatchObject({ created: [{ webhookId: "wh_a" }], existing: [] });
      proxy.resume();
      expect(await first).toEqual({ created: [], existing: second.created, forgotten: [] });
      expect((await store.claim(EVERYTHING)).length).toBe(1);
    });

    it("of whom one got no answer, and asks again, have one delivery", async () => {
      await add("wh_a");
      const { proxy, other } = await openThroughProxy();
      proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes(DISPATCH.sha), {
        deliver: true,
      });
      const { created, existing } = await other.dispatch(messageOf("order:1"), {});
      expect([...created, ...existing]).toMatchObject([{ webhookId: "wh_a", state: "pending" }]);
      expect((await store.claim(EVERYTHING)).length).toBe(1);
    });
  });

  describe("a worker whose connection breaks", () => {
    it("before the answer to its claim holds what it does not know of until the lease ends", async () => {
      await add("wh_a");
      await dispatch(messageOf("order:1"));
      const { proxy, other } = await openThroughProxy();
      proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes(CLAIM.sha), { deliver: true });
      expect(await other.claim({ ...EVERYTHING, leaseMs: 300 })).toEqual([]);
      let claims = await store.claim(EVERYTHING);
      await waitUntil(
        async () => {
          claims = claims.length > 0 ? claims : await store.claim(EVERYTHING);
          return claims.length > 0;
        },
        { what: "the lease has ended" },
      );
      expect(claims).toMatchObject([{ interrupted: false }]);
    });

    it("before the answer to its attempt is told to send nothing, and the attempt is on record", async () => {
      await add("wh_a");
      const [made] = await dispatch(messageOf("order:1"));
      const { proxy, other } = await openThroughProxy();
      const [claimed] = await other.claim(EVERYTHING);
      proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes(RECORD.sha), {
        deliver: true,
      });
      expect(await other.recordAttempts(claimed!.fence, [claimed!.id], 1)).toEqual([]);
      expect(await store.listAttempts(made!.id)).toMatchObject([{ number: 1, outcome: null }]);
      await waitUntil(async () => (await store.claim(EVERYTHING))[0]?.interrupted === true, {
        what: "the lease has ended",
      });
    });

    it("and whose claim comes late can attempt nothing that another holds", async () => {
      await add("wh_a");
      const [made] = await dispatch(messageOf("order:1"));
      const [late] = await store.claim({ ...EVERYTHING, leaseMs: 1 });
      const { other } = await openThroughProxy();
      let held = await other.claim(EVERYTHING);
      await waitUntil(
        async () => {
          held = held.length > 0 ? held : await other.claim(EVERYTHING);
          return held.length > 0;
        },
        { what: "another worker has claimed it" },
      );
      const both = await Promise.all([
        store.recordAttempts(late!.fence, [made!.id], LEASE_MS),
        other.recordAttempts(held[0]!.fence, [made!.id], LEASE_MS),
      ]);
      expect(both.map(({ length }) => length)).toEqual([0, 1]);
    });
  });

  it("rotates a secret once when the answer is lost and the client asks again", async () => {
    const { id } = await add("wh_a");
    const { proxy, other } = await openThroughProxy();
    proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes(ROTATE_SECRET.sha), {
      deliver: true,
    });
    await other.rotateSecret(id, secretOf(9), 60_000);
    const { secrets } = (await store.findWebhook(id))!;
    expect(secrets.map(({ secret }) => secret)).toEqual([secretOf(9), secretOf(1)]);
  });

  it("goes on when the server has lost its scripts", async () => {
    await add("wh_a");
    await client.script("FLUSH");
    expect((await dispatch(messageOf("order:1"))).length).toBe(1);
    await client.script("FLUSH");
    expect((await deliverNext()).eventId).toBe("order:1");
  });

  it("keeps stores with different prefixes apart", async () => {
    const others = redisStore(client, { prefix: "other" });
    await others.addWebhook(webhookOf("wh_other"));
    expect(await store.listWebhooks({ limit: 10 })).toEqual([]);
    expect((await others.dispatch(messageOf("order:1"), {})).created.length).toBe(1);
    expect(await store.claim(EVERYTHING)).toEqual([]);
  });

  test.each(["", "a{b", "a}b", "a b", "a".repeat(65)])("refuses %j as a prefix", (prefix) => {
    expect(() => redisStore(client, { prefix })).toThrow(InvalidPrefixError);
  });

  test.each(["", "wh|1", "wh}", "wh 1", "a".repeat(65)])("refuses %j as the id of a webhook", async (id) => {
    await expect(add(id)).rejects.toThrow(InvalidWebhookIdError);
    expect(await client.keys("*")).toEqual([]);
  });
});
