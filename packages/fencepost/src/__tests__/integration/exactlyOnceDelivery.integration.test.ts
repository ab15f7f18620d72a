import { setTimeout as sleep } from "node:timers/promises";
import { type EndpointRequest, everyFault, type Random, seededRandom } from "@fencepost/simulator";
import fc from "fast-check";
import { request } from "undici";
import { expect, test } from "vitest";
import { type EngineProcess, startEngineProcess } from "../support/engineProcess.ts";
import { type Line, requestCounts, startLine } from "../support/line.ts";
import { lockAssets } from "../support/pools.ts";

const EVENTS = 150;
const CALLER_EVENTS = Array.from({ length: 20 }, (_, i) => `order:${i}`);
/** `FENCEPOST_SEEDS=100` for a long attack; the suite runs a few. */
const SEEDS = Number(process.env["FENCEPOST_SEEDS"] ?? 2);

test(
  "each unique event becomes exactly one webhook, with duplicates and disorder at every boundary",
  async () => {
    // The seed of a failing run is printed as its counterexample; run it again by fc.assert(…, { examples: [[seed]] }).
    const property = fc.asyncProperty(fc.integer({ min: 1, max: 2 ** 31 - 1 }), attackedRun);
    await fc.assert(property, { numRuns: SEEDS, endOnFailure: true });
  },
  60_000 * (1 + SEEDS),
);

async function attackedRun(seed: number): Promise<void> {
  const random = seededRandom(seed);
  const line = await startLine({
    // source → ingest: repeated, shuffled and cut pages, errors, lagging answers
    plan: { seed, rates: everyFault(0.04) },
    // deliver → receive: answers that get lost, before and after the receiver handled the request
    aroundReceiver: (receive) => async (incoming) => {
      const lot = random.next();
      if (lot < 0.1) return { status: 503 };
      const reply = await receive(incoming);
      return lot < 0.2 ? { status: 500 } : reply;
    },
  });
  const workers: EngineProcess[] = [];
  try {
    lockAssets(line.chain, EVENTS / 3);
    const worker = { databaseUrl: line.databaseUrl, rpcUrl: line.rpc.url, pageLimit: 40 };
    workers.push(await startEngineProcess(worker));
    workers.push(await startEngineProcess(worker));

    const attacks = new AbortController();
    const attacking = Promise.all([
      attack(attacks.signal, random, () => stealLeases(line)),
      attack(attacks.signal, random, () => readAgain(line, random)),
      attack(attacks.signal, random, () => offerAgain(line)),
      attack(attacks.signal, random, () => dispatchAgain(line, random)),
      attack(attacks.signal, random, () => postAgain(line, random)),
    ]);
    for (let third = 1; third < 3; third++) {
      await sleep(random.int(200, 1_000));
      lockAssets(line.chain, EVENTS / 3, { perLedger: random.int(1, 30) });
    }
    // A rebuild in the middle of it: version 2, in a process of its own.
    workers.push(await startEngineProcess({ ...worker, version: 2 }));
    await sleep(random.int(500, 1_500));
    attacks.abort();
    await attacking;
    await Promise.all(CALLER_EVENTS.map((id) => dispatchOne(line, id)));

    await line.settled();
    await line.expectExactlyOnce(CALLER_EVENTS);
    expect(
      [...requestCounts(line.plain)].filter(([, count]) => count !== 1),
      "the plain endpoint, which always answered, got each webhook once",
    ).toEqual([]);
  } finally {
    await Promise.all(workers.map((worker) => worker.stop()));
    await line.close();
  }
}

/** Repeats an attack, with pauses drawn from the seed, until it is told to end. */
async function attack(signal: AbortSignal, random: Random, once: () => Promise<void>): Promise<void> {
  while (!signal.aborted) {
    await once();
    await sleep(random.int(20, 150));
  }
}

/** Leaders go on under a term that another process has taken over. */
async function stealLeases({ database }: Line): Promise<void> {
  for (const table of ["streams", "projections"]) {
    await database.query(`UPDATE fencepost.${table} SET lease_until = now() - interval '1 second'`);
  }
}

/** source → ingest: the stream is read again from an earlier ledger, as a re-scan after a crash would. */
async function readAgain({ database, chain }: Line, random: Random): Promise<void> {
  await database.query("UPDATE fencepost.streams SET next_ledger = least(next_ledger, $1), term = term + 1", [
    random.int(1, chain.latest),
  ]);
}

/** messages → dispatch, deliveries → deliver: rows that were handled are offered again, in another order. */
async function offerAgain({ database }: Line): Promise<void> {
  await database.query(
    `INSERT INTO fencepost.outbox (position, event_id)
     SELECT position, event_id FROM fencepost.messages WHERE state = 'emitted' ORDER BY random() LIMIT 30
     ON CONFLICT (event_id) DO NOTHING`,
  );
  await database.query(
    `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
     SELECT id, webhook_id, now() FROM fencepost.deliveries WHERE state = 'success' ORDER BY random() LIMIT 30
     ON CONFLICT (delivery_id) DO NOTHING`,
  );
  // A claim whose lease ran out before its attempt: a second worker takes it while the first goes on.
  // Locked in the order that every statement keeps to.
  await database.query(
    `WITH waiting AS MATERIALIZED (
       SELECT delivery_id FROM fencepost.delivery_queue WHERE fence IS NOT NULL AND NOT attempted
       ORDER BY delivery_id FOR UPDATE
     )
     UPDATE fencepost.delivery_queue q SET next_at = now() FROM waiting w WHERE q.delivery_id = w.delivery_id`,
  );
}

/** caller → dispatch: the same event ids again, at once, in any order. */
async function dispatchAgain(line: Line, random: Random): Promise<void> {
  const ids = Array.from({ length: 8 }, () => CALLER_EVENTS[random.int(0, CALLER_EVENTS.length - 1)] ?? "");
  await Promise.all([...ids, ...ids].map((id) => dispatchOne(line, id)));
}

async function dispatchOne({ dispatcher }: Line, event_id: string): Promise<void> {
  await dispatcher.dispatch({ event_type: "order.paid", event_id, data: { order: event_id } });
}

/** request → receive: signed requests that arrived are posted again, byte for byte, several at once. */
async function postAgain({ receiving }: Line, random: Random): Promise<void> {
  const arrived = receiving.requests;
  if (arrived.length === 0) return;
  const copies = Array.from(
    { length: 3 },
    () => arrived[random.int(0, arrived.length - 1)] as EndpointRequest,
  );
  await Promise.all(
    copies.map(async ({ path, headers, body }) => {
      const { host: _, "content-length": __, connection: ___, ...signed } = headers;
      const response = await request(`${receiving.url}${path}`, { method: "POST", headers: signed, body });
      await response.body.dump();
    }),
  );
}
