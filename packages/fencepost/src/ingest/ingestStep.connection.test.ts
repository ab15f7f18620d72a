import { type Chain, scv, seededRandom, startProxy, type TcpProxy } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { StaleTermError } from "../lease/term.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { ConnectionLostError, DatabaseUnreachableError } from "../store/postgres/errors.ts";

const A = scv.contractId("a");

let bench: IngestBench;
let proxy: TcpProxy;
/** The database as the leader reaches it: through the proxy. */
let database: Database;
afterEach(async () => {
  await database.close();
  await proxy.close();
  await bench.close();
});

async function open(): Promise<bigint> {
  bench = await openIngest();
  bench.chain.close();
  const direct = new URL(bench.database.url);
  proxy = await startProxy({ targetHost: direct.hostname, targetPort: Number(direct.port || 5432) });
  const through = new URL(direct);
  through.hostname = "127.0.0.1";
  through.port = String(proxy.port);
  database = openDatabase(through.href);
  await bench.watch([{ contractId: A, startLedger: 1 }]);
  return bench.lead();
}

function closeLedgers(chain: Chain, count: number): void {
  for (let i = 0; i < count; i++) {
    const events = Array.from({ length: 20 }, (_, n) => ({
      contract: A,
      topics: [scv.sym("locked")],
      value: scv.u32(n),
    }));
    chain.close({ events });
  }
}

/** What is stored is what the cursor says: every event below it, none beyond it. */
async function expectWhole(): Promise<void> {
  const { rows } = await bench.database.query<{ next: number; seq: bigint; tokens: string[] | null }>(
    `SELECT next_ledger::int AS next, seq, (SELECT array_agg(token ORDER BY seq) FROM fencepost.events) AS tokens
     FROM fencepost.streams`,
  );
  const { next = 0, seq, tokens } = rows[0] ?? {};
  const expected = bench.tokensOnChain([A]).filter((token) => Number(token.split("-")[2]) < next);
  expect(tokens ?? []).toEqual(expected);
  expect(seq).toBe(BigInt(expected.length));
}

test("a connection that is cut before its COMMIT arrives leaves nothing, and the next step stores the window", async () => {
  const term = await open();
  closeLedgers(bench.chain, 2);
  proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("COMMIT\0"));
  await expect(bench.step(term, { database })).rejects.toThrow(ConnectionLostError);
  expect(await bench.stored()).toEqual([]);
  expect((await bench.stream()).nextLedger).toBe(1);
  await bench.catchUp(term, { database });
  await expectWhole();
  expect(await bench.stored()).toHaveLength(40);
});

test("a COMMIT whose answer is lost has stored the window, and the next step goes on after it", async () => {
  const term = await open();
  closeLedgers(bench.chain, 2);
  proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("COMMIT\0"), { deliver: true });
  await expect(bench.step(term, { database })).rejects.toThrow(ConnectionLostError);
  await waitUntil(async () => (await bench.stored()).length === 40, { what: "the window is committed" });
  closeLedgers(bench.chain, 1);
  const reports: { events: number; replayed: number }[] = [];
  await bench.catchUp(term, { database, onStored: (report) => reports.push(report) });
  expect(reports).toMatchObject([{ events: 20, replayed: 0 }]);
  await expectWhole();
});

const SEED = 20_261_129;

test(`a connection that is cut anywhere leaves all of a window or nothing, and loses nothing (seed ${SEED})`, async () => {
  const random = seededRandom(SEED);
  const term = await open();
  let cuts = 0;
  for (let i = 0; i < 25; i++) {
    closeLedgers(bench.chain, 2);
    const direction = random.next() < 0.7 ? "up" : "down";
    // A step sends about 30 kB and receives about 4 kB.
    proxy.cutAfter(random.int(1, direction === "up" ? 30_000 : 4_000), direction);
    try {
      await bench.step(term, { database });
    } catch (error) {
      cuts++;
      const named = [ConnectionLostError, DatabaseUnreachableError, StaleTermError];
      if (!named.some((type) => error instanceof type)) throw error;
    }
    await expectWhole();
  }
  expect(cuts).toBeGreaterThan(5);
  // A commit that was under way when its connection went may still move the cursor once.
  await bench.catchUp(term, { database }).catch(() => bench.catchUp(term, { database }));
  await expectWhole();
  expect((await bench.stream()).nextLedger).toBe(bench.chain.latest + 1);
});
