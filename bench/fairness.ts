// npm run bench:fairness -- --json
// 97 webhooks that answer, alone and beside three that do not: one hangs for the full time-out, one drips a body for
// ever, one says 429. The ratio is the pace of the 97 with them over that without them.
import { spawn } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { createLog } from "fencepost";
import { startDeliverLoop } from "../packages/fencepost/src/deliver/deliverLoop.ts";
import { buildMessage } from "../packages/fencepost/src/message/payload.ts";
import type { WebhookId } from "../packages/fencepost/src/store/webhook.ts";
import { benchStores, webhookOf } from "./deliverStores.ts";
import { firstLine } from "./firstLine.ts";

const { values: options } = parseArgs({
  options: {
    messages: { type: "string", default: "100" },
    rounds: { type: "string", default: "3" },
    json: { type: "boolean", default: false },
  },
});
const MESSAGES = Number(options.messages);
const ROUNDS = Number(options.rounds);
const GOOD = 97;
const TIMEOUT_MS = 10_000;
const BAD = ["hangs", "drips", "says 429"];

const endpoints = spawn(
  process.execPath,
  [fileURLToPath(new URL("fairnessEndpoints.ts", import.meta.url)), String(GOOD)],
  { stdio: ["ignore", "pipe", "inherit"] },
);
const stores = await benchStores();
try {
  const urls = JSON.parse(await firstLine(endpoints)) as readonly string[];
  const alone: number[] = [];
  const beside: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    alone.push(await paceOfGood(urls.slice(BAD.length), `alone_${round}`));
    beside.push(await paceOfGood(urls, `beside_${round}`));
  }
  const report = {
    webhooks: urls.length,
    bad: BAD,
    messages: MESSAGES,
    perSecond: { alone: Math.round(median(alone)), beside: Math.round(median(beside)) },
    ratio: Math.round((median(beside) / median(alone)) * 100) / 100,
  };
  if (options.json) process.stdout.write(`${JSON.stringify(report)}\n`);
  else console.dir(report, { depth: null });
} finally {
  endpoints.kill("SIGKILL");
  await stores.close();
}

/** Deliveries a second to the webhooks that answer: those at the end of `urls`. */
async function paceOfGood(urls: readonly string[], prefix: string): Promise<number> {
  const { postgres } = stores;
  await postgres.reset();
  for (const [i, url] of urls.entries()) {
    await postgres.store.addWebhook({ ...webhookOf(url), id: idOf(i) });
  }
  await postgres.enqueue(
    Array.from({ length: MESSAGES }, (_, i) =>
      buildMessage({
        eventId: `${prefix}_${i}` as never,
        type: "order.paid",
        token: null,
        occurredAt: new Date(Date.now() + 1_000).toISOString(),
        data: { i },
      }),
    ),
  );
  const began = performance.now();
  const loop = startDeliverLoop({
    store: postgres.store,
    log: createLog("error"),
    timeoutMs: TIMEOUT_MS,
    allowInsecure: true,
  });
  const firstGood = idOf(urls.length - GOOD);
  for (;;) {
    const { rows } = await stores.database.query(
      "SELECT FROM fencepost.delivery_queue WHERE webhook_id >= $1 LIMIT 1",
      [firstGood],
    );
    if (rows.length === 0) break;
    await sleep(20);
  }
  const seconds = (performance.now() - began) / 1_000;
  await loop.stop(); // waits for what hangs
  return (GOOD * MESSAGES) / seconds;
}

function idOf(place: number): WebhookId {
  return `wh_${String(place).padStart(3, "0")}` as WebhookId;
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) / 2)] ?? 0;
}
