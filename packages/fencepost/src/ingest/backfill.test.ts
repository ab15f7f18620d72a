import { type Chain, scv, startChain, startRpc } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterEach, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { never, noWait } from "../__tests__/support/windows.ts";
import type { Source } from "../source/source.ts";
import { stellarRpcWith } from "../source/stellarRpc.ts";
import { readGaps } from "../store/postgres/gaps.ts";
import { type BackfillProgress, backfill } from "./backfill.ts";
import { BackfillRangeError, EventConflictError, GapError, StreamMismatchError } from "./errors.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");

let bench: IngestBench;
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await bench.close();
});

function closeLedgers(chain: Chain, count: number, value = scv.u32(1)): void {
  const event = { topics: [scv.sym("locked")], value };
  for (let i = 0; i < count; i++) {
    chain.close({
      events: [
        { ...event, contract: A },
        { ...event, contract: B, tx: 2 },
      ],
    });
  }
}
function chainOf(ledgers: number, options = {}): Chain {
  const chain = startChain(options);
  closeLedgers(chain, ledgers);
  return chain;
}
const from = (startLedger: number, ...ids: string[]) =>
  ids.map((contractId) => ({ contractId, startLedger }));

/** Another node of the same chain, which keeps all of it. */
async function archive(chain: Chain = bench.chain): Promise<Source> {
  const full = startChain({ passphrase: chain.passphrase });
  for (let sequence = chain.first; sequence <= chain.latest; sequence++) {
    const { rows, hash, closedAt } = chain.ledger(sequence) ?? { rows: () => [], hash: "", closedAt: 0 };
    full.closeRecorded({ rows: rows(), hash, closedAt });
  }
  const rpc = await startRpc({ chain: full });
  closing.push(rpc.close);
  return { ...stellarRpcWith({ network: "testnet", urls: rpc.url }, noWait), name: "archive" };
}

const fill = (source: Source, fromLedger: number, throughLedger: number, more: object = {}) =>
  backfill(bench.context({ source }), { fromLedger, throughLedger, signal: never, ...more });
const tokens = async () => (await bench.stored()).map((row) => row.token);
const gaps = async () =>
  (await readGaps(bench.database)).map(({ fromLedger, throughLedger, acceptedAt, healedAt, healedBy }) => [
    fromLedger,
    throughLedger,
    healedAt ? `healed by ${healedBy}` : acceptedAt ? "accepted" : "open",
  ]);

/** A stream that read 5 ledgers, was away while 20 more closed, and whose node keeps the last 8: 18 to 25. */
async function fallBehind(...ids: string[]): Promise<bigint> {
  bench = await openIngest(chainOf(5));
  await bench.watch(from(1, ...ids));
  const term = await bench.lead();
  await bench.catchUp(term);
  closeLedgers(bench.chain, 20);
  bench.chain.retain(8);
  return term;
}

describe("a hole that the stream went beyond", () => {
  test("is filled from another source: late events, each once, in a seq after what was stored", async () => {
    const term = await fallBehind(A, B);
    await bench.catchUp(term, { onGap: "continue" });
    expect(await gaps()).toEqual([[6, 17, "accepted"]]);
    const before = await bench.stored();
    expect(await fill(await archive(), 6, 17)).toEqual({
      fromLedger: 6,
      throughLedger: 17,
      events: 24,
      stored: 24,
      healed: 12,
    });
    const stored = await bench.stored();
    expect(stored.slice(0, before.length)).toEqual(before);
    const filled = stored.slice(before.length);
    expect(filled.every((row) => row.late)).toBe(true);
    expect(filled.map((row) => row.token)).toEqual(bench.tokensOnChain([A, B], 6).slice(0, 24));
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A, B]));
    expect(stored.map((row) => row.seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
    expect(await gaps()).toEqual([[6, 17, "healed by archive"]]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 26, seq: BigInt(stored.length), term });
    await bench.catchUp(term); // its leader goes on under the same term
  });

  test("is healed in the part that was filled, and stays open before and after it", async () => {
    const term = await fallBehind(A);
    await bench.catchUp(term, { onGap: "continue" });
    const source = await archive();
    await fill(source, 9, 11);
    expect(await gaps()).toEqual([
      [6, 8, "accepted"],
      [12, 17, "accepted"],
      [9, 11, "healed by archive"],
    ]);
    expect(await fill(source, 1, 25)).toMatchObject({ events: 25, stored: 9, healed: 9 });
    expect((await gaps()).filter(([, , state]) => state !== "healed by archive")).toEqual([]);
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A]));
    expect(await fill(source, 1, 25)).toMatchObject({ events: 25, stored: 0, healed: 0 });
  });
});

describe("a hole at which the stream waits", () => {
  test("is filled, and the stream goes on by itself with nothing late", async () => {
    const term = await fallBehind(A);
    await expect(bench.step(term)).rejects.toThrow(GapError);
    expect(await bench.stream()).toMatchObject({ nextLedger: 6, halted: "gap" });
    await fill(await archive(), 6, 17);
    expect(await gaps()).toEqual([[6, 17, "healed by archive"]]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 18, halted: null });
    await bench.catchUp(term);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    expect((await bench.stored()).some((row) => row.late)).toBe(false);
  });

  test("that the source does not have either leaves what could be filled", async () => {
    await fallBehind(A);
    const chain = bench.chain;
    const source = await archive();
    chain.retain(8);
    await expect(fill(bench.source, 4, 20)).rejects.toThrow(/no longer has ledgers 4 to 17/);
    await fill(source, 6, 10);
    expect(await bench.stream()).toMatchObject({ nextLedger: 11 });
    expect(await tokens()).toEqual(bench.tokensOnChain([A]).slice(0, 10));
  });
});

describe("beside a stream that runs", () => {
  test("every event is stored once, whoever is first, and seq has no hole", async () => {
    bench = await openIngest(chainOf(60), { pageLimit: 10 });
    bench.rpc.node.scanLimit = 7;
    await bench.watch(from(1, A));
    const term = await bench.lead();
    const source = bench.openSource({ pageLimit: 3 });
    let filling: Promise<unknown> = Promise.resolve();
    let lost = 0;
    for (let i = 0; i < 40; i++) {
      if (i % 5 === 0) {
        await filling;
        filling = fill(source, Math.max(1, (await bench.stream()).nextLedger - 5), bench.chain.latest);
      }
      closeLedgers(bench.chain, 1);
      // The leader finds its cursor moved by the backfill, and looks again.
      await bench.step(term).catch((error: Error) => {
        if (error.name !== "StaleTermError") throw error;
        lost++;
      });
    }
    await filling;
    await bench.catchUp(await bench.lead());
    const stored = await bench.stored();
    expect([...new Set(stored.map((row) => row.token))].sort()).toEqual(bench.tokensOnChain([A]));
    expect(stored.map((row) => row.seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
    expect((await bench.stream()).nextLedger).toBe(101);
    expect(lost).toBeLessThan(40);
  });

  test("a contract that is added meanwhile is read too, before the cursor moves on", async () => {
    await fallBehind(A);
    const source = await archive();
    const adding: Source = {
      ...source,
      async window(request, signal) {
        const window = await source.window(request, signal);
        if (!request.contractIds.includes(B)) await bench.watch(from(6, A, B), { adopt: true, source });
        return window;
      },
    };
    await fill(adding, 6, 17);
    expect(await bench.stream()).toMatchObject({ nextLedger: 18 });
    expect((await tokens()).sort()).toEqual(
      [...bench.tokensOnChain([A]).slice(0, 17), ...bench.tokensOnChain([B], 6).slice(0, 12)].sort(),
    );
  });
});

describe("progress", () => {
  test("is told after each window, with the rate and the time left", async () => {
    bench = await openIngest(chainOf(400));
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    const told: BackfillProgress[] = [];
    let time = 0;
    await fill(bench.source, 1, 400, {
      onProgress: (progress: BackfillProgress) => told.push(progress),
      now: () => (time += 500),
    });
    expect(told.map(({ ledger }) => ledger)).toEqual([64, 128, 192, 256, 384, 400]);
    expect(told[0]).toMatchObject({
      fromLedger: 1,
      throughLedger: 400,
      events: 64,
      stored: 0,
      ledgersPerSecond: 128,
      msLeft: 2_625,
    });
    expect(told.at(-1)).toMatchObject({ ledger: 400, events: 400, msLeft: 0 });
  });

  test("ends at once when it is told to stop, and what was committed stays", async () => {
    bench = await openIngest(chainOf(400));
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    await bench.database.query("DELETE FROM fencepost.events");
    const stop = new AbortController();
    const filling = fill(bench.source, 1, 400, {
      signal: stop.signal,
      onProgress: () => stop.abort(new Error("enough")),
    });
    await expect(filling).rejects.toThrow("enough");
    expect(await tokens()).toEqual(bench.tokensOnChain([A]).slice(0, 64));
  });
});

describe("a backfill is refused", () => {
  test("beyond the stream's cursor, where it would leave a hole, and where nobody watches", async () => {
    bench = await openIngest(chainOf(9));
    await bench.watch(from(5, A));
    await expect(fill(bench.source, 6, 9)).rejects.toThrow(BackfillRangeError);
    await expect(fill(bench.source, 6, 9)).rejects.toThrow(/Begin at 5 or below/);
    await expect(fill(bench.source, 1, 4)).rejects.toThrow(BackfillRangeError);
    expect(await fill(bench.source, 1, 90)).toMatchObject({ fromLedger: 5, throughLedger: 9, stored: 5 });
  });

  test("from a source of another network or epoch", async () => {
    bench = await openIngest(chainOf(9));
    await bench.watch(from(1, A));
    const network = { name: "testnet", passphrase: bench.source.passphrase, epoch: "20251218" };
    await expect(fill(bench.openSource({ network }), 1, 9)).rejects.toThrow(StreamMismatchError);
    await expect(fill(bench.openSource({ network: "pubnet" }), 1, 9)).rejects.toThrow(StreamMismatchError);
  });

  test("at the first event that has other content than what is stored, which stops the stream", async () => {
    bench = await openIngest(chainOf(9));
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    await bench.database.query("UPDATE fencepost.events SET content_hash = '' WHERE ledger = 4");
    const before = await tokens();
    await expect(fill(bench.source, 1, 9)).rejects.toThrow(EventConflictError);
    expect(await tokens()).toEqual(before);
    expect((await bench.stream()).halted).toBe("conflict");
    const token = tokenFromRpcId(bench.source.chain, [...bench.chain.events()][6]?.id ?? "");
    expect((await bench.database.query("SELECT token FROM fencepost.conflicts")).rows).toEqual([{ token }]);
  });
});
