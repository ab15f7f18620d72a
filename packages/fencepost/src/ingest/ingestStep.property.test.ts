import { everyFault, type FaultName, scv, seededRandom, startChain } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import fc from "fast-check";
import { expect, test } from "vitest";
import { openIngest } from "../__tests__/support/ingest.ts";
import { StaleTermError } from "../lease/term.ts";
import { RpcResponseError, SourceUnavailableError } from "../source/errors.ts";
import { readWatches } from "../store/postgres/streams.ts";
import type { WatchRequest } from "./registerStream.ts";

const CONTRACTS = ["a", "b", "c", "d"].map(scv.contractId);
const MAX_STEPS = 600;

const scenario = fc.record({
  seed: fc.nat(),
  every: fc.constantFrom(0, 0.01, 0.04),
  often: fc.subarray(Object.keys(everyFault(0)) as FaultName[], { maxLength: 2 }),
  ledgers: fc.integer({ min: 1, max: 25 }),
  pageLimit: fc.constantFrom(1, 3, 1_000),
  scanLimit: fc.constantFrom(2, 6, 10_000),
  restarts: fc.constantFrom(0, 0.2),
});

test("for any chain, faults, page splits, restarts and order of adding contracts, what is stored is the chain's events", async () => {
  await fc.assert(
    fc.asyncProperty(scenario, async ({ seed, every, often, ledgers, pageLimit, scanLimit, restarts }) => {
      const random = seededRandom(seed);
      const bench = await openIngest(startChain(), { pageLimit });
      try {
        const close = (): void => {
          const events = Array.from({ length: random.int(0, 6) }, () => ({
            contract: CONTRACTS[random.int(0, CONTRACTS.length - 1)] ?? "",
            topics: [scv.sym("t")],
            value: random.next() < 0.1 ? "garbage" : scv.u32(random.int(0, 99)),
            tx: random.int(1, 3),
          }));
          bench.chain.close({ events });
        };
        for (let i = 0; i < ledgers; i++) close();
        bench.rpc.node.scanLimit = scanLimit;
        const rates = { ...everyFault(every), ...Object.fromEntries(often.map((name) => [name, 0.3])) };
        bench.rpc.plan({ seed, rates });
        const isPassing = (error: unknown): boolean =>
          error instanceof SourceUnavailableError ||
          error instanceof RpcResponseError ||
          error instanceof StaleTermError;

        const order = random.shuffle(CONTRACTS);
        const watched: WatchRequest[] = [];
        const startOf = () =>
          (["oldest", "latest", random.int(1, bench.chain.latest)] as const)[random.int(0, 2)] ?? 1;
        let source = bench.openSource();
        let term: bigint | undefined;
        let lastNext = 0;
        for (let steps = 0; ; steps++) {
          if (steps > MAX_STEPS) throw new Error(`Not caught up after ${MAX_STEPS} steps.`);
          const adds = order.length > 0 && (watched.length === 0 || random.next() < 0.2);
          try {
            if (adds) {
              const contractId = order[0] ?? "";
              const requests = [...watched, { contractId, startLedger: startOf() }];
              await bench.watch(requests, { adopt: true, source });
              watched.push(...requests.slice(-1));
              order.shift();
              term = undefined;
            }
            if (random.next() < restarts) {
              source = bench.openSource();
              term = undefined;
            }
            term ??= await bench.lead();
            if (random.next() < 0.3 && bench.chain.latest < 40) close();
            const result = await bench.step(term, { source });
            const { nextLedger } = await bench.stream();
            expect(nextLedger).toBeGreaterThanOrEqual(lastNext);
            lastNext = nextLedger;
            if (result === "idle" && order.length === 0 && nextLedger > bench.chain.latest) {
              const lagging = (await readWatches(bench.database, "testnet")).some(
                (w) => w.nextLedger !== null,
              );
              if (!lagging) break;
            }
          } catch (error) {
            if (!isPassing(error)) throw error;
          }
        }

        const stored = await bench.stored();
        const watches = await readWatches(bench.database, "testnet");
        const starts = new Map(watches.map((watch) => [watch.contractId, watch.startLedger]));
        const expected = [...bench.chain.events()].filter(
          (row) => row.ledger >= (starts.get(row.contractId) ?? Number.POSITIVE_INFINITY),
        );
        const tokensOf = (rows: typeof expected) => rows.map((row) => tokenFromRpcId(source.chain, row.id));
        expect(stored.map((row) => row.token).sort()).toEqual(tokensOf(expected));
        expect(stored.map((row) => row.seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
        const mainLine = stored.filter((row) => !row.late).map((row) => row.token);
        expect(mainLine).toEqual([...mainLine].sort());
        const { rows } = await bench.database.query<{ token: string }>(
          "SELECT token FROM fencepost.quarantine ORDER BY token",
        );
        const garbage = expected.filter((row) => row.value === "garbage");
        expect(rows.map((row) => row.token)).toEqual(tokensOf(garbage));
      } finally {
        await bench.close();
      }
    }),
    { numRuns: 8 },
  );
});
