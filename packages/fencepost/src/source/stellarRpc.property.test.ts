import {
  everyFault,
  type FaultName,
  type Random,
  scv,
  seededRandom,
  startChain,
  startRpc,
} from "@fencepost/simulator";
import fc from "fast-check";
import { expect, test } from "vitest";
import { idsOnChain, never, noWait } from "../__tests__/support/windows.ts";
import { RpcResponseError, SourceUnavailableError } from "./errors.ts";
import type { Source } from "./source.ts";
import { stellarRpcWith } from "./stellarRpc.ts";

const POOL = Array.from({ length: 32 }, (_, i) => scv.contractId(`contract ${i}`));
const PLACES = ["fee", "operation", "operation", "operation", "afterTransaction", "afterAll"] as const;
const MAX_ANSWERS = 3_000;

function closeLedger(chain: ReturnType<typeof startChain>, random: Random): void {
  const events = Array.from({ length: random.int(0, 9) }, () => ({
    contract: POOL[Math.floor(POOL.length * random.next() ** 3)] ?? "",
    topics: [scv.sym("t")],
    value: scv.u32(random.int(0, 1_000)),
    place: PLACES[random.int(0, PLACES.length - 1)] ?? "operation",
    tx: random.int(1, 3),
    op: random.int(0, 1),
  }));
  chain.close({ events });
}

const plan = fc.record({
  seed: fc.nat(),
  every: fc.constantFrom(0, 0.01, 0.05),
  often: fc.subarray(Object.keys(everyFault(0)) as FaultName[], { maxLength: 2 }),
  contracts: fc.constantFrom(1, 3, 32),
  ledgers: fc.integer({ min: 1, max: 40 }),
  pageLimit: fc.constantFrom(1, 2, 7, 1_000),
  scanLimit: fc.constantFrom(2, 5, 10_000),
  expired: fc.constantFrom("error" as const, "empty" as const),
  edge: fc.boolean(),
});

test("for any chain, faults, page splits and restarts, the windows give each event once, in order, and no false gap", async () => {
  await fc.assert(
    fc.asyncProperty(
      plan,
      async ({ seed, every, often, contracts, ledgers, pageLimit, scanLimit, expired, edge }) => {
        const random = seededRandom(seed);
        const chain = startChain();
        for (let i = 0; i < ledgers; i++) closeLedger(chain, random);
        const rates = { ...everyFault(every), ...Object.fromEntries(often.map((name) => [name, 0.4])) };
        const rpc = await startRpc({ chain, plan: { seed, rates }, scanLimit, expired });
        const watched = random.shuffle(POOL).slice(0, contracts);
        const open = (): Source =>
          stellarRpcWith({ network: "testnet", urls: rpc.url, pageLimit, timeoutMs: 5_000 }, noWait);
        try {
          let source = open();
          const found: string[] = [];
          let next = 1;
          for (let answers = 0; next <= chain.latest; answers++) {
            if (answers > MAX_ANSWERS)
              throw new Error(`${MAX_ANSWERS} answers, and still at ledger ${next}.`);
            if (random.next() < 0.2) source = open();
            if (random.next() < 0.2 && chain.latest < 60) closeLedger(chain, random);
            // All below the next ledger is forgotten: what was read is gone, and nothing else.
            if (edge) chain.retain(chain.latest - next + 1);
            const through = random.next() < 0.2 ? { throughLedger: next + random.int(0, 3) } : {};
            try {
              const answer = await source.window(
                { fromLedger: next, contractIds: watched, ...through },
                never,
              );
              expect(answer.kind).not.toBe("gap");
              if (answer.kind !== "window") continue;
              expect(answer.fromLedger).toBe(next);
              expect(answer.throughLedger).toBeGreaterThanOrEqual(next);
              expect(answer.throughLedger).toBeLessThanOrEqual(through.throughLedger ?? chain.latest);
              found.push(...answer.events.map((event) => event.id));
              next = answer.throughLedger + 1;
            } catch (error) {
              if (!(error instanceof SourceUnavailableError || error instanceof RpcResponseError))
                throw error;
            }
          }
          expect(found).toEqual(idsOnChain(chain, watched));
        } finally {
          await rpc.close();
        }
      },
    ),
    { numRuns: 25 },
  );
});
