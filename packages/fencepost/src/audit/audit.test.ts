import { losesRows, type RpcServer, startChain, startRpc } from "@fencepost/simulator";
import { deriveEventId, type FencingToken, tokenFromRpcId } from "@fencepost/token";
import { Redis } from "ioredis";
import { afterEach, describe, expect, test } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { lockAssets, POOL_CONTRACT, poolsProjection } from "../__tests__/support/pools.ts";
import { startRedis } from "../__tests__/support/redisServer.ts";
import { never, noWait } from "../__tests__/support/windows.ts";
import { createDispatcher, type Dispatcher } from "../dispatch/dispatcher.ts";
import { backfill } from "../ingest/backfill.ts";
import { createLog } from "../observe/log.ts";
import { projectStep } from "../project/projectStep.ts";
import { registerProjection } from "../project/registerProjection.ts";
import { type StellarRpcSource, stellarRpcWith } from "../source/stellarRpc.ts";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import type { Database } from "../store/postgres/database.ts";
import { acquireLease, openHolder } from "../store/postgres/leases.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { redisStore } from "../store/redis/redisStore.ts";
import { relayedStore } from "../store/redis/relayedStore.ts";
import type { Webhook } from "../store/webhook.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { type AuditOptions, AuditRangeError, audit } from "./audit.ts";
import { isProven } from "./report.ts";
import { readWebhookEvents } from "./webhookEvents.ts";

const TYPE = "pool.assets_locked";
const NONE = { count: 0, listed: [] };
const EVENTS = 60;

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Line {
  readonly bench: IngestBench;
  readonly other: RpcServer;
  readonly source: StellarRpcSource;
  readonly store: DeliveryStore<never>;
  readonly dispatcher: Dispatcher<never>;
  readonly webhook: Webhook;
  readonly tokens: readonly FencingToken[];
  /** Projects what is stored and makes the deliveries. */
  go(): Promise<void>;
  audit(more?: Partial<AuditOptions>): ReturnType<typeof audit>;
}

/** A chain of so many events through every stage but the sending; one webhook takes all of them. */
async function startLine(
  count = EVENTS,
  hides: (row: { readonly id: string }) => boolean = () => false,
  openStore: (database: Database) => DeliveryStore<never> = postgresStore,
  firstLedger = 1,
): Promise<Line> {
  const chain = startChain({ firstLedger });
  lockAssets(chain, count, { perLedger: 10 });
  const bench = await openIngest(chain);
  const { database } = bench;
  const other = await startRpc({ chain });
  closing.push(bench.close, other.close);
  bench.rpc.node.hides = hides;
  const source = stellarRpcWith({ network: "testnet", urls: [bench.rpc.url, other.url] }, noWait);
  await database.query("TRUNCATE fencepost.projections, fencepost.skips CASCADE");
  await database.query("DROP SCHEMA IF EXISTS pools_v1, pools CASCADE");
  await emptyDeliveryTables(database);
  const store = openStore(database);
  const dispatcher = createDispatcher<never>({ store, now: () => new Date(), allowInsecure: true });
  const webhook = await dispatcher.addWebhook({ url: "http://127.0.0.1:9/", types: ["*"] });
  await database.query("UPDATE fencepost.webhooks SET deliver_from = '2000-01-01'");
  await bench.watch([{ contractId: POOL_CONTRACT, startLedger: firstLedger }]);
  await bench.catchUp(await bench.lead());

  const projection = poolsProjection();
  await registerProjection(database, projection, { stream: "testnet", rebuildChanged: false });
  const holder = openHolder(database.url);
  closing.push(holder.close);
  const key = { kind: "projection", name: projection.name, version: projection.version } as const;
  const term = (await acquireLease(database, key, await holder.current(), 60_000)) ?? 0n;
  const context = {
    database,
    projection,
    decoder: await loadDecoder(),
    leaseMs: 60_000,
    log: createLog("silent"),
  };
  async function go(): Promise<void> {
    for (let i = 0; (await projectStep(context, term)) === "progress"; i++) expect(i).toBeLessThan(500);
    const limits = { messages: 1_000, webhooks: 100 };
    for (let i = 0; (await store.fanOut(limits)).messages > 0; i++) expect(i).toBeLessThan(500);
    for (let i = 0; (await store.catchUp(1_000)).messages > 0; i++) expect(i).toBeLessThan(500);
  }
  await go();
  return {
    bench,
    other,
    source,
    store,
    dispatcher,
    webhook: (await store.findWebhook(webhook.id)) ?? webhook,
    tokens: [...chain.events()].map(({ id }) => tokenFromRpcId(source.chain, id)),
    go,
    audit: (more = {}) =>
      audit(database, { source, store, fromLedger: 1, throughLedger: chain.latest, signal: never, ...more }),
  };
}

const named = (token: FencingToken) => ({ token, eventId: deriveEventId(token, TYPE), type: TYPE });
const found = <Item>(...listed: Item[]) => ({ count: listed.length, listed });

describe("an audit of a range", () => {
  test("in which nothing is wrong finds nothing, and says in which state everything is", async () => {
    const { audit, webhook, bench } = await startLine();
    expect(await audit()).toEqual({
      stream: "testnet",
      source: expect.any(String),
      fromLedger: 1,
      throughLedger: bench.chain.latest,
      unreadFrom: null,
      events: { agreed: EVENTS, missing: NONE, extra: NONE, different: NONE, doubled: NONE },
      projections: [{ name: "pools", version: 1, behind: 0, stoppedToken: null }],
      messages: { count: EVENTS, missing: NONE, withoutEvent: NONE, silent: NONE },
      rerun: null,
      webhooks: [
        {
          id: webhook.id,
          active: true,
          due: EVENTS,
          states: { pending: EVENTS, sending: 0, success: 0, failed: 0, in_doubt: 0 },
          waiting: 0,
          unknown: 0,
          missing: NONE,
          doubled: NONE,
        },
      ],
      differences: 0,
    });
    expect(await audit({ fromLedger: 3, throughLedger: 4 })).toMatchObject({
      events: { agreed: 20 },
      messages: { count: 20 },
      differences: 0,
    });
    await expect(audit({ fromLedger: 900, throughLedger: 999 })).rejects.toThrow(AuditRangeError);
  });

  test("names events that are not stored, not served, changed, or stored twice", async () => {
    const { audit, bench, tokens, other, source } = await startLine();
    const { database } = bench;
    const [, deleted, changed, rehashed, hidden, doubled] = tokens as FencingToken[];
    await database.query("DELETE FROM fencepost.events WHERE token = $1", [deleted]);
    await database.query("UPDATE fencepost.events SET value = 'AAAAAQ==' WHERE token = $1", [changed]);
    await database.query("UPDATE fencepost.events SET content_hash = '' WHERE token = $1", [rehashed]);
    await database.query("ALTER TABLE fencepost.events DROP CONSTRAINT events_pkey");
    try {
      await database.query(
        `INSERT INTO fencepost.events
           (token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash)
         SELECT token, stream, 9999, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash
         FROM fencepost.events WHERE token = $1`,
        [doubled],
      );
      other.node.hides = ({ id }) => tokenFromRpcId(source.chain, id) === hidden;
      const second = source.providers[1];
      if (!second) throw new Error("There is no second provider.");
      const report = await audit({ source: second, operationsOnly: true });
      expect(report.events).toEqual({
        agreed: EVENTS - 4,
        missing: found(deleted),
        extra: found(hidden),
        different: found(changed, rehashed),
        doubled: found(doubled),
      });
      expect(report.messages.withoutEvent).toEqual(found(named(deleted as FencingToken)));
      expect(report.projections[0]?.behind).toBe(1);
      expect(report.differences).toBe(7);
    } finally {
      await database.query("DELETE FROM fencepost.events WHERE seq = 9999");
      await database.query("ALTER TABLE fencepost.events ADD PRIMARY KEY (token)");
    }
  });

  test("names a message that is missing, and deliveries that are missing or made twice", async () => {
    const { audit, bench, tokens, store, webhook } = await startLine();
    const { database } = bench;
    const [forgotten, undelivered, twice, silent] = tokens.map(named) as [
      ReturnType<typeof named>,
      ...ReturnType<typeof named>[],
    ];
    const remove = (table: string, id: string | undefined) =>
      database.query(`DELETE FROM fencepost.${table} WHERE event_id = $1`, [id]);
    await remove("messages", forgotten.eventId);
    await remove("messages", silent?.eventId);
    for (const each of [undelivered, silent]) await remove("deliveries", each?.eventId);
    await database.query(
      "ALTER TABLE fencepost.deliveries DROP CONSTRAINT deliveries_event_id_webhook_id_key",
    );
    try {
      await database.query(
        "INSERT INTO fencepost.deliveries (event_id, webhook_id, state) VALUES ($1, $2, 'failed')",
        [twice?.eventId, webhook.id],
      );
      const report = await audit();
      expect(report.messages).toEqual({
        count: EVENTS - 2,
        missing: found(forgotten),
        withoutEvent: NONE,
        silent: found({ token: silent?.token, type: TYPE }),
      });
      expect(report.webhooks[0]).toMatchObject({
        due: EVENTS - 2,
        missing: found(undelivered),
        doubled: found(twice),
      });
      expect(report.differences).toBe(3);
    } finally {
      await emptyDeliveryTables(database);
      await database.query("ALTER TABLE fencepost.deliveries ADD UNIQUE (event_id, webhook_id)");
    }
    expect(await store.listWebhooks({ limit: 1 })).toEqual([]);
  });

  test("that runs the handlers again proves what it could only list as silent, and counts each fault once", async () => {
    const { audit, bench, tokens } = await startLine();
    const [silent, delivered] = tokens.map(named);
    const rerun = { projections: [poolsProjection()] };
    expect(await audit({ rerun })).toMatchObject({
      differences: 0,
      rerun: {
        projections: [{ name: "pools", unproven: null, emitted: EVENTS, agreed: EVENTS }],
        unclaimed: NONE,
      },
    });
    await bench.database.query("DELETE FROM fencepost.messages WHERE event_id = ANY($1)", [
      [silent?.eventId, delivered?.eventId],
    ]);
    await bench.database.query("DELETE FROM fencepost.deliveries WHERE event_id = $1", [silent?.eventId]);
    expect(await audit()).toMatchObject({ messages: { silent: { count: 1 } }, differences: 1 });
    const report = await audit({ rerun });
    expect(report.rerun?.projections[0]?.missing).toEqual(found(silent, delivered));
    expect(report).toMatchObject({ messages: { silent: NONE, missing: NONE }, differences: 2 });
    expect(isProven(report)).toBe(true);
    const unproven = await audit({ rerun: { projections: [] } });
    expect(unproven).toMatchObject({ messages: { silent: { count: 1 } }, differences: 1 });
    expect(isProven(unproven)).toBe(false);
  });

  test("says what a projection has not come to, and what still waits in the outbox", async () => {
    const { audit, bench } = await startLine();
    lockAssets(bench.chain, 5);
    await bench.catchUp(await bench.lead());
    const report = await audit({ throughLedger: 1_000 });
    expect(report).toMatchObject({ events: { agreed: EVENTS + 5 }, differences: 5 });
    expect(report.projections[0]?.behind).toBe(5);
    await bench.database.query(
      "INSERT INTO fencepost.outbox (position, event_id) SELECT position, event_id FROM fencepost.messages LIMIT 3",
    );
    await bench.database.query(
      "DELETE FROM fencepost.deliveries d USING fencepost.outbox o WHERE o.event_id = d.event_id",
    );
    const [webhook] = (await audit()).webhooks;
    expect(webhook).toMatchObject({ due: EVENTS, waiting: 3, missing: NONE });
  });

  test("holds a webhook to what it takes: types, filter, and the time from which it gets events", async () => {
    const { audit, dispatcher, bench, store } = await startLine();
    const at = { url: "http://127.0.0.1:9/" };
    const none = await dispatcher.addWebhook({ ...at, types: ["another.type"] });
    const filtered = await dispatcher.addWebhook({ ...at, types: [TYPE], filter: { pool_id: "pool 3" } });
    const fresh = await dispatcher.addWebhook({ ...at, types: ["*"] });
    const paused = await dispatcher.addWebhook({ ...at, types: ["*"] });
    await dispatcher.pauseWebhook(paused.id);
    await bench.database.query(
      "UPDATE fencepost.webhooks SET deliver_from = '2000-01-01' WHERE id = ANY($1)",
      [[none.id, filtered.id, paused.id]],
    );
    await bench.database.query("DELETE FROM fencepost.catch_ups");
    const report = await audit();
    const of = (id: string) => report.webhooks.find((each) => each.id === id);
    expect(of(none.id)).toMatchObject({ due: 0 });
    expect(of(fresh.id)).toMatchObject({ due: 0 });
    expect(of(paused.id)).toMatchObject({ active: false, due: EVENTS, unknown: EVENTS, missing: NONE });
    expect(of(filtered.id)).toMatchObject({ due: 9, missing: { count: 9 } });
    expect(report.differences).toBe(9);

    await store.replay(filtered.id, { from: new Date(0), to: new Date("2100-01-01"), limit: 1_000 });
    const page = { after: { token: "", eventId: "" }, limit: 6 };
    const webhook = (await store.findWebhook(filtered.id)) ?? filtered;
    const first = await readWebhookEvents(bench.database, store, webhook, page);
    const second = await readWebhookEvents(bench.database, store, webhook, {
      ...page,
      after: first.next ?? page.after,
    });
    const listed = [...first.events, ...second.events];
    expect(first.events).toHaveLength(6);
    expect(second.next).toBeNull();
    expect(listed.map(({ token }) => token)).toEqual([...listed.map(({ token }) => token)].sort());
    expect(listed).toHaveLength(9);
    expect(listed.every(({ delivery }) => delivery?.state === "pending")).toBe(true);
  });

  test("says from where on the source could not be asked", async () => {
    const { audit, bench, source } = await startLine();
    bench.chain.retain(2);
    const report = await audit({ source: source.providers[0] ?? source });
    expect(report.unreadFrom).toBe(1);
  });
});

test("an audit of deliveries in Redis names those that are missing there", async () => {
  const redis = await startRedis();
  closing.push(redis.stop);
  const client = new Redis(redis.url);
  closing.push(async () => client.disconnect());
  // Ledgers that close after its webhook is made: here nothing sets the time back from which it gets events.
  const untilThen = Date.now() + 3_600_000 - Date.UTC(2025, 11, 17, 17);
  const firstLedger = Math.ceil(untilThen / 5_000);
  const open = (database: Database) => relayedStore(database, redisStore(client));
  const { audit, bench, dispatcher, webhook, tokens, go } = await startLine(
    EVENTS,
    () => false,
    open,
    firstLedger,
  );
  const states = { pending: EVENTS, sending: 0, success: 0, failed: 0, in_doubt: 0 };
  expect(await audit()).toMatchObject({
    events: { agreed: EVENTS },
    webhooks: [{ id: webhook.id, due: EVENTS, states, missing: NONE, unknown: 0 }],
    differences: 0,
  });

  const [message] = tokens.map(named);
  await bench.database.query("DELETE FROM fencepost.messages WHERE event_id = $1", [message?.eventId]);
  const filter = { pool_id: "pool 3" };
  const late = await dispatcher.addWebhook({ url: "http://127.0.0.1:9/", types: ["*"], filter });
  const before = await audit();
  expect(before.messages.missing).toEqual(found(message));
  expect(before.webhooks.find(({ id }) => id === late.id)).toMatchObject({ due: 9, missing: { count: 9 } });
  expect(before.differences).toBe(10);
  await go(); // what the new webhook may have is made
  expect((await audit()).differences).toBe(1);
});

const SEED = 41;

test(`an audit through another provider names each event that a node dropped at random; after a backfill it is clean, and each event has one delivery (seed ${SEED})`, async () => {
  const loses = losesRows({ seed: SEED, rate: 0.01 });
  const { audit, bench, source, go, webhook } = await startLine(1_000, loses);
  const lost = [...bench.chain.events()].filter(loses).map(({ id }) => tokenFromRpcId(source.chain, id));
  expect(lost.length).toBeGreaterThan(4);
  const second = source.providers[1];
  if (!second) throw new Error("There is no second provider.");
  const before = await audit({ source: second });
  expect(before.events).toMatchObject({ agreed: 1_000 - lost.length, missing: found(...lost), extra: NONE });
  expect(before.differences).toBe(lost.length);

  await backfill(bench.context({ source: second }), {
    fromLedger: 1,
    throughLedger: bench.chain.latest,
    signal: never,
  });
  expect((await audit({ source: second })).projections[0]?.behind).toBe(lost.length);
  await go();
  const after = await audit({ source: second });
  expect(after).toMatchObject({ events: { agreed: 1_000 }, messages: { count: 1_000 }, differences: 0 });
  expect(after.webhooks[0]).toMatchObject({ id: webhook.id, due: 1_000, states: { pending: 1_000 } });
  const { rows } = await bench.database.query("SELECT count(*)::int AS n FROM fencepost.deliveries");
  expect(rows).toEqual([{ n: 1_000 }]);
});
