// npm run bench:deliver -- --json
// Deliveries a second through each store, next to a bare undici loop that signs and posts the same bodies to the same
// endpoint with as many connections and keeps nothing; and the time from due to sent at a steady rate that all of
// them can keep. The endpoint is a process of its own; databases, endpoint and sender share the machine.
import { spawn } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import type { EventId } from "@fencepost/token";
import { createLog } from "fencepost";
import { Pool } from "undici";
import { startDeliverLoop } from "../packages/fencepost/src/deliver/deliverLoop.ts";
import { attemptHeaders } from "../packages/fencepost/src/deliver/sign.ts";
import { buildMessage, type Message } from "../packages/fencepost/src/message/payload.ts";
import type { DeliveryId, DeliveryStore } from "../packages/fencepost/src/store/deliveryStore.ts";
import { type BenchStore, benchStores, SECRET, type StoreName, webhookOf } from "./deliverStores.ts";
import { firstLine } from "./firstLine.ts";

const { values: options } = parseArgs({
  options: {
    deliveries: { type: "string", default: "10000" },
    rounds: { type: "string", default: "3" },
    rate: { type: "string", default: "100" },
    connections: { type: "string", default: "64" },
    json: { type: "boolean", default: false },
  },
});
const DELIVERIES = Number(options.deliveries);
const ROUNDS = Number(options.rounds);
const RATE = Number(options.rate);
/** Of the paced part, in seconds. */
const PACED_SECONDS = 4;
/** To the one endpoint, for every sender. */
const CONNECTIONS = Number(options.connections);
const log = createLog("error");

interface Latencies {
  readonly count: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
}
interface Measured {
  readonly perSecond: number;
  /** Milliseconds from due to sent, at {@link RATE} a second. */
  readonly dueToSent: Latencies;
}
type Sender = "bare" | StoreName;

const endpointProcess = spawn(
  process.execPath,
  [fileURLToPath(new URL("deliverEndpoint.ts", import.meta.url))],
  { stdio: ["ignore", "pipe", "inherit"] },
);
const stores = await benchStores();
try {
  const url = await firstLine(endpointProcess);
  const rounds: Record<Sender, Measured[]> = { bare: [], postgres: [], redis: [] };
  // Turn by turn, so that whatever else the machine does meets all of them.
  for (let round = 0; round < ROUNDS; round++) {
    rounds.bare.push(await measureBare(url, round));
    for (const name of ["postgres", "redis"] as const)
      rounds[name].push(await measureStore(stores[name], url, round));
  }
  const report = {
    deliveries: DELIVERIES,
    rounds: ROUNDS,
    rate: RATE,
    connections: CONNECTIONS,
    bare: median(rounds.bare),
    postgres: median(rounds.postgres),
    redis: median(rounds.redis),
  };
  const ratio = {
    postgres: round2(report.postgres.perSecond / report.bare.perSecond),
    redis: round2(report.redis.perSecond / report.bare.perSecond),
  };
  if (options.json) process.stdout.write(`${JSON.stringify({ ...report, ratio })}\n`);
  else console.dir({ ...report, ratio }, { depth: null });
} finally {
  endpointProcess.kill("SIGKILL");
  await stores.close();
}

/** What is sent: about one kilobyte. */
function messageOf(id: string): Message {
  const data = { due: Date.now(), order: id, note: "x".repeat(800) };
  return buildMessage({
    eventId: id as EventId,
    type: "order.paid",
    token: null,
    occurredAt: new Date().toISOString(),
    data,
  });
}

function messagesOf(prefix: string, count: number): readonly Message[] {
  return Array.from({ length: count }, (_, i) => messageOf(`${prefix}_${i}`));
}

async function measureBare(url: string, round: number): Promise<Measured> {
  const pool = new Pool(url, { connections: CONNECTIONS, pipelining: 1 });
  const messages = messagesOf(`bare_${round}`, DELIVERIES);
  const began = performance.now();
  let next = 0;
  await Promise.all(
    Array.from({ length: CONNECTIONS }, async () => {
      for (let message = messages[next++]; message; message = messages[next++]) await post(pool, message);
    }),
  );
  const perSecond = DELIVERIES / ((performance.now() - began) / 1_000);
  await latencies(url);
  const dueToSent = await paced(url, (message) => post(pool, message), `barepaced_${round}`);
  await pool.close();
  return { perSecond, dueToSent };
}

async function post(pool: Pool, message: Message): Promise<void> {
  const attempt = {
    ...message,
    id: "dlv_0" as DeliveryId,
    number: 1,
    secrets: [SECRET],
    headers: {},
    timestamp: BigInt(Math.floor(Date.now() / 1_000)),
  };
  const { body } = await pool.request({
    path: "/",
    method: "POST",
    headers: attemptHeaders(attempt),
    body: message.body,
  });
  await body.dump();
}

async function measureStore(bench: BenchStore, url: string, round: number): Promise<Measured> {
  await bench.reset();
  await bench.store.addWebhook(webhookOf(`${url}/`));
  await bench.enqueue(messagesOf(`store_${round}`, DELIVERIES));
  const { store } = bench;
  let ended = 0;
  let done = Promise.withResolvers<void>();
  let goal = DELIVERIES;
  const began = performance.now();
  const loop = startDeliverLoop({
    store,
    log,
    connectionsPerOrigin: CONNECTIONS,
    allowInsecure: true,
    onOutcome(outcome) {
      if (outcome !== "delivered") done.reject(new Error(`An attempt ended as ${outcome}.`));
      if (++ended === goal) done.resolve();
    },
  });
  try {
    await done.promise;
    const perSecond = DELIVERIES / ((performance.now() - began) / 1_000);
    await latencies(url);
    goal += RATE * PACED_SECONDS;
    done = Promise.withResolvers();
    const dueToSent = await paced(url, (message) => dispatchNow(store, loop, message), `paced_${round}`);
    await done.promise;
    return { perSecond, dueToSent };
  } finally {
    await loop.stop();
  }
}

async function dispatchNow(
  store: DeliveryStore<never>,
  loop: { wake(): void },
  message: Message,
): Promise<void> {
  await store.dispatch(message, {});
  loop.wake();
}

/** Hands over messages at a steady rate; they are due when they are handed over. */
async function paced(
  url: string,
  hand: (message: Message) => Promise<void>,
  prefix: string,
): Promise<Latencies> {
  const total = RATE * PACED_SECONDS;
  const began = performance.now();
  const handed: Promise<void>[] = [];
  for (let i = 0; i < total; i++) {
    const wait = began + (i * 1_000) / RATE - performance.now();
    if (wait > 0) await sleep(wait);
    handed.push(hand(messageOf(`${prefix}_${i}`)));
  }
  await Promise.all(handed);
  for (let tries = 0; tries < 200; tries++) {
    await sleep(100);
    const response = await fetch(`${url}/?peek=1`);
    const report = (await response.json()) as Latencies;
    if (report.count >= total) return report;
  }
  throw new Error("The endpoint did not get every message of the paced part within 20 s.");
}

async function latencies(url: string): Promise<Latencies> {
  return (await (await fetch(url)).json()) as Latencies;
}

/** The round whose speed is in the middle. */
function median(rounds: readonly Measured[]): Measured {
  const sorted = [...rounds].sort((a, b) => a.perSecond - b.perSecond);
  const middle = sorted[Math.floor((sorted.length - 1) / 2)];
  if (!middle) throw new Error("There was no round.");
  return { ...middle, perSecond: Math.round(middle.perSecond) };
}

function round2(value: number): number {
  return Math.round(value * 100) / 100;
}
