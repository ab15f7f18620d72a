import { afterEach, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../../__tests__/support/ingest.ts";
import { moveStream, moveWatches } from "./streams.ts";

// Where a commit has locked the row and compared it, these say the same once more: each is a guard of its own.

let bench: IngestBench;
afterEach(() => bench.close());

async function open(): Promise<void> {
  bench = await openIngest();
  bench.chain.closeMany(5);
  await bench.watch([{ contractId: "CA", startLedger: 1 }]);
  await bench.lead();
}

test("a stream moves only from the term, the cursor and the filter set that were read", async () => {
  await open();
  const read = await bench.stream();
  const to = { nextLedger: 4, seq: 0n, latestLedger: 5, leaseMs: 1_000 };
  const move = (from: Partial<typeof read>) =>
    bench.database.transaction((client) => moveStream(client, { ...read, ...from }, to));
  for (const other of [
    { term: read.term - 1n },
    { term: read.term + 1n },
    { nextLedger: read.nextLedger + 1 },
    { filtersHash: "another" },
  ]) {
    expect(await move(other)).toBe(false);
  }
  expect((await bench.stream()).nextLedger).toBe(1);
  expect(await move({})).toBe(true);
  expect(await bench.stream()).toMatchObject({ nextLedger: 4, latestLedger: 5 });
  expect(await move({})).toBe(false);
});

test("contracts that lag move only from where they were read, and join the cursor when they reach it", async () => {
  await open();
  await bench.database.query("UPDATE fencepost.watches SET next_ledger = 2");
  const move = (from: number, to: number) =>
    bench.database.transaction((client) => moveWatches(client, "testnet", ["CA"], from, to, 5));
  const next = async () =>
    (await bench.database.query("SELECT next_ledger::int AS n FROM fencepost.watches")).rows[0]?.["n"];
  expect(await move(1, 3)).toBe(false);
  expect(await next()).toBe(2);
  expect(await move(2, 4)).toBe(true);
  expect(await next()).toBe(4);
  expect(await move(4, 5)).toBe(true);
  expect(await next()).toBeNull();
  expect(await move(4, 5)).toBe(false);
});
