import { type Chain, scv, startChain } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterEach, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { never } from "../__tests__/support/windows.ts";
import { createLog } from "../observe/log.ts";
import { ChainResetError, EpochMismatchError } from "../source/errors.ts";
import type { StellarRpcSource } from "../source/stellarRpc.ts";
import { readGaps } from "../store/postgres/gaps.ts";
import { readWatches } from "../store/postgres/streams.ts";
import { backfill } from "./backfill.ts";
import { beginEpoch } from "./beginEpoch.ts";
import { StreamMismatchError } from "./errors.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");

let bench: IngestBench;
afterEach(() => bench.close());

function closeLedgers(chain: Chain, count: number): void {
  for (let i = 0; i < count; i++) {
    const event = { topics: [scv.sym("locked")], value: scv.u32(i) };
    chain.close({
      events: [
        { ...event, contract: A },
        { ...event, contract: B, tx: 2 },
      ],
    });
  }
}
const chainOf = (ledgers: number, options = {}): Chain => {
  const chain = startChain(options);
  closeLedgers(chain, ledgers);
  return chain;
};
const watched = [{ contractId: A, startLedger: 1 }];
const tokens = async () => (await bench.stored()).map((row) => row.token);

/** A stream that has read 20 ledgers. */
async function openRead(): Promise<bigint> {
  bench = await openIngest(chainOf(20));
  await bench.watch(watched);
  const term = await bench.lead();
  await bench.catchUp(term);
  return term;
}

const START = Date.UTC(2025, 11, 17, 17) / 1000;
const NEXT_EPOCH = "20260617";

const afterReset: [string, () => Chain][] = [
  ["is far below the cursor", () => chainOf(3, { life: "second" })],
  ["stands at the cursor", () => chainOf(20, { life: "second" })],
  ["has grown past the cursor", () => chainOf(90, { life: "second" })],
  [
    "has grown past the cursor at the same hours, so that only hashes differ",
    () => chainOf(90, { life: "second", startTime: START }),
  ],
];

describe("a reset after which the chain", () => {
  test.each(afterReset)("%s stops the stream before a row of it is stored", async (_, chain) => {
    const term = await openRead();
    const before = await tokens();
    const stream = await bench.stream();
    const lines: string[] = [];
    const ingest = bench.ingest({ log: createLog("error", { write: (line) => lines.push(line) }) });
    await ingest.step(term, never); // a process that has looked at its node before
    bench.rpc.node.chain = chain();
    for (let i = 0; i < 3; i++) {
      await expect(ingest.step(term, never)).rejects.toThrow(ChainResetError);
    }
    await expect(bench.step(await bench.lead())).rejects.toThrow(ChainResetError); // and one that begins
    expect(await tokens()).toEqual(before);
    expect(await bench.stream()).toMatchObject({
      nextLedger: stream.nextLedger,
      seq: stream.seq,
      anchor: stream.anchor,
      halted: "reset",
    });
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({ stream: "testnet", anchor: stream.anchor });
  });

  test.each(afterReset)("%s is refused at the start, and by a backfill", async (_, chain) => {
    await openRead();
    const { anchor } = await bench.stream();
    bench.rpc.node.chain = chain();
    const source = bench.openSource();
    await expect(bench.watch(watched, { source })).rejects.toThrow(ChainResetError);
    await expect(bench.watch(watched, { source })).rejects.toThrow(anchor?.hash ?? "no hash");
    const filling = backfill(bench.context({ source }), { fromLedger: 1, throughLedger: 20, signal: never });
    await expect(filling).rejects.toThrow(ChainResetError);
  });

  test("is found also while contracts read their past", async () => {
    await openRead();
    await bench.watch([...watched, { contractId: B, startLedger: 2 }], { adopt: true });
    bench.rpc.node.chain = chainOf(90, { life: "second" });
    const before = await tokens();
    const source = bench.openSource();
    // Nothing for those that have joined, so that only the past is read.
    await bench.database.query("UPDATE fencepost.watches SET next_ledger = 2");
    await expect(bench.step(await bench.lead(), { source })).rejects.toThrow(ChainResetError);
    expect(await tokens()).toEqual(before);
  });
});

test("a reset that took the anchor with it is found by the epoch, before the stream goes on beyond the hole", async () => {
  const term = await openRead();
  const before = await tokens();
  bench.rpc.node.chain = chainOf(400, { life: "second", retention: 30 });
  for (const source of [bench.source, bench.openSource()]) {
    await expect(bench.step(term, { source, onGap: "continue" })).rejects.toThrow(EpochMismatchError);
  }
  expect(await tokens()).toEqual(before);
  expect(await bench.stream()).toMatchObject({ nextLedger: 21 });
});

test("a stream goes on by itself once its node has the right chain again", async () => {
  const term = await openRead();
  const right = bench.rpc.node.chain;
  bench.rpc.node.chain = chainOf(90, { life: "second" });
  await expect(bench.step(term)).rejects.toThrow(ChainResetError);
  bench.rpc.node.chain = right;
  closeLedgers(right, 2);
  await bench.catchUp(term);
  expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  expect((await bench.stream()).halted).toBeNull();
});

describe("the anchor", () => {
  test("is the newest ledger when the stream is made, with its hash", async () => {
    bench = await openIngest(chainOf(20));
    await bench.watch(watched);
    const { hash, closedAt } = bench.chain.ledger(20) ?? {};
    expect((await bench.stream()).anchor).toEqual({ ledger: 20, hash, closedAt });
  });

  test("goes with the stream, an hour of ledgers at a time", async () => {
    const term = await openRead();
    bench.chain.closeMany(719);
    await bench.catchUp(term);
    expect((await bench.stream()).anchor?.ledger).toBe(20);
    bench.chain.closeMany(1);
    await bench.catchUp(term);
    expect((await bench.stream()).anchor).toMatchObject({ ledger: 740, hash: bench.chain.ledger(740)?.hash });
  });

  test("has a close time where the provider tells no hash, and tells a reset by it", async () => {
    bench = await openIngest(chainOf(20));
    bench.rpc.node.unsupported = ["getLedgers"];
    await bench.watch(watched);
    const term = await bench.lead();
    await bench.catchUp(term);
    expect((await bench.stream()).anchor).toEqual({
      ledger: 20,
      hash: null,
      closedAt: bench.chain.ledger(20)?.closedAt,
    });
    bench.rpc.node.chain = chainOf(90, { life: "second" });
    await expect(bench.step(term)).rejects.toThrow(ChainResetError);
  });

  test("of a stream that has none is the ledger of its last event", async () => {
    await openRead();
    await bench.database.query("UPDATE fencepost.streams SET anchor_ledger = NULL");
    bench.rpc.node.chain = chainOf(90, { life: "second" });
    await expect(bench.watch(watched, { source: bench.openSource() })).rejects.toThrow(ChainResetError);
    bench.rpc.node.chain = bench.chain;
    await bench.watch(watched, { source: bench.openSource() });
    expect((await bench.stream()).anchor).toEqual({
      ledger: 20,
      hash: null,
      closedAt: bench.chain.ledger(20)?.closedAt,
    });
  });
});

describe("the next epoch", () => {
  const openNext = (): StellarRpcSource =>
    bench.openSource({
      network: { name: "testnet", passphrase: bench.source.passphrase, epoch: NEXT_EPOCH },
    });

  test("begins on request: the new chain is read from its start, and nothing of the old one is lost", async () => {
    const term = await openRead();
    const before = await tokens();
    bench.chain.retain(1);
    const after = chainOf(50, { life: "second" });
    bench.rpc.node.chain = after;
    const source = openNext();
    await expect(bench.watch(watched, { source })).rejects.toThrow(/fencepost epoch begin/);
    expect(await beginEpoch(bench.database, source, { signal: never })).toEqual({
      before: "20251217",
      epoch: NEXT_EPOCH,
      nextLedger: 1,
    });
    await expect(bench.step(term, { source })).rejects.toThrow(/another process leads now/);
    await bench.watch(watched, { source });
    await bench.catchUp(await bench.lead(), { source });
    const mine = [...after.events()].filter(({ contractId }) => contractId === A);
    expect(await tokens()).toEqual([...before, ...mine.map(({ id }) => tokenFromRpcId(source.chain, id))]);
    expect((await bench.stored()).map(({ seq }) => seq)).toEqual([...Array(70)].map((_, i) => BigInt(i + 1)));
    expect(await bench.stream()).toMatchObject({
      epoch: NEXT_EPOCH,
      nextLedger: 51,
      halted: null,
      anchor: { ledger: 50, hash: after.ledger(50)?.hash },
    });
  });

  test("takes with it what the old chain left open: gaps, pasts, and contracts that its events named", async () => {
    await openRead();
    const { database } = bench;
    await database.query(
      "INSERT INTO fencepost.gaps (stream, epoch, from_ledger, to_ledger) VALUES ('testnet', '20251217', 3, 5)",
    );
    await database.query(
      "INSERT INTO fencepost.watches (stream, contract_id, start_ledger, next_ledger, found_by) VALUES ('testnet', $1, 7, 9, 'rule')",
      [B],
    );
    await database.query(
      "UPDATE fencepost.watches SET earlier_next = 1, earlier_end = 4 WHERE contract_id = $1",
      [A],
    );
    bench.rpc.node.chain = chainOf(50, { life: "second" });
    await beginEpoch(database, openNext(), { fromLedger: 10, signal: never });
    expect(await readWatches(database, "testnet")).toEqual([
      { contractId: A, startLedger: 10, nextLedger: null, earlier: null, foundBy: null },
    ]);
    expect((await readGaps(database)).map(({ acceptedAt }) => acceptedAt)).toEqual([expect.any(Date)]);
  });

  test("does not begin on a day that is no later, nor on one that the chain contradicts, nor on another network", async () => {
    await openRead();
    const { database } = bench;
    await expect(beginEpoch(database, bench.source, { signal: never })).rejects.toThrow(StreamMismatchError);
    const network = { name: "testnet", passphrase: bench.source.passphrase, epoch: "20260917" };
    bench.rpc.node.chain = chainOf(50, { life: "second" });
    await expect(beginEpoch(database, bench.openSource({ network }), { signal: never })).rejects.toThrow(
      EpochMismatchError,
    );
    bench.rpc.node.chain = chainOf(50, { passphrase: "Other" });
    await expect(beginEpoch(database, openNext(), { signal: never })).rejects.toThrow(
      /serves the network "Other"/,
    );
    expect((await bench.stream()).epoch).toBe("20251217");
  });
});
