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
    { contractId: A, startLedger: 30, nextLedger: null, earlier: null, foundBy: null },
    { contractId: B, startLedger: 40, nextLedger: 45, earlier: null, foundBy: null },
  ];
  const decide = (...requests: { contractId: string; startLedger: number | "latest" | "oldest" }[]) =>
    decideWatches(known, requests, head, 60);

  test("those known stay where they are, whatever later start is given now", () => {
    const change = decide({ contractId: A, startLedger: 35 }, { contractId: B, startLedger: "latest" });
    expect(change).toEqual({ watches: known, added: [], removed: [], widened: [] });
  });

  test.each([
    ["before what it has", 10, { contractId: A, nextLedger: null }, 30, { nextLedger: 10, endLedger: 30 }],
    ["while it still lags", 10, { contractId: B, nextLedger: 45 }, 40, { nextLedger: 10, endLedger: 40 }],
    [
      "where it had not begun yet",
      50,
      { contractId: A, nextLedger: null },
      90,
      { nextLedger: 50, endLedger: 60 },
    ],
    ["where it begins after the cursor all the same", 70, { contractId: A, nextLedger: null }, 90, null],
  ])("one whose start is set back reads that part beside: %s", (_, startLedger, place, start, earlier) => {
    const watch: Watch = { ...place, startLedger: start, earlier: null, foundBy: null };
    const change = decideWatches([watch], [{ contractId: place.contractId, startLedger }], head, 60);
    expect(change).toEqual({
      watches: [{ ...watch, startLedger, earlier }],
      added: [],
      removed: [],
      widened: [place.contractId],
    });
  });

  test("one whose start is set back again reads from there up to what it had at first", () => {
    const watch: Watch = {
      contractId: A,
      startLedger: 20,
      nextLedger: null,
      earlier: { nextLedger: 25, endLedger: 30 },
      foundBy: null,
    };
    expect(decideWatches([watch], [{ contractId: A, startLedger: 5 }], head, 60).watches).toEqual([
      { ...watch, startLedger: 5, earlier: { nextLedger: 5, endLedger: 30 } },
    ]);
  });

  test("those that an event named stay while their rule does", () => {
    const found: Watch = {
      contractId: C,
      startLedger: 40,
      nextLedger: null,
      earlier: null,
      foundBy: "pools",
    };
    const keep = (...rules: string[]) => {
      const given = rules.map((name) => ({ name, factoryId: A }));
      return decideWatches([...known, found], [{ contractId: A, startLedger: 30 }], head, 60, given);
    };
    expect(keep("pools")).toEqual({ watches: [known[0], found], added: [], removed: [B], widened: [] });
    expect(keep("other")).toEqual({ watches: [known[0]], added: [], removed: [B, C], widened: [] });
  });

  test.each([
    [25, 25],
    [59, 59],
    ["oldest" as const, 20],
  ])("one added with start %s below the cursor reads its own past from %i", (startLedger, expected) => {
    expect(decide({ contractId: C, startLedger })).toEqual({
      watches: [{ contractId: C, startLedger: expected, nextLedger: expected, earlier: null, foundBy: null }],
      added: [C],
      removed: [A, B],
      widened: [],
    });
  });

  test.each([
    [60, 60],
    [500, 500],
    ["latest" as const, 100],
  ])("one added with start %s at or after the cursor joins at once", (startLedger, expected) => {
    expect(decide({ contractId: C, startLedger }).watches).toEqual([
      { contractId: C, startLedger: expected, nextLedger: null, earlier: null, foundBy: null },
    ]);
  });
});
