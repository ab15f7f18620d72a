// The loop over PostgreSQL: several processes, and a database that goes away. What it does over every store is in
// deliver.conformance.ts and doubts.conformance.ts.
import { once } from "node:events";
import { type Reply, startProxy, type TcpProxy } from "@fencepost/simulator";
import { Client } from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type ConformingPostgres, openConformingPostgres } from "../__tests__/support/conformingPostgres.ts";
import { idsOf, useDeliverers } from "../__tests__/support/deliverSteps.ts";
import { waitForHeld } from "../__tests__/support/insertGate.ts";
import { startScript } from "../__tests__/support/scriptProcess.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { openDatabase } from "../store/postgres/database.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { LeaseTooShortError } from "./deliverLoop.ts";

let postgres: ConformingPostgres;
beforeAll(async () => {
  postgres = await openConformingPostgres();
});
afterAll(() => postgres.close());

const steps = useDeliverers((options) => postgres.create(options));
const { addWebhook, dispatch, onClose, open, openEndpoint, outcomes, start, waitForStates } = steps;

/** A store whose connections can be cut. */
async function openProxied(): Promise<{
  readonly proxy: TcpProxy;
  readonly store: ReturnType<typeof postgresStore>;
}> {
  const url = new URL(postgres.url);
  const proxy = await startProxy({ targetPort: Number(url.port) });
  onClose(proxy.close);
  url.host = `127.0.0.1:${proxy.port}`;
  const through = openDatabase(url.href);
  onClose(through.close);
  return { proxy, store: postgresStore(through, { retryScheduleMs: [20, 20] }) };
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
  const { child } = startScript(script, [postgres.url]);
  const exit = once(child, "exit");
  onClose(async () => {
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

const goesUpWith =
  (text: string) =>
  (chunk: Buffer, direction: string): boolean =>
    direction === "up" && chunk.includes(text);
const isRecord = goesUpWith("INSERT INTO fencepost.attempts");
const isOutcome = goesUpWith("UPDATE fencepost.attempts");

describe("deliveries", () => {
  it("are made once each by two loops here and two processes", async () => {
    const begun = Promise.withResolvers<Reply>();
    const endpoints = [await openEndpoint(() => begun.promise), await openEndpoint(() => begun.promise)];
    for (const { url } of endpoints) await addWebhook(url);
    const made = await dispatch(150);
    const processes = [startDeliverProcess(), startDeliverProcess()];
    // Each process holds 16 at the most: both are at work when 32 requests are.
    const arrived = (): number => endpoints.reduce((sum, { requests }) => sum + requests.length, 0);
    await waitUntil(() => arrived() === 32, { what: "both processes send", timeoutMs: 40_000 });
    start({ maxInFlight: 16 });
    start({ maxInFlight: 16 });
    begun.resolve({ status: 200 });
    await waitForStates({ success: 300 });
    await Promise.all(processes.map(({ stop }) => stop()));
    const eventIds = [...new Set(made.map(({ eventId }) => eventId as string))].sort();
    for (const endpoint of endpoints) expect([...idsOf(endpoint)].sort()).toEqual(eventIds);
    expect((await outcomes()).every(([number]) => number === 1)).toBe(true);
  });
});

describe("a database that goes away", () => {
  for (const deliver of [false, true]) {
    it(`${deliver ? "once it has" : "before it has"} an outcome costs nothing: it is recorded`, async () => {
      const { proxy, store } = await openProxied();
      const endpoint = await openEndpoint(() => {
        if (!deliver) proxy.cut();
        proxy.cutWhen(isOutcome, { deliver });
        return { status: 200 };
      });
      await addWebhook(endpoint.url);
      await dispatch();
      const loop = start({ store });
      await waitForStates({ success: 1 });
      await loop.stop();
      expect(endpoint.requests.length).toBe(1);
      expect(await outcomes()).toEqual([[1, "delivered", 200]]);
    });
  }

  it("with the record of an attempt leaves one of which nothing was sent, also under hold", async () => {
    const { proxy, store } = await openProxied();
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url, { onUnknown: "hold" });
    await dispatch();
    proxy.cutWhen(isRecord, { deliver: true });
    start({ store });
    await waitForStates({ success: 1 });
    expect(endpoint.requests.length).toBe(1);
    expect(await outcomes()).toEqual([
      [1, "not_sent"],
      [2, "delivered", 200],
    ]);
  });

  it("before the record of an attempt gives the claim back", async () => {
    const { proxy, store } = await openProxied();
    const endpoint = await openEndpoint();
    await addWebhook(endpoint.url);
    await dispatch();
    proxy.cutWhen(isRecord);
    start({ store });
    await waitForStates({ success: 1 });
    expect(await outcomes()).toEqual([[1, "delivered", 200]]);
  });

  it("with what an endpoint said about a doubt has it asked again when the lease has ended", async () => {
    const { proxy, store } = await openProxied();
    const endpoint = await openEndpoint();
    endpoint.next({ kind: "resetAfterBody" });
    await addWebhook(endpoint.url, { onUnknown: "ask", retryScheduleMs: [3_600_000] });
    const [made] = await dispatch();
    proxy.cutWhen(goesUpWith("asks = asks + 1"));
    const loop = start({ store, pollMs: 3_600_000 });
    await endpoint.waitFor(2);
    await loop.stop();
    expect(await steps.stateOf(made!.id)).toBe("in_doubt after 1");
    await steps.conforming.makeDue(made!.id);
    expect(await open().attempt(made!.id)).toBe(true);
    expect(endpoint.requests.length).toBe(3);
  });

  for (const [onUnknown, requests] of [
    ["resend", 2],
    ["hold", 1],
  ] as const) {
    it(`for longer than the lease makes the attempt unknown, and ${onUnknown} says what follows`, async () => {
      const { proxy, store } = await openProxied();
      const endpoint = await openEndpoint();
      endpoint.answerWith(() => {
        if (endpoint.requests.length === 1) proxy.pause();
        return { status: 200 };
      });
      await addWebhook(endpoint.url, { onUnknown });
      const [made] = await dispatch();
      const seen: string[] = [];
      const cutOff = start({ store, onOutcome: (outcome) => seen.push(outcome) });
      await endpoint.waitFor(1);
      await steps.conforming.makeDue(made!.id); // the lease ends
      start();
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

it("gives back at its stop what a claim brings that was under way", async () => {
  const endpoint = await openEndpoint();
  await addWebhook(endpoint.url);
  const [made] = await dispatch();
  const locker = new Client({ connectionString: postgres.url });
  await locker.connect();
  onClose(() => locker.end());
  await locker.query("BEGIN");
  await locker.query("LOCK TABLE fencepost.webhooks");
  const loop = start();
  await waitForHeld(postgres.database, 1);
  const stopped = loop.stop();
  await locker.query("COMMIT");
  await stopped;
  expect(await steps.stateOf(made!.id)).toBe("pending after 0");
  start();
  await waitForStates({ success: 1 });
  expect(endpoint.requests.length).toBe(1);
});

it("refuses to start with a lease that does not cover an attempt", () => {
  const begin = () => start({ timeoutMs: 20_000, leaseMs: 24_999 });
  expect(begin).toThrow(LeaseTooShortError);
  expect(begin).toThrow("24999 ms does not cover the time-out of 20000 ms and a margin of 5000 ms");
});
