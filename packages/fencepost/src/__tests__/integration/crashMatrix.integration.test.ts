// Where a worker is killed × what its webhook says about doubt × the store × the receiver's memory: how many requests
// arrive, how often the effect happens, and how the delivery ends. docs/delivery.md has the table that this makes.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { createReceiver, ensureInbox, isReceiptQuery, postgresInbox } from "@fencepost/receiver";
import { type Endpoint, type EndpointHandler, startEndpoint, startProxy } from "@fencepost/simulator";
import { Redis } from "ioredis";
import pg from "pg";
import { afterAll, describe, expect, test } from "vitest";
import { startDeliverLoop } from "../../deliver/deliverLoop.ts";
import { buildMessage } from "../../message/payload.ts";
import { createLog } from "../../observe/log.ts";
import { webhookOf } from "../../store/conformance/deliverySteps.ts";
import type { Delivery, DeliveryStore } from "../../store/deliveryStore.ts";
import { openDatabase } from "../../store/postgres/database.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";
import { redisStore } from "../../store/redis/redisStore.ts";
import type { OnUnknown } from "../../store/webhook.ts";
import { CRASH_POINTS, type CrashPoint, type WorkerOptions } from "../support/crashPoints.ts";
import { waitForHeld } from "../support/insertGate.ts";
import { hasRedis, startRedis } from "../support/redisServer.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

const WORKER = fileURLToPath(new URL("../support/crashWorker.ts", import.meta.url));
const DOCS = fileURLToPath(new URL("../../../../../docs/delivery.md", import.meta.url));
const POLICIES: readonly OnUnknown[] = ["resend", "hold", "ask"];
const KINDS = ["plain", "kept", "pruned"] as const;
type Kind = (typeof KINDS)[number];
const SECRET = `whsec_${Buffer.alloc(32, 9).toString("base64")}`;
/** Short, so that what cannot be answered comes to an end. */
const RETRY_SCHEDULE_MS = [100, 200];
/** Long: an endpoint that is slow because the machine is must not look like one that does not answer. */
const TIMEOUT_MS = 7_000;
/** As short as that allows: on Redis it is waited out. */
const LEASE_MS = 12_000;
/** What a condition is waited for, in milliseconds. */
const PATIENCE_MS = 120_000;
const DAY_MS = 86_400_000;

/** One cell: what one webhook saw of one event. */
interface Seen {
  readonly requests: number;
  /** Null at the plain endpoint, whose effects nobody counts. */
  readonly effects: number | null;
  readonly state: string;
}
type Results = Map<string, Seen>;
const keyOf = (point: CrashPoint, policy: OnUnknown, kind: Kind): string => `${point}/${policy}/${kind}`;
const results: Record<WorkerOptions["store"], Results> = { postgres: new Map(), redis: new Map() };

describe.each(["postgres", "redis"] as const)("a worker on %s that is killed", (store) => {
  test.skipIf(store === "redis" && !hasRedis).concurrent.for(CRASH_POINTS)(
    "%s: resend sends at least once, hold at most once, ask exactly once, each with one effect",
    { timeout: 4 * PATIENCE_MS },
    async (point, { expect }) => {
      for (const [key, seen] of await crashAt(store, point)) results[store].set(key, seen);
      const cell = (policy: OnUnknown, kind: Kind): Seen => {
        const seen = results[store].get(keyOf(point, policy, kind));
        if (!seen) throw new Error(`Nothing was seen of ${policy}, ${kind}.`);
        return seen;
      };
      for (const kind of KINDS) {
        expect(cell("resend", kind).requests, "resend: at least once").toBeGreaterThanOrEqual(1);
        expect(cell("hold", kind).requests, "hold: at most once").toBeLessThanOrEqual(1);
        expect(cell("ask", kind).requests, "ask: never twice").toBeLessThanOrEqual(1);
      }
      expect(cell("ask", "kept").requests, "ask: exactly once where the receiver remembers").toBe(1);
      for (const policy of ["resend", "ask"] as const) {
        expect(cell(policy, "kept").effects, `${policy}: one effect`).toBe(1);
      }
      const { requests, state } = cell("ask", "pruned");
      const wasInDoubt = point !== "before the attempt is on record";
      if (wasInDoubt)
        expect(state, "a pruned inbox is no answer: a person decides").toBe("waits for a person");
      if (point === "after the attempt is on record") expect(requests).toBe(0);
    },
  );
});

afterAll(async () => {
  const table = tableOf(results.postgres);
  process.stdout.write(`${table}\n`);
  if (results.postgres.size < CRASH_POINTS.length * POLICIES.length * KINDS.length) return; // some failed, or were not run
  expect((await readFile(DOCS, "utf8")).includes(table), "docs/delivery.md has this table").toBe(true);
  if (results.redis.size > 0) expect(tableOf(results.redis), "Redis is as PostgreSQL").toBe(table);
});

function tableOf(seen: Results): string {
  const show = (point: CrashPoint, policy: OnUnknown, kind: Kind): string => {
    const { requests = "?", effects = null, state = "?" } = seen.get(keyOf(point, policy, kind)) ?? {};
    const effect = effects === null ? "" : `, ${effects} effect${effects === 1 ? "" : "s"}`;
    return `${requests} sent${effect}: ${state}`;
  };
  return [
    "| killed | policy | plain endpoint | receiver | receiver whose inbox was pruned |",
    "|---|---|---|---|---|",
    ...CRASH_POINTS.flatMap((point) =>
      POLICIES.map(
        (policy) =>
          `| ${point} | \`${policy}\` | ${KINDS.map((kind) => show(point, policy, kind)).join(" | ")} |`,
      ),
    ),
  ].join("\n");
}

/** Kills a worker at this point of its attempts to nine webhooks, lets another take over, and tells what came of it. */
async function crashAt(storeName: WorkerOptions["store"], point: CrashPoint): Promise<Results> {
  const closing: (() => Promise<unknown>)[] = [];
  try {
    const customers = await createTestDatabase();
    closing.push(customers.drop);
    const pool = new pg.Pool({ connectionString: customers.url });
    closing.push(() => pool.end());
    await ensureInbox(pool);
    await pool.query("CREATE TABLE effects (consumer text NOT NULL, event_id text NOT NULL)");
    const { store, worker, holdOutcomes } = await openStore(storeName, closing);

    // An endpoint handles what it gets, and answers once the gate is open.
    const gate = Promise.withResolvers<void>();
    if (point !== "after the bytes left" && point !== "before the outcome is committed") gate.resolve();
    let handled = 0;
    const targets = await Promise.all(
      POLICIES.flatMap((policy) =>
        KINDS.map(async (kind) => {
          const endpoint = await startEndpoint();
          closing.push(endpoint.close);
          const consumer = `${policy}_${kind}`;
          const handle = kind === "plain" ? async () => ({ status: 200 }) : receiving(pool, consumer);
          endpoint.answerWith(async (request) => {
            const reply = await handle(request);
            handled++;
            await gate.promise;
            return reply;
          });
          const webhook = await store.addWebhook(
            webhookOf(`wh_${consumer}`, { url: `${endpoint.url}/`, onUnknown: policy, secrets: [SECRET] }),
          );
          return { policy, kind, consumer, endpoint, webhook };
        }),
      ),
    );
    const message = buildMessage({
      eventId: "order_1" as never,
      type: "order.paid",
      token: null,
      occurredAt: new Date().toISOString(),
      data: { order: 1 },
    });
    const { created } = await store.dispatch(message, {});
    expect(created).toHaveLength(targets.length);

    const process = startWorker({
      store: storeName,
      url: worker.url,
      point,
      retryScheduleMs: RETRY_SCHEDULE_MS,
      timeoutMs: TIMEOUT_MS,
      leaseMs: LEASE_MS,
    });
    closing.push(process.kill);
    const allHandled = (): Promise<void> =>
      waitUntil(() => handled === targets.length, {
        what: "every endpoint handled the event",
        timeoutMs: 30_000,
      });
    switch (point) {
      case "before the attempt is on record":
      case "after the attempt is on record":
        await process.said("at", targets.length); // each webhook is an origin, and each origin a lane
        break;
      case "after the bytes left":
        await allHandled();
        break;
      case "after the response":
        await allHandled();
        await process.said("at", 1); // outcomes are recorded one group after another: the others wait behind it
        break;
      case "before the outcome is committed": {
        await allHandled();
        await holdOutcomes.begin();
        gate.resolve();
        await process.said("at", 1);
        await holdOutcomes.held();
        break;
      }
    }
    await process.kill();
    await holdOutcomes.end();
    gate.resolve();

    for (const { kind, consumer } of targets) {
      if (kind === "pruned") await pruneInbox(pool, consumer);
    }
    await worker.leasesPassed(created);
    const loop = startDeliverLoop({
      store,
      log: createLog("silent"),
      timeoutMs: TIMEOUT_MS,
      pollMs: 50,
      allowInsecure: true,
    });
    try {
      await waitUntil(
        async () => (await Promise.all(created.map(({ id }) => store.findDelivery(id)))).every(isSettled),
        {
          what: "every delivery ended or waits for a person",
          timeoutMs: PATIENCE_MS,
        },
      );
    } finally {
      await loop.stop();
    }

    const seen: Results = new Map();
    for (const { policy, kind, consumer, endpoint, webhook } of targets) {
      const delivery = await store.findDelivery(
        created.find(({ webhookId }) => webhookId === webhook.id)!.id,
      );
      seen.set(keyOf(point, policy, kind), {
        requests: attemptsSeen(endpoint),
        effects: kind === "plain" ? null : await countEffects(pool, consumer),
        state: delivery?.state === "in_doubt" ? "waits for a person" : (delivery?.state ?? "gone"),
      });
    }
    return seen;
  } finally {
    for (const close of closing.reverse()) await close();
  }
}

function isSettled(delivery: Delivery | undefined): boolean {
  const { state, nextAt } = delivery ?? {};
  return state === "success" || state === "failed" || (state === "in_doubt" && nextAt === null);
}

/** Requests that carried the event; receipt queries are not counted. */
function attemptsSeen({ requests }: Endpoint): number {
  return requests.filter(({ headers }) => headers["webhook-id"] === "order_1").length;
}

async function countEffects(pool: pg.Pool, consumer: string): Promise<number> {
  const { rows } = await pool.query("SELECT FROM effects WHERE consumer = $1", [consumer]);
  return rows.length;
}

function receiving(pool: pg.Pool, consumer: string): EndpointHandler {
  const receiver = createReceiver({ secrets: SECRET, inbox: postgresInbox({ pool }), consumer });
  return async ({ headers, body }) => {
    const received = receiver.open({ headers, body });
    if (isReceiptQuery(received)) {
      return { status: 200, body: JSON.stringify(await receiver.answerQuery(received)) };
    }
    const { outcome } = await receiver.handle(received, (message, tx) =>
      tx.query("INSERT INTO effects VALUES ($1, $2)", [consumer, message.eventId]),
    );
    return { status: 200, body: outcome };
  };
}

/** As if the customer had pruned too early: an inbox may only forget what is not sent again. */
async function pruneInbox(pool: pg.Pool, consumer: string): Promise<void> {
  const inbox = postgresInbox({ pool });
  const later = new Date(Date.now() + 8 * DAY_MS);
  const receiver = createReceiver({ secrets: SECRET, inbox, consumer, now: () => later });
  await receiver.pruneInbox({ olderThan: new Date(Date.now() + 60_000) });
}

interface OpenedStore {
  readonly store: DeliveryStore<never>;
  readonly worker: {
    /** Where the worker reaches the store. */
    readonly url: string;
    /** Has the leases of these deliveries pass. */
    leasesPassed(deliveries: readonly Delivery[]): Promise<void>;
  };
  /** Keeps an outcome that is sent from being committed: the worker dies, and its statement with it. */
  readonly holdOutcomes: { begin(): Promise<void>; held(): Promise<void>; end(): Promise<void> };
}

async function openStore(
  name: WorkerOptions["store"],
  closing: (() => Promise<unknown>)[],
): Promise<OpenedStore> {
  if (name === "postgres") {
    const { url, drop } = await createTestDatabase();
    closing.push(drop);
    const database = openDatabase(url);
    closing.push(database.close);
    await migrate(database);
    const holder = new pg.Client({ connectionString: url });
    await holder.connect();
    closing.push(() => holder.end());
    return {
      store: postgresStore(database, { retryScheduleMs: RETRY_SCHEDULE_MS }) as DeliveryStore<never>,
      worker: {
        url,
        async leasesPassed() {
          await database.query("UPDATE fencepost.delivery_queue SET next_at = now() WHERE fence IS NOT NULL");
        },
      },
      holdOutcomes: {
        async begin() {
          await holder.query("BEGIN");
          await holder.query("SELECT FROM fencepost.delivery_queue FOR UPDATE");
        },
        held: () => waitForHeld(database, 1),
        async end() {
          // A server learns late that its client is gone, and would commit what it was sent.
          await database.query(
            `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'`,
          );
          await holder.query("ROLLBACK");
        },
      },
    };
  }
  const server = await startRedis();
  closing.push(server.stop);
  const client = new Redis(server.url);
  closing.push(async () => client.disconnect());
  const proxy = await startProxy({ targetPort: server.port });
  closing.push(proxy.close);
  return {
    store: redisStore(client, { retryScheduleMs: RETRY_SCHEDULE_MS }),
    worker: {
      url: `redis://127.0.0.1:${proxy.port}`,
      async leasesPassed() {},
    },
    holdOutcomes: {
      begin: async () => proxy.pause(),
      held: async () => {},
      end: async () => proxy.cut(),
    },
  };
}

interface Worker {
  /** Waits until it has printed this line so often. */
  said(line: string, times: number): Promise<void>;
  kill(): Promise<void>;
}

function startWorker(options: WorkerOptions): Worker {
  const child: ChildProcess = spawn(process.execPath, [WORKER, JSON.stringify(options)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = once(child, "exit");
  const lines: string[] = [];
  if (child.stdout) createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
  return {
    said: (wanted, times) =>
      waitUntil(() => lines.filter((line) => line === wanted).length >= times, {
        what: `the worker says "${wanted}" ${times} times`,
        timeoutMs: PATIENCE_MS,
      }),
    async kill() {
      child.kill("SIGKILL");
      await exited;
    },
  };
}
