import { scv } from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { never } from "../__tests__/support/windows.ts";
import { SourceUnavailableError, WrongNetworkError } from "../source/errors.ts";
import { readWatches, type Watch } from "../store/postgres/streams.ts";
import { FilterSetChangedError, StreamMismatchError } from "./errors.ts";
import { decideWatches, registerStream } from "./registerStream.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");
const C = scv.contractId("c");

describe("registering a stream", () => {
  let bench: IngestBench;
  afterEach(() => bench.close());
  const watches = () => readWatches(bench.database, "testnet");
  const open = async (ledgers = 10): Promise<void> => {
    bench = await openIngest();
    bench.chain.closeMany(ledgers);
  };

  test("makes its row at the lowest start ledger, and one for each contract", async () => {
    await open();
    bench.chain.retain(7); // 4 to 10
    await bench.watch([
      { contractId: A, startLedger: "latest" },
      { contractId: B, startLedger: "oldest" },
      { contractId: C, startLedger: 6 },
    ]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 4, seq: 0n, term: 0n, epoch: "20251217" });
    const byId = new Map((await watches()).map((watch) => [watch.contractId, watch.startLedger]));
    expect(byId).toEqual(
      new Map(
        [
          [A, 10],
          [B, 4],
          [C, 6],
        ].sort() as [string, number][],
      ),
    );
  });

  test("again with the same contracts, in any order and from several processes at once, changes nothing", async () => {
    await open();
    const both = [
      { contractId: A, startLedger: 2 },
      { contractId: B, startLedger: 3 },
    ];
    await Promise.all([both, [...both].reverse(), both, both].map((requests) => bench.watch(requests)));
    const before = [await bench.stream(), await watches()];
    await bench.watch([
      { contractId: B, startLedger: "latest" },
      { contractId: A, startLedger: 9 },
    ]);
    expect([await bench.stream(), await watches()]).toEqual(before);
    expect(before[0]).toMatchObject({ nextLedger: 2 });
  });

  test("with other contracts is refused, naming each, and taken over on request with a new term", async () => {
    await open();
    await bench.watch([
      { contractId: A, startLedger: 2 },
      { contractId: B, startLedger: 2 },
    ]);
    const term = await bench.lead();
    const changed = [
      { contractId: A, startLedger: 2 },
      { contractId: C, startLedger: 1 },
    ];
    await expect(bench.watch(changed)).rejects.toThrow(FilterSetChangedError);
    await expect(bench.watch(changed)).rejects.toThrow(`(+${C}, -${B})`);
    expect((await watches()).map((watch) => watch.contractId).sort()).toEqual([A, B].sort());
    await bench.watch(changed, { adopt: true });
    expect((await watches()).map((watch) => watch.contractId).sort()).toEqual([A, C].sort());
    expect((await bench.stream()).term).toBe(term + 1n);
    await bench.watch(changed);
  });

  test("of another passphrase or epoch is refused, naming both", async () => {
    await open();
    await bench.watch([{ contractId: A, startLedger: 2 }]);
    const own = { name: "testnet", passphrase: bench.source.passphrase, epoch: "20261216" };
    const later = bench.openSource({ network: own });
    const registering = () =>
      registerStream(bench.database, later, [{ contractId: A, startLedger: 2 }], {
        adopt: true,
        signal: never,
      });
    await expect(registering()).rejects.toThrow(StreamMismatchError);
    await expect(registering()).rejects.toThrow(/epoch 20251217.*epoch 20261216/);
  });

  test("at a node of another network is refused, and writes nothing", async () => {
    await open();
    const source = bench.openSource({ network: "pubnet" });
    await expect(bench.watch([{ contractId: A, startLedger: 1 }], { source })).rejects.toThrow(
      WrongNetworkError,
    );
    expect((await bench.database.query("SELECT * FROM fencepost.streams")).rows).toEqual([]);
  });

  test("at a node that is away needs nothing of it once the stream is on record, and is refused before", async () => {
    await open();
    const source = {
      ...bench.openSource(),
      check: () => Promise.reject(new SourceUnavailableError("The node is away.")),
    };
    await expect(bench.watch([{ contractId: A, startLedger: 1 }], { source })).rejects.toThrow("is away");
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    const before = await bench.stream();
    await bench.watch([{ contractId: A, startLedger: 1 }], { source });
    expect(await bench.stream()).toEqual(before);
    const added = [{ contractId: B, startLedger: "latest" as const }];
    await expect(bench.watch(added, { source, adopt: true })).rejects.toThrow("is away");
  });

  test("without a contract is refused", async () => {
    await open();
    await expect(bench.watch([])).rejects.toThrow(TypeError);
  });
});

describe("what a changed filter set means", () => {
  const head = { latestLedger: 100, oldestLedger: 20 };
  const known: readonly Watch[] = [
    { contractId: A, startLedger: 30, nextLedger: null },
    { contractId: B, startLedger: 40, nextLedger: 45 },
  ];
  const decide = (...requests: { contractId: string; startLedger: number | "latest" | "oldest" }[]) =>
    decideWatches(known, requests, head, 60);

  test("those known stay where they are, whatever start is given now", () => {
    const change = decide({ contractId: A, startLedger: 1 }, { contractId: B, startLedger: "latest" });
    expect(change).toEqual({ watches: known, added: [], removed: [] });
  });

  test.each([
    [25, 25],
    [59, 59],
    ["oldest" as const, 20],
  ])("one added with start %s below the cursor reads its own past from %i", (startLedger, expected) => {
    expect(decide({ contractId: C, startLedger })).toEqual({
      watches: [{ contractId: C, startLedger: expected, nextLedger: expected }],
      added: [C],
      removed: [A, B],
    });
  });

  test.each([
    [60, 60],
    [500, 500],
    ["latest" as const, 100],
  ])("one added with start %s at or after the cursor joins at once", (startLedger, expected) => {
    expect(decide({ contractId: C, startLedger }).watches).toEqual([
      { contractId: C, startLedger: expected, nextLedger: null },
    ]);
  });
});
