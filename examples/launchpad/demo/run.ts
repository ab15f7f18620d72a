// One run: starts everything, lets it happen, kills the worker in the middle, waits for the end, audits.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { everyFault, seededRandom, startChain, startRpc } from "@fencepost/simulator";
import { createDispatcher, migrate, openDatabase, postgresStore, type WebhookInput } from "fencepost";
import { type ChainEvent, closeLedger, planActivity } from "./activity.ts";
import { audit, type Figures } from "./audit.ts";
import { CUSTOMER_TYPES, openCustomer } from "./customer.ts";
import { startDatabases } from "./databases.ts";
import { startPlainEndpoint, startReceiverEndpoint } from "./endpoints.ts";
import { gatherEvidence } from "./evidence.ts";
import type { Progress } from "./progress.ts";
import { isSettled, readState } from "./state.ts";
import { mostTravelled, traceEvent } from "./trace.ts";
import { startWorker } from "./workerProcess.ts";

export interface RunOptions {
  readonly seed: number;
  /** How many events of the launchpad's contracts go on the chain. */
  readonly events: number;
}

export interface Report extends Figures {
  /** Requests that were under way when the worker got its kill -9. */
  readonly killedAmid: { readonly plain: number; readonly receiver: number };
  /** What `fencepost trace` printed for one event. */
  readonly trace: string;
  readonly seconds: number;
}

/** Where the demo's chain is by now: a ledger every 5 seconds since the testnet's current life began. */
const FIRST_LEDGER = Math.floor((Date.now() - Date.UTC(2025, 11, 17)) / 5_000);
/** Ledgers close faster than on Stellar, where it takes 5 seconds. */
const LEDGER_MS = 150;
/** How likely each kind of fault is to meet a call to the Stellar RPC; some call in two meets one or another. */
const FAULT_RATE = 0.03;
/** The worker is killed when this share of the events is on the chain, and webhooks are under way. */
const KILL_AT = 0.45;
const KILL_LIMIT_MS = 30_000;
/** How long the last webhooks may take after the last ledger: a lease, every retry, and room. */
const SETTLE_LIMIT_MS = 60_000;

/**
 * Runs the demo and ends everything that it started, also when it fails or when `signal` aborts. Throws what
 * went wrong; a promise that was broken is no error: it is in the report.
 */
export async function runDemo(options: RunOptions, progress: Progress, signal: AbortSignal): Promise<Report> {
  const closers: (() => Promise<unknown>)[] = [];
  const ending = new AbortController();
  try {
    return await run(options, progress, AbortSignal.any([signal, ending.signal]), (close) =>
      closers.push(close),
    );
  } finally {
    ending.abort();
    progress.end();
    for (const close of closers.reverse()) {
      await close().catch((error: unknown) => progress.note(`Could not clean up: ${error}`));
    }
  }
}

async function run(
  { seed, events: eventCount }: RunOptions,
  progress: Progress,
  signal: AbortSignal,
  atEnd: (close: () => Promise<unknown>) => void,
): Promise<Report> {
  const startedAt = performance.now();
  const databases = await startDatabases(atEnd);
  signal.throwIfAborted();
  progress.note("  PostgreSQL, in a temporary folder: a database for Fencepost, and one for a customer.");

  const secret = `whsec_${randomBytes(32).toString("base64")}`;
  const plain = await startPlainEndpoint(seed);
  atEnd(plain.close);
  const receiver = await startReceiverEndpoint(seed, await openCustomer(databases.customer, secret));
  atEnd(receiver.close);
  const webhooks = await addWebhooks(databases.url, {
    plain: { url: plain.url, types: ["*"] },
    receiver: { url: receiver.url, types: CUSTOMER_TYPES, secrets: [secret] },
  });
  progress.note(
    "  Two endpoints, slow, busy and broken at times: a plain one, and one with the receiver library.",
  );

  const chain = startChain({ firstLedger: FIRST_LEDGER });
  const closeTime = closeTimesAfter(Date.now());
  chain.close({ closedAt: closeTime() });
  const rpc = await startRpc({ chain, plan: { seed, rates: everyFault(FAULT_RATE) } });
  atEnd(rpc.close);
  progress.note(
    "  A Stellar RPC that repeats, shuffles and cuts its pages, falls behind, refuses and hangs up.",
  );

  const env = { DATABASE_URL: databases.url, STELLAR_RPC_URL: rpc.url };
  const startFencepost = () => startWorker(env, join(databases.folder, "worker.log"), signal);
  let worker = await startFencepost();
  atEnd(() => worker.stop());
  progress.note(`  Fencepost, process ${worker.pid}.`);

  const events: ChainEvent[] = [];
  async function act(): Promise<void> {
    for (const ledger of planActivity(seededRandom(seed), eventCount)) {
      events.push(...closeLedger(chain, ledger, closeTime()));
      await sleep(LEDGER_MS, undefined, { signal });
    }
  }

  async function killInTheMiddle(): Promise<Report["killedAmid"]> {
    while (events.length < eventCount * KILL_AT) await sleep(20, undefined, { signal });
    const limit = performance.now() + KILL_LIMIT_MS;
    while (plain.open === 0 || receiver.open === 0) {
      if (performance.now() > limit) {
        throw new Error(`Webhooks were never under way to both endpoints at once. ${await worker.logTail()}`);
      }
      await sleep(5, undefined, { signal });
    }
    const amid = { plain: plain.open, receiver: receiver.open };
    await worker.kill();
    progress.note(
      `  kill -9 ${worker.pid}: ${amid.plain} requests were under way to the plain endpoint, ${amid.receiver} to the receiver.`,
    );
    worker = await startFencepost();
    progress.note(`  Fencepost again, process ${worker.pid}.`);
    return amid;
  }

  async function watch(happening: Promise<unknown>): Promise<void> {
    let limit: number | undefined;
    happening.then(
      () => {
        limit = performance.now() + SETTLE_LIMIT_MS;
      },
      () => {}, // it is thrown by whoever waits for both
    );
    for (;;) {
      await worker.check();
      const pipeline = await readState(databases.fencepost);
      const requests = { plain: plain.requests.length, receiver: receiver.requests.length };
      progress.show({ chain: events.length, planned: eventCount, pipeline, requests });
      if (limit !== undefined) {
        if (isSettled(pipeline, events.length) && plain.open + receiver.open === 0) return;
        if (performance.now() > limit) {
          return progress.note(`  Not everything has arrived in time. ${await worker.logTail()}`);
        }
      }
      await sleep(200, undefined, { signal });
    }
  }

  const happening = Promise.all([killInTheMiddle(), act()]);
  const [[killedAmid]] = await Promise.all([happening, watch(happening)]);
  await worker.stop();

  const evidence = await gatherEvidence({
    chain,
    ...databases,
    webhooks: {
      plain: { id: webhooks.plain, requests: plain.requests },
      receiver: { id: webhooks.receiver, requests: receiver.requests },
    },
  });
  const token = await mostTravelled(databases.fencepost);
  return {
    ...audit(events, evidence),
    killedAmid,
    trace: token ? await traceEvent(env, token, signal) : "",
    seconds: Math.round((performance.now() - startedAt) / 100) / 10,
  };
}

/** Brings the database up to date and registers the webhooks. Returns their ids. */
async function addWebhooks(
  databaseUrl: string,
  { plain, receiver }: { readonly plain: WebhookInput; readonly receiver: WebhookInput },
): Promise<{ readonly plain: string; readonly receiver: string }> {
  const database = openDatabase(databaseUrl);
  try {
    await migrate(database);
    const dispatcher = createDispatcher({
      store: postgresStore(database),
      now: () => new Date(),
      allowInsecure: true, // http on loopback
    });
    return {
      plain: (await dispatcher.addWebhook(plain)).id,
      receiver: (await dispatcher.addWebhook(receiver)).id,
    };
  } finally {
    await database.close();
  }
}

/** Close times in whole seconds, none of them before `start`: a webhook gets the events from its creation on. */
function closeTimesAfter(start: number): () => number {
  const first = Math.ceil(start / 1_000);
  return () => Math.max(first, Math.floor(Date.now() / 1_000));
}
