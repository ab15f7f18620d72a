import { once } from "node:events";
import { verifyWebhook } from "@fencepost/receiver";
import { type Endpoint, type Reply, startEndpoint, startProxy, type TcpProxy } from "@fencepost/simulator";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { waitForHeld } from "../__tests__/support/insertGate.ts";
import { startScript } from "../__tests__/support/scriptProcess.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import type { Loop } from "../runner/runner.ts";
import { messageOf } from "../store/conformance/conformingStore.ts";
import type { Delivery, DeliveryId, NewWebhook, WebhookId } from "../store/deliveryStore.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { type DeliverOptions, LeaseTooShortError, startDeliverLoop } from "./deliverLoop.ts";

const SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
const HOUR_MS = 3_600_000;
const log = createLog("silent");

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await emptyDeliveryTables(database);
});

interface LoopOptions extends Partial<Omit<DeliverOptions, "store" | "log">> {
  readonly retryScheduleMs?: readonly number[];
  readonly through?: Database;
  /** Sees each group of attempts before it is put on record. */
  readonly onRecord?: (ids: readonly DeliveryId[]) => void;
}

function startLoop(loopOptions: LoopOptions = {}): Loop {
  const { retryScheduleMs = [20, 20], through = database, onRecord, ...options } = loopOptions;
  const postgres = postgresStore(through, { retryScheduleMs });
  const store: DeliverOptions["store"] = {
    ...postgres,
    recordAttempts(fence, ids, leaseMs) {
      onRecord?.(ids);
      return postgres.recordAttempts(fence, ids, leaseMs);
    },
  };
  const loop = startDeliverLoop({ store, log, pollMs: 20, allowInsecure: true, ...options });
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => {
    stopping ??= loop.stop();
    return stopping;
  };
  closing.push(stop);
  return { ...loop, stop };
}

async function openEndpoint(answer?: Parameters<Endpoint["answerWith"]>[0]): Promise<Endpoint> {
  const endpoint = await startEndpoint(answer ? { answer } : {});
  closing.push(endpoint.close);
  return endpoint;
}

async function openProxied(): Promise<{ readonly proxy: TcpProxy; readonly through: Database }> {
  const url = new URL(testDatabase.url);
  const proxy = await startProxy({ targetPort: Number(url.port) });
  closing.push(proxy.close);
  url.host = `127.0.0.1:${proxy.port}`;
  const through = openDatabase(url.href);
  closing.push(through.close);
  return { proxy, through };
}

let webhooks = 0;
async function addWebhook(url: string, overrides: Partial<NewWebhook> = {}): Promise<WebhookId> {
  const id = `wh_${++webhooks}` as WebhookId;
  const webhook = { url, types: ["*"], secrets: [SECRET], description: "", onUnknown: "resend" } as const;
  await postgresStore(database).addWebhook({ id, ...webhook, ...overrides });
  return id;
}

let events = 0;
/** Dispatches so many messages. Returns all their deliveries. */
async function dispatch(count = 1): Promise<readonly Delivery[]> {
  const deliveries: Delivery[] = [];
  for (let i = 0; i < count; i++) {
    deliveries.push(...(await postgresStore(database).dispatch(messageOf(`order:${++events}`), {})));
  }
  return deliveries;
}

async function deliveries(): Promise<readonly { readonly state: string; readonly attempts: number }[]> {
  const { rows } = await database.query<{ state: string; attempts: number }>(
    "SELECT state, attempts FROM fencepost.deliveries ORDER BY id",
  );
  return rows;
}

async function outcomes(): Promise<readonly unknown[]> {
  const { rows } = await database.query<Record<string, unknown>>(
    "SELECT number, outcome, status, late_outcome FROM fencepost.attempts ORDER BY delivery_id, number",
  );
  return rows.map((row) => Object.values(row).filter((value) => value !== null));
}

function waitForStates(expected: Readonly<Record<string, number>>): Promise<void> {
  const matches = async (): Promise<boolean> => {
    const { rows } = await database.query<{ state: string; n: number }>(
      "SELECT state, count(*)::int AS n FROM fencepost.deliveries GROUP BY 1",
    );
    return JSON.stringify(rows.map(({ state, n }) => [state, n]).sort()) === wanted;
  };
  const wanted = JSON.stringify(Object.entries(expected).sort());
  return waitUntil(matches, { what: `the deliveries are ${wanted}`, timeoutMs: 30_000 });
}

/** A loop in a process of its own. */
function startDeliverProcess(): { stop(): Promise<void> } {
  const module = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);
  const script = `
    import { openDatabase } from ${module("../store/postgres/database.ts")};
    import { postgresStore } from ${module("../store/postgres/postgresStore.ts")};
    import { createLog } from ${module("../observe/log.ts")};
    import { startDeliverLoop } from ${module("./deliverLoop.ts")};
    const database = openDatabase(process.argv[1]);
    const store = postgresStore(database);
    const log = createLog("silent");
    const loop = startDeliverLoop({ store, log, pollMs: 20, maxInFlight: 16, allowInsecure: true });
    process.stdin.once("data", async () => { await loop.stop(); await database.close(); process.exit(); });`;
  const { child } = startScript(script, [testDatabase.url]);
  const exit = once(child, "exit");
  closing.push(async () => {
    child.kill("SIGKILL");
    await exit;
  });
  return {
    async stop() {
      child.stdin?.write("stop\n");
      await exit;
    },
  };
}

const idsOf = (endpoint: Endpoint): readonly string[] =>
  endpoint.requests.map(({ headers }) => headers["webhook-id"] ?? "");

describe("deliveries", () => {
  it("are made once each by two loops here and two processes", async () => {
    let begin = (): void => {};
    const begun = new Promise<Reply>((resolve) => {
      begin = () => resolve({ status: 200 });
    });
    const endpoints = [await openEndpoint(() => begun), await openEndpoint(() => begun)];
    for (const { url } of endpoints) await addWebhook(url);
    const made = await dispatch(150);
    const processes = [startDeliverProcess(), startDeliverProcess()];
    // Each process holds 16 at the most: both are at work when 32 requests are.
    const arrived = (): number => endpoints.reduce((sum, { requests }) => sum + requests.length, 0);
    await waitUntil(() => arrived() === 32, { what: "both processes send", timeoutMs: 40_000 });
    startLoop({ maxInFlight: 16 });
    startLoop({ maxInFlight: 16 });
    begin();
    await waitForStates({ success: 300 });
    await Promise.all(processes.map(({ stop }) => stop()));
    const eventIds = [...new Set(made.map(({ eventId }) => eventId as string))].sort();
    for (const endpoint of endpoints) expect([...idsOf(endpoint)].sort()).toEqual(eventIds);
    expect((await deliveries()).every(({ attempts }) => attempts === 1)).toBe(true);
  });

  it("carry the stored bytes, verified by the receiver, under the headers of their event", async () => {
    const endpoint = await openEndpoint();
    await addWebhook(`${endpoint.url}/hook?a=1`);
    const [made] = await dispatch();
    startLoop();
    await waitForStates({ success: 1 });
    const [request] = endpoint.requests;
    expect(request).toMatchObject({ method: "POST", path: "/hook?a=1", complete: true });
    expect(request!.body.equals(messageOf(made!.eventId).body)).toBe(true);
    const { headers, body } = request!;
    expect(verifyWebhook({ headers, body, secrets: SECRET, now: new Date() })).toMatchObject({
      eventId: made!.eventId,
      attempt: 1,
    });
  });

  it("to an endpoint that is down wait for their retry, with the error on record", async () => {
    const endpoint = await startEndpoint();
    await endpoint.close();
    await addWebhook(endpoint.url);
    const [made] = await dispatch();
    startLoop({ retryScheduleMs: [HOUR_MS] });
    const store = postgresStore(database);
    await waitUntil(async () => (await store.findDelivery(made!.id))?.lastError !== null, {
      what: "it was tried",
    });
    const delivery = await store.findDelivery(made!.id);
    expect(delivery).toMatchObject({ state: "pending", attempts: 1, lastStatus: null });
    expect(delivery!.lastError).toMatch(/^ECONNREFUSED/);
    expect(delivery!.nextAt!.getTime() - Date.now()).toBeGreaterThan(HOUR_MS / 3);
    expect(await outcomes()).toEqual([[1, "not_sent"]]);
  });

  it("that are refused once and then taken succeed, with the same id and bytes, signed anew", async () => {
    const endpoint = await openEndpoint();
    endpoint.next({ status: 500 });
    await addWebhook(endpoint.url);
    await dispatch();
    startLoop();
    await waitForStates({ success: 1 });
    const [first, second] = endpoint.requests;
    expect(endpoint.requests.length).toBe(2);
    expect(second!.body.equals(first!.body)).toBe(true);
    expect(second!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
    const timestamp = (request: typeof first) => Number(request!.headers["webhook-timestamp"]);
    expect(timestamp(second)).toBeGreaterThan(timestamp(first));
    for (const { headers, body } of endpoint.requests) {
      expect(() => verifyWebhook({ headers, body, secrets: SECRET, now: new Date() })).not.toThrow();
    }
    expect(await outcomes()).toEqual([
      [1, "rejected", 500],
      [2, "delivered", 200],
    ]);
  });

  it("have failed after the last attempt of the schedule", async () => {
    const endpoint = await openEndpoint({ status: 503 });
    await addWebhook(endpoint.url);
    await dispatch();
    const seen: string[] = [];
    startLoop({ retryScheduleMs: [10, 10], onOutcome: (outcome) => seen.push(outcome) });
    await waitForStates({ failed: 1 });
    expect(endpoint.requests.length).toBe(3);
    expect(await deliveries()).toEqual([{ state: "failed", attempts: 3 }]);
    expect(seen).toEqual(["rejected", "rejected", "rejected"]);
  });

  it("to nine of ten endpoints stay as they are when the tenth is retried", async () => {
    const endpoints = await Promise.all(Array.from({ length: 10 }, () => openEndpoint()));
    for (const endpoint of endpoints) await addWebhook(endpoint.url);
    endpoints[4]!.next({ status: 503 }, { status: 503 });
    await dispatch();
    startLoop();
    await waitForStates({ success: 10 });
    expect(endpoints.map(({ requests }) => requests.length)).toEqual([1, 1, 1, 1, 3, 1, 1, 1, 1, 1]);
  });

  it("of a webhook whose endpoint is gone are paused, those that were claimed too", async () => {
    const inactive = async (): Promise<boolean> =>
      (await database.query("SELECT FROM fencepost.webhooks WHERE active")).rows.length === 0;
    const endpoint = await openEndpoint(async () => {
      // The second may leave before the answer to the first is on record, and no other.
      if (endpoint.requests.length > 1) await waitUntil(inactive, { what: "the webhook is not active" });
      return { status: 410 };
    });
    await addWebhook(endpoint.url);
    await dispatch(6);
    const loop = startLoop({ connectionsPerOrigin: 1 });
    const held = "SELECT FROM fencepost.delivery_queue WHERE fence IS NOT NULL";
    await waitUntil(async () => (await inactive()) && (await database.query(held)).rows.length === 0, {
      what: "every claim is given back",
    });
    await loop.stop();
    const failed = endpoint.requests.length;
    expect([1, 2]).toContain(failed);
    await waitForStates({ failed, pending: 6 - failed });
    await database.query("UPDATE fencepost.webhooks SET active = true");
    endpoint.answerWith({ status: 200 });
    startLoop();
    await waitForStates({ failed, success: 6 - failed });
    expect(endpoint.requests.length).toBe(6);
  });

  it("that come while a loop is idle are made at once when it is woken", async () => {
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url);
    await dispatch();
    const loop = startLoop({ pollMs: HOUR_MS });
    await waitForStates({ success: 1 });
    await dispatch();
    loop.wake();
    await waitForStates({ success: 2 });
  });
});

describe("one origin", () => {
  it("never has more requests under way than it has connections, whichever webhooks they are for", async () => {
    let underWay = 0;
    let most = 0;
    const atOnce: (() => void)[] = [];
    const endpoint = await openEndpoint(async () => {
      most = Math.max(most, ++underWay);
      // The first four wait for one another: so many do run at once.
      if (most < 4) await new Promise<void>((resolve) => atOnce.push(resolve));
      for (const go of atOnce.splice(0)) go();
      await new Promise(setImmediate);
      underWay--;
      return { status: 200 };
    });
    for (let i = 0; i < 3; i++) await addWebhook(`${endpoint.url}/${i}`);
    await dispatch(40);
    startLoop({ connectionsPerOrigin: 4 });
    await waitForStates({ success: 120 });
    expect(endpoint.requests.length).toBe(120);
    expect(most).toBe(4);
  });

  it("has no more attempts put on record than it has connections free at that moment", async () => {
    let answered = 0;
    let recorded = 0;
    let most = 0;
    const held: (() => void)[] = [];
    const endpoint = await openEndpoint(async ({ arrival }) => {
      // Three of four connections hang until the other has done the rest.
      if (arrival <= 3) await new Promise<void>((resolve) => held.push(resolve));
      answered++;
      return { status: 200 };
    });
    await addWebhook(endpoint.url);
    await dispatch(30);
    startLoop({
      connectionsPerOrigin: 4,
      onRecord(ids) {
        recorded += ids.length;
        most = Math.max(most, recorded - answered);
      },
    });
    await waitUntil(() => answered === 27, { what: "one connection does the rest" });
    for (const go of held) go();
    await waitForStates({ success: 30 });
    expect(most).toBe(4);
  });

  it("is worked off without a poll, however much is due", async () => {
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url);
    await dispatch(40);
    startLoop({ pollMs: HOUR_MS, connectionsPerOrigin: 2, maxInFlight: 4 });
    await waitForStates({ success: 40 });
  });

  it("that hangs keeps no other from being served, however many webhooks and deliveries it has", async () => {
    const hanging = await openEndpoint({ kind: "hang" });
    const serving = await openEndpoint();
    for (let i = 0; i < 5; i++) await addWebhook(`${hanging.url}/${i}`);
    await addWebhook(serving.url);
    await dispatch(20);
    startLoop({ timeoutMs: HOUR_MS, leaseMs: 2 * HOUR_MS, connectionsPerOrigin: 4, maxInFlight: 9 });
    closing.push(hanging.close);
    await hanging.waitFor(4);
    const served = async (): Promise<number> =>
      (await deliveries()).filter(({ state }) => state === "success").length;
    await waitUntil(async () => (await served()) === 20, { what: "the others are delivered" });
    await dispatch(20);
    await waitUntil(async () => (await served()) === 40, { what: "the others are delivered again" });
    // Nothing has ended there in all that time.
    expect(hanging.requests.length).toBe(4);
    expect((await deliveries()).filter(({ state }) => state === "sending").length).toBe(4);
    expect(serving.requests.length).toBe(40);
  });
});

describe("a database that goes away", () => {
  it("between a request and its answer costs nothing: the outcome is recorded once it is back", async () => {
    const { proxy, through } = await openProxied();
    const endpoint = await openEndpoint(() => {
      proxy.cut();
      proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("UPDATE fencepost.attempts"));
      return { status: 200 };
    });
    await addWebhook(endpoint.url);
    await dispatch();
    startLoop({ through });
    await waitForStates({ success: 1 });
    expect(endpoint.requests.length).toBe(1);
    expect(await outcomes()).toEqual([[1, "delivered", 200]]);
  });

  it("with the commit of an outcome, which it has made, costs nothing", async () => {
    const { proxy, through } = await openProxied();
    const endpoint = await openEndpoint(() => {
      proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("COMMIT"), { deliver: true });
      return { status: 200 };
    });
    await addWebhook(endpoint.url);
    await dispatch();
    const loop = startLoop({ through });
    await waitForStates({ success: 1 });
    await loop.stop();
    expect(endpoint.requests.length).toBe(1);
    expect(await outcomes()).toEqual([[1, "delivered", 200]]);
  });

  it("with the record of an attempt leaves one of which nothing was sent, also under hold", async () => {
    const { proxy, through } = await openProxied();
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url, { onUnknown: "hold" });
    await dispatch();
    const isRecord = (chunk: Buffer, direction: string): boolean =>
      direction === "up" && chunk.includes("INSERT INTO fencepost.attempts");
    proxy.cutWhen(isRecord, { deliver: true });
    startLoop({ through });
    await waitForStates({ success: 1 });
    expect(endpoint.requests.length).toBe(1);
    expect(await outcomes()).toEqual([
      [1, "not_sent"],
      [2, "delivered", 200],
    ]);
  });

  it("before the record of an attempt gives the claim back", async () => {
    const { proxy, through } = await openProxied();
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url);
    await dispatch();
    proxy.cutWhen(
      (chunk, direction) => direction === "up" && chunk.includes("INSERT INTO fencepost.attempts"),
    );
    startLoop({ through });
    await waitForStates({ success: 1 });
    expect(await outcomes()).toEqual([[1, "delivered", 200]]);
  });

  for (const [onUnknown, requests] of [
    ["resend", 2],
    ["hold", 1],
  ] as const) {
    it(`for longer than the lease makes the attempt unknown, and ${onUnknown} says what follows`, async () => {
      const { proxy, through } = await openProxied();
      const endpoint = await openEndpoint();
      endpoint.answerWith(() => {
        if (endpoint.requests.length === 1) proxy.pause();
        return { status: 200 };
      });
      await addWebhook(endpoint.url, { onUnknown });
      await dispatch();
      const seen: string[] = [];
      const cutOff = startLoop({ through, onOutcome: (outcome) => seen.push(outcome) });
      await endpoint.waitFor(1);
      await database.query("UPDATE fencepost.delivery_queue SET next_at = now()"); // the lease ends
      startLoop();
      await waitForStates(onUnknown === "hold" ? { in_doubt: 1 } : { success: 1 });
      proxy.resume();
      await cutOff.stop();
      expect(endpoint.requests.length).toBe(requests);
      const first = [1, "unknown", "delivered 200"];
      expect(await outcomes()).toEqual(onUnknown === "hold" ? [first] : [first, [2, "delivered", 200]]);
      expect(seen).toEqual(["stale"]);
    });
  }
});

describe("stop", () => {
  it("waits for what was sent, and gives back what was not", async () => {
    const answers: (() => void)[] = [];
    const endpoint = await openEndpoint(
      () => new Promise<Reply>((resolve) => answers.push(() => resolve({ status: 200 }))),
    );
    await addWebhook(endpoint.url);
    await dispatch(10);
    const loop = startLoop({ connectionsPerOrigin: 2 });
    await endpoint.waitFor(2);
    const stopped = loop.stop();
    const given = "SELECT FROM fencepost.delivery_queue WHERE fence IS NULL AND next_at <= now()";
    await waitUntil(async () => (await database.query(given)).rows.length === 8, {
      what: "eight are given back",
    });
    for (const answer of answers) answer();
    await stopped;
    expect(endpoint.requests.length).toBe(2);
    expect((await deliveries()).filter(({ state }) => state === "success").length).toBe(2);
    endpoint.answerWith({ status: 200 });
    startLoop();
    await waitForStates({ success: 10 });
    expect(new Set(idsOf(endpoint)).size).toBe(10);
    expect(endpoint.requests.length).toBe(10);
  });

  it("gives back what a claim brings that was under way", async () => {
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url);
    await dispatch();
    const locker = new Client({ connectionString: testDatabase.url });
    await locker.connect();
    closing.push(() => locker.end());
    await locker.query("BEGIN");
    await locker.query("LOCK TABLE fencepost.webhooks");
    const loop = startLoop();
    await waitForHeld(database, 1);
    const stopped = loop.stop();
    await locker.query("COMMIT");
    await stopped;
    expect(await deliveries()).toEqual([{ state: "pending", attempts: 0 }]);
    startLoop();
    await waitForStates({ success: 1 });
    expect(endpoint.requests.length).toBe(1);
  });

  it("ends a loop that has nothing to do", async () => {
    await startLoop({ pollMs: HOUR_MS }).stop();
  });
});

it("refuses to start with a lease that does not cover an attempt", () => {
  const start = () => startLoop({ timeoutMs: 20_000, leaseMs: 24_999 });
  expect(start).toThrow(LeaseTooShortError);
  expect(start).toThrow("24999 ms does not cover the time-out of 20000 ms and a margin of 5000 ms");
});
