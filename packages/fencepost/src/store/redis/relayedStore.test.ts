// What is special about an engine's outbox before Redis: servers that are lost, and parts of a cluster that are away.
import { Cluster, Redis } from "ioredis";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { emptyDeliveryTables } from "../../__tests__/support/deliveryTables.ts";
import { hasRedis, startRedis, startRedisCluster } from "../../__tests__/support/redisServer.ts";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { emittedMessage as emitted, messageOf } from "../conformance/conformingStore.ts";
import { DELIVERED, EVERYTHING, ended, LEASE_MS, webhookOf } from "../conformance/deliverySteps.ts";
import type { DeliveryStore } from "../deliveryStore.ts";
import { type Database, openDatabase } from "../postgres/database.ts";
import { insertMessages } from "../postgres/messages.ts";
import { migrate } from "../postgres/migrate.ts";
import type { WebhookId } from "../webhook.ts";
import { catchUpOn, nextCatchUps } from "./dispatching.ts";
import { DispatchIncompleteError } from "./errors.ts";
import { redisStore } from "./redisStore.ts";
import { relayedStore } from "./relayedStore.ts";
import { shardOf } from "./shards.ts";

describe.skipIf(!hasRedis)("an outbox before Redis", () => {
  let testDatabase: TestDatabase;
  let database: Database;
  const closing: (() => unknown)[] = [];
  beforeAll(async () => {
    testDatabase = await createTestDatabase();
    database = openDatabase(testDatabase.url);
    await migrate(database);
  });
  afterAll(async () => {
    await database.close();
    await testDatabase.drop();
  });
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
    await emptyDeliveryTables(database);
    await database.query("DELETE FROM fencepost.relay");
  });

  async function openStore(): Promise<{
    readonly server: Awaited<ReturnType<typeof startRedis>>;
    readonly client: Redis;
    readonly store: DeliveryStore<never>;
  }> {
    const server = await startRedis();
    const client = new Redis(server.url, { retryStrategy: () => 20 });
    client.on("error", () => {}); // the server is killed on purpose
    closing.push(server.stop, () => client.disconnect());
    return { server, client, store: relayedStore(database, redisStore(client)) };
  }

  const emit = (...numbers: number[]): Promise<unknown> =>
    database.transaction((client) =>
      insertMessages(
        client,
        numbers.map((n) => emitted(n)),
        "emitted",
        "orders",
      ),
    );
  const waiting = async (): Promise<readonly string[]> => {
    const { rows } = await database.query<{ event_id: string }>(
      "SELECT event_id FROM fencepost.outbox ORDER BY position",
    );
    return rows.map(({ event_id }) => event_id);
  };
  const idsOf = (...numbers: number[]): readonly string[] => numbers.map((n) => emitted(n).eventId);

  /** Sends everything that is due; the events, in that order. */
  async function sendAll(store: DeliveryStore<never>): Promise<readonly string[]> {
    const sent: string[] = [];
    for (const { fence, id } of await store.claim(EVERYTHING)) {
      const [recorded] = await store.recordAttempts(fence, [id], LEASE_MS);
      await store.finish(fence, [ended(recorded!, DELIVERED)]);
      sent.push(recorded!.eventId);
    }
    return sent;
  }

  it("relays again what a server that was started anew has lost, and sends nothing twice that it still has", async () => {
    const { server, client, store } = await openStore();
    const webhook = await store.addWebhook(webhookOf("wh_a"));
    await emit(1, 2);
    await store.fanOut({ messages: 10, webhooks: 10 });
    expect((await sendAll(store)).length).toBe(2);
    await client.save(); // what comes after it will be lost
    await emit(3, 4);
    await store.fanOut({ messages: 10, webhooks: 10 });
    expect(await waiting()).toEqual([]);
    await server.kill();
    await server.restart();
    expect((await store.listDeliveries(webhook.id, {}, { limit: 10 })).length).toBe(2);

    await emit(5);
    const { deliveries } = await store.fanOut({ messages: 10, webhooks: 10 });
    expect(deliveries).toBe(3);
    expect(await waiting()).toEqual([]);
    expect([...(await sendAll(store))].sort()).toEqual([...idsOf(3, 4, 5)].sort());
    expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 0, deliveries: 0 });
  });

  it("relays nothing again while the servers are the same", async () => {
    const { store } = await openStore();
    await store.addWebhook(webhookOf("wh_a"));
    await emit(1);
    await store.fanOut({ messages: 10, webhooks: 10 });
    for (let step = 0; step < 3; step++) {
      expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 0, deliveries: 0 });
    }
  });

  it("relays again what was relayed within the hour, however old it is, and not what was before", async () => {
    const { server, store } = await openStore();
    const relayed = async (n: number, age: string): Promise<void> => {
      await emit(n);
      await database.query(
        `UPDATE fencepost.messages SET created_at = now() - $1::interval WHERE event_id = $2`,
        [age, emitted(n).eventId],
      );
      await store.fanOut({ messages: 10, webhooks: 10 });
    };
    const hourPasses = (): Promise<unknown> =>
      database.query("UPDATE fencepost.relay SET since = since - interval '61 minutes'");
    await relayed(1, "9 days");
    await hourPasses();
    await relayed(2, "1 day");
    await hourPasses();
    await relayed(3, "5 days"); // it had waited in the outbox
    await relayed(4, "1 minute");
    await server.kill();
    await server.restart();
    await store.addWebhook(webhookOf("wh_a", {}));
    const { messages } = await store.fanOut({ messages: 10, webhooks: 10 });
    expect(messages).toBe(3);
    expect(await waiting()).toEqual([]);
  });

  it("does not send again what was relayed again and had been pruned", async () => {
    const { server, client, store } = await openStore();
    await store.addWebhook(webhookOf("wh_a"));
    await emit(1);
    await store.fanOut({ messages: 10, webhooks: 10 });
    await sendAll(store);
    await store.prune({ before: new Date(Date.now() + 60_000), limit: 100 });
    // Its body is there: another webhook may still be offered it.
    await database.query("INSERT INTO fencepost.message_bodies VALUES ($1, $2) ON CONFLICT DO NOTHING", [
      emitted(1).eventId,
      emitted(1).body,
    ]);
    await client.save();
    await server.kill();
    await server.restart();
    expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 1, deliveries: 0 });
    expect(await waiting()).toEqual([]);
  });

  it("prunes the body of a message whose transaction ended after that of one behind it", async () => {
    const { store } = await openStore();
    const bodies = async (): Promise<number> =>
      (await database.query("SELECT FROM fencepost.message_bodies")).rows.length;
    await database.transaction(async (client) => {
      await insertMessages(client, [emitted(1)], "emitted", "orders");
      await emit(2);
      expect(await store.prune({ before: new Date(Date.now() - 3_600_000), limit: 10 })).toMatchObject({
        done: true,
      });
    });
    await store.fanOut({ messages: 10, webhooks: 10 });
    expect(await bodies()).toBe(2);
    await store.prune({ before: new Date(Date.now() + 3_600_000), limit: 10 });
    expect(await bodies()).toBe(0);
  });

  it("takes a message out of the outbox whose body was pruned, and the others reach their webhooks", async () => {
    const { store } = await openStore();
    await store.addWebhook(webhookOf("wh_a"));
    await store.addWebhook(webhookOf("wh_b", { filter: { n: 2 } }));
    await store.catchUp(10);
    await emit(1, 2);
    await database.query("DELETE FROM fencepost.message_bodies WHERE event_id = $1", [emitted(1).eventId]);
    expect(await store.fanOut({ messages: 10, webhooks: 10 })).toEqual({ messages: 2, deliveries: 2 });
    expect(await waiting()).toEqual([]);
    expect(await sendAll(store)).toEqual([...idsOf(2), ...idsOf(2)]);
  });

  it("does not believe a catch-up that began before its webhook was paused and activated again", async () => {
    const { client, store } = await openStore();
    const { shards } = redisStore(client);
    const { id } = await store.addWebhook(webhookOf("wh_a"));
    const [begun] = await nextCatchUps(shards);
    await store.deactivateWebhook(id, "Paused.");
    await emit(1);
    await store.fanOut({ messages: 10, webhooks: 10 });
    await store.activateWebhook(id, "deliver");
    // It saw no message, so that for it there is no more to catch up on.
    expect(await catchUpOn(shards, begun!, [], null)).toBe(undefined);
    while ((await store.catchUp(10)).messages > 0);
    expect(await sendAll(store)).toEqual(idsOf(1));
  });

  it("has no webhook that catches up wait for the end of another, of its shard or not", async () => {
    const { store } = await openStore();
    await emit(...Array.from({ length: 60 }, (_, i) => i));
    await store.fanOut({ messages: 100, webhooks: 10 });
    const ids = Array.from({ length: 100 }, (_, i) => `wh_${i}` as WebhookId);
    const [first, second] = ids.filter((id) => shardOf(id) === shardOf("wh_0"));
    const webhooks = [first!, second!, ids.find((id) => shardOf(id) !== shardOf("wh_0"))!];
    for (const id of webhooks) await store.addWebhook(webhookOf(id));
    // One message of one webhook each. Drawn anew each time: that one is never drawn is as good as impossible.
    for (let step = 0; step < 100; step++) await store.catchUp(1);
    const caughtUp = await store.countWaiting(webhooks);
    for (const id of webhooks) expect(caughtUp.get(id)).toBeGreaterThan(0);
  });

  it("keeps a message in the outbox until Redis has all of its deliveries", async () => {
    const { server, client, store } = await openStore();
    await store.addWebhook(webhookOf("wh_a"));
    await client.save();
    await store.fanOut({ messages: 10, webhooks: 10 });
    await emit(1);
    await server.kill();
    const relaying = store.fanOut({ messages: 10, webhooks: 10 });
    expect(await waiting()).toEqual(idsOf(1));
    await server.restart();
    expect(await relaying).toMatchObject({ deliveries: 1 });
    expect(await waiting()).toEqual([]);
  });

  it("lets a strict webhook have what is in the outbox only because others have not", async () => {
    const { store } = await openStore();
    for (const id of ["wh_a", "wh_b", "wh_c"]) await store.addWebhook(webhookOf(id, { ordering: "strict" }));
    await store.catchUp(10);
    await emit(1, 2);
    await store.fanOut({ messages: 1, webhooks: 1 });
    expect(await waiting()).toEqual(idsOf(1, 2));
    const [claimed, ...others] = await store.claim(EVERYTHING);
    expect(others).toEqual([]);
    expect(await store.findDelivery(claimed!.id)).toMatchObject({ eventId: emitted(1).eventId });
    await store.release(claimed!.fence, [claimed!.id]);
    expect(await store.claim({ ...EVERYTHING, only: claimed!.id })).toMatchObject([{ id: claimed!.id }]);
  });

  it("comes to the end of a catch-up and of a replay, however the database shows dates", async () => {
    const url = new URL(testDatabase.url);
    url.searchParams.set("options", "-c datestyle=SQL,DMY -c timezone=Europe/Amsterdam");
    const german = openDatabase(url.href);
    closing.push(german.close);
    const { client } = await openStore();
    const store = relayedStore(german, redisStore(client));
    await emit(1, 2, 3);
    await store.fanOut({ messages: 10, webhooks: 10 });
    const { id } = await store.addWebhook(webhookOf("wh_a"));
    const reports = [await store.catchUp(2), await store.catchUp(2), await store.catchUp(2)];
    expect(reports.map(({ deliveries }) => deliveries)).toEqual([2, 1, 0]);
    const page = { from: new Date(0), to: new Date(9e12), limit: 2 };
    const first = await store.replay(id, page);
    expect(first).toMatchObject({ existing: 2 });
    expect(await store.replay(id, { ...page, after: first!.next! })).toMatchObject({
      existing: 1,
      next: null,
    });
  });

  it("dispatches what a projection made from its record, and knows other content", async () => {
    const { store } = await openStore();
    await emit(1);
    await store.fanOut({ messages: 10, webhooks: 10 });
    await store.addWebhook(webhookOf("wh_a"));
    const { created } = await store.dispatch(emitted(1), {});
    expect(created).toMatchObject([{ webhookId: "wh_a", eventId: emitted(1).eventId }]);
    expect(await store.dispatch(emitted(1), {})).toEqual({ created: [], existing: created, forgotten: [] });
    const other = store.dispatch(emitted(1, { data: "other" }), {});
    await expect(other).rejects.toMatchObject({ name: "EventContentMismatchError" });
  });

  it("with a master of the cluster away, tells what was made of a message, and dispatching again makes the rest", async () => {
    const cluster = await startRedisCluster(["--cluster-require-full-coverage", "no"]);
    closing.push(cluster.stop);
    const client = new Cluster([...cluster.urls], {
      redisOptions: { maxRetriesPerRequest: 0 },
      maxRedirections: 1,
    });
    client.on("error", () => {}); // a master is killed on purpose
    closing.push(() => client.disconnect());
    const store = redisStore(client);
    const ids = Array.from({ length: 12 }, (_, i) => `wh_${i}`);
    for (const id of ids) await store.addWebhook(webhookOf(id));
    // One that holds webhooks, and neither the message nor the counters.
    const slotOf = async (shard: number): Promise<number> =>
      Number(await client.nodes("master")[0]!.call("CLUSTER", "KEYSLOT", `{fp:${shard}}:x`));
    const masterOf = async (shard: number): Promise<number> =>
      Math.floor(((await slotOf(shard)) * 3) / 16_384);
    const message = messageOf("order:1");
    const needed = new Set([await masterOf(0), await masterOf(shardOf(message.eventId))]);
    const away = [0, 1, 2].find((master) => !needed.has(master))!;
    const lost = new Set<string>();
    for (const id of ids) if ((await masterOf(shardOf(id))) === away) lost.add(id);
    expect(lost.size).toBeGreaterThan(0);
    await Promise.all(client.nodes("master").map((master) => master.save()));

    await cluster.masters[away]!.kill();
    const dispatching = store.dispatch(message, {});
    await expect(dispatching).rejects.toThrow(DispatchIncompleteError);
    const { report } = (await dispatching.catch((error: unknown) => error)) as DispatchIncompleteError;
    const made = report.created.map(({ webhookId }) => webhookId);
    expect(made).toEqual(ids.filter((id) => !lost.has(id)).sort());
    // Those that are there are sent meanwhile.
    expect((await store.claim(EVERYTHING)).length).toBe(made.length);

    await cluster.masters[away]!.restart();
    let again: Awaited<ReturnType<typeof store.dispatch>> | undefined;
    await waitUntil(
      async () => {
        again = await store.dispatch(message, {}).catch(() => undefined);
        return again !== undefined;
      },
      { what: "the master is back" },
    );
    const pairs = [...again!.created, ...again!.existing].map(({ webhookId }) => webhookId);
    expect(pairs.sort()).toEqual([...ids].sort());
    expect((await store.claim(EVERYTHING)).length).toBe(lost.size);
  });
});
