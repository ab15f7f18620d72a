import {
  type EventSpec,
  everyFault,
  type FaultName,
  scv,
  seededRandom,
  startChain,
} from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import fc from "fast-check";
import { expect, test } from "vitest";
import { created, FACTORY, poolDiscovery } from "../__tests__/support/factory.ts";
import { openIngest } from "../__tests__/support/ingest.ts";
import { never } from "../__tests__/support/windows.ts";
import { StaleTermError } from "../lease/term.ts";
import { RpcResponseError, SourceUnavailableError } from "../source/errors.ts";
import { readGaps } from "../store/postgres/gaps.ts";
import { readWatches } from "../store/postgres/streams.ts";
import { backfill } from "./backfill.ts";
import { GapError } from "./errors.ts";
import type { WatchRequest } from "./registerStream.ts";

const CONTRACTS = [...["a", "b", "c"].map(scv.contractId), FACTORY];
const MADE = scv.contractId("made");
const MAX_STEPS = 800;
const MAX_LEDGERS = 40;

const scenario = fc.record({
  seed: fc.nat(),
  every: fc.constantFrom(0, 0.01, 0.04),
  often: fc.subarray(Object.keys(everyFault(0)) as FaultName[], { maxLength: 2 }),
  ledgers: fc.integer({ min: 1, max: 25 }),
  /** Empty ledgers in the middle: a long way to go, which is read ahead. */
  empty: fc.constantFrom(0, 0, 300),
  pageLimit: fc.constantFrom(1, 3, 1_000),
  scanLimit: fc.constantFrom(2, 6, 10_000),
  restarts: fc.constantFrom(0, 0.2),
  /** How often a start is set back, a backfill runs beside, or the node forgets what was not read yet. */
  widens: fc.constantFrom(0, 0.1),
  backfills: fc.constantFrom(0, 0.1),
  forgets: fc.constantFrom(0, 0.1),
});

test("for any chain, faults, page splits, restarts and order of adding and finding contracts, what is stored is the chain's events", async () => {
  const discovery = await poolDiscovery();
  await fc.assert(
    fc.asyncProperty(scenario, async (drawn) => {
      const { seed, every, often, ledgers, empty, pageLimit, scanLimit } = drawn;
      const random = seededRandom(seed);
      const bench = await openIngest(startChain(), { pageLimit });
      const { chain, rpc } = bench;
      try {
        const madeAt = random.int(1, ledgers);
        let closed = 0;
        const close = (): void => {
          closed++;
          const contracts = [...CONTRACTS, MADE];
          const events = Array.from(
            { length: random.int(0, 6) },
            (): EventSpec => ({
              contract: contracts[random.int(0, contracts.length - 1)] ?? "",
              topics: [scv.sym("t")],
              value: random.next() < 0.1 ? "garbage" : scv.u32(random.int(0, 99)),
              tx: random.int(1, 3),
            }),
          );
          if (closed === madeAt) events.push(created(MADE, { tx: 2 }));
          chain.close({ events });
          if (closed === Math.ceil(ledgers / 2)) chain.closeMany(empty);
        };
        for (let i = 0; i < ledgers; i++) close();
        rpc.node.scanLimit = empty > 0 ? Math.max(scanLimit, 100) : scanLimit;
        const rates = { ...everyFault(every), ...Object.fromEntries(often.map((name) => [name, 0.3])) };
        rpc.plan({ seed, rates });
        const isPassing = (error: unknown): boolean =>
          error instanceof SourceUnavailableError ||
          error instanceof RpcResponseError ||
          error instanceof StaleTermError;

        const order = random.shuffle(CONTRACTS);
        const watched: WatchRequest[] = [];
        const startOf = () =>
          (["oldest", "latest", random.int(1, chain.latest)] as const)[random.int(0, 2)] ?? 1;
        let source = bench.openSource();
        let ingest = bench.ingest({ source, discovery, onGap: "continue" });
        let term: bigint | undefined;
        let lastNext = 0;
        let isOutOfOrder = false;
        const restart = (): void => {
          source = bench.openSource();
          ingest = bench.ingest({ source, discovery, onGap: "continue" });
          term = undefined;
        };
        const adopt = async (requests: readonly WatchRequest[]): Promise<void> => {
          await bench.watch(requests, { adopt: true, source, rules: discovery.rules });
          watched.splice(0, watched.length, ...requests);
          term = undefined;
        };
        const fill = async (fromLedger: number, throughLedger: number): Promise<void> => {
          isOutOfOrder = true;
          const context = bench.context({ source, discovery });
          await backfill(context, { fromLedger, throughLedger, signal: never });
        };
        const isCaughtUp = async (): Promise<boolean> => {
          const watches = await readWatches(bench.database, "testnet");
          const isBehind = watches.some((watch) => watch.nextLedger !== null || watch.earlier !== null);
          return order.length === 0 && !isBehind && (await bench.stream()).nextLedger > chain.latest;
        };
        for (let steps = 0; ; steps++) {
          if (steps > MAX_STEPS) throw new Error(`Not caught up after ${MAX_STEPS} steps.`);
          try {
            const added = order[0];
            if (added !== undefined && (watched.length === 0 || random.next() < 0.2)) {
              await adopt([...watched, { contractId: added, startLedger: startOf() }]);
              order.shift();
            }
            if (random.next() < drawn.widens) {
              isOutOfOrder = true;
              const i = random.int(0, watched.length - 1);
              await adopt(
                watched.map((request, n) =>
                  n === i ? { ...request, startLedger: random.int(1, 9) } : request,
                ),
              );
            }
            if (random.next() < drawn.restarts) restart();
            if (random.next() < drawn.forgets) chain.retain(random.int(2, chain.latest));
            if (random.next() < drawn.backfills) {
              const { nextLedger } = await bench.stream();
              await fill(random.int(1, nextLedger), random.int(nextLedger - 1, chain.latest));
            }
            term ??= await bench.lead();
            if (random.next() < 0.3 && closed < MAX_LEDGERS) close();
            const result = await ingest.step(term, never);
            const { nextLedger } = await bench.stream();
            expect(nextLedger).toBeGreaterThanOrEqual(lastNext);
            lastNext = nextLedger;
            if (result === "idle" && (await isCaughtUp())) break;
          } catch (error) {
            if (error instanceof GapError)
              chain.retain(10_000); // a backfill that the node cannot serve
            else if (!isPassing(error)) {
              const named = error as Error;
              if (named.name !== "BackfillRangeError") throw error;
            }
          }
        }

        // What the node had forgotten, another source gives; and what its events name is read after that.
        const open = (await readGaps(bench.database)).filter(({ healedAt }) => healedAt === null);
        if (open.length > 0) {
          chain.retain(10_000);
          rpc.plan(undefined);
          await fill(1, chain.latest);
          await bench.catchUp(await bench.lead(), { discovery });
          const left = (await readGaps(bench.database)).filter(({ healedAt }) => healedAt === null);
          expect(left).toEqual([]);
        }

        const stored = await bench.stored();
        const watches = await readWatches(bench.database, "testnet");
        const starts = new Map(watches.map((watch) => [watch.contractId, watch.startLedger]));
        const made = [...chain.events()].find(
          ({ contractId, topic, ledger }) =>
            contractId === FACTORY &&
            topic?.[0] === scv.sym("pool_created") &&
            ledger >= (starts.get(FACTORY) ?? 1),
        );
        expect(starts.get(MADE)).toBe(made?.ledger);
        const expected = [...chain.events()].filter(
          (row) => row.ledger >= (starts.get(row.contractId) ?? Number.POSITIVE_INFINITY),
        );
        const tokensOf = (rows: typeof expected) => rows.map((row) => tokenFromRpcId(source.chain, row.id));
        expect(stored.map((row) => row.token).sort()).toEqual(tokensOf(expected));
        expect(stored.map((row) => row.seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
        const mainLine = stored.filter((row) => !row.late).map((row) => row.token);
        expect(mainLine).toEqual([...mainLine].sort());
        if (!isOutOfOrder) {
          for (const contractId of starts.keys()) {
            const own = new Set(bench.tokensOnChain([contractId]));
            const inSeq = stored.map((row) => row.token).filter((token) => own.has(token));
            expect(inSeq).toEqual([...inSeq].sort());
          }
        }
        const { rows } = await bench.database.query<{ token: string }>(
          "SELECT token FROM fencepost.quarantine WHERE projection = '' ORDER BY token",
        );
        const garbage = expected.filter((row) => row.value === "garbage");
        expect(rows.map((row) => row.token)).toEqual(tokensOf(garbage));
      } finally {
        await bench.close();
      }
    }),
    { numRuns: 10 },
  );
});
