import { type Chain, everyFault, scv, seededRandom, startChain, startRpc } from "@fencepost/simulator";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { idsOnChain, never, noWait, windowOf } from "../__tests__/support/windows.ts";
import { RpcResponseError, SourceUnavailableError } from "./errors.ts";
import { nextSpan, readAhead } from "./readAhead.ts";
import type { Source, SourceWindow, WindowRequest } from "./source.ts";
import { stellarRpcWith } from "./stellarRpc.ts";

const A = scv.contractId("a");
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function sourceOf(chain: Chain, options: object = {}): Promise<Source> {
  const rpc = await startRpc({ chain });
  closing.push(rpc.close);
  return stellarRpcWith({ network: "testnet", urls: rpc.url, ...options }, noWait);
}

function chainOf(ledgers: number, eventsOf: (ledger: number) => number = () => 1): Chain {
  const chain = startChain();
  for (let i = 1; i <= ledgers; i++) {
    const events = Array.from({ length: eventsOf(i) }, (_, n) => ({
      contract: A,
      topics: [scv.sym("t")],
      value: scv.u32(n),
    }));
    chain.close({ events });
  }
  return chain;
}

/** The source, whose windows are answered when the test says so. */
function gated(source: Source, windowsAtOnce: number) {
  const asked: WindowRequest[] = [];
  const gates: (() => void)[] = [];
  return {
    asked,
    open(): void {
      for (const pass of gates.splice(0)) pass();
    },
    source: {
      ...source,
      windowsAtOnce,
      async window(request: WindowRequest, signal: AbortSignal): Promise<SourceWindow> {
        asked.push(request);
        await new Promise<void>((resolve) => gates.push(resolve));
        return source.window(request, signal);
      },
    } satisfies Source,
  };
}

const range = (fromLedger: number, throughLedger: number) => ({
  fromLedger,
  throughLedger,
  contractIds: [A],
});

test("as many windows are asked for as the source allows, and they come in order whichever is answered first", async () => {
  const chain = chainOf(400);
  const gate = gated(await sourceOf(chain), 3);
  const ahead = readAhead(gate.source, range(1, 400), never);
  const ids: string[] = [];
  let next = 1;
  while (ahead.hasNext) {
    const answer = ahead.next();
    expect(gate.asked.length).toBeLessThanOrEqual(3 + ids.length);
    gate.open();
    const window = windowOf(await answer);
    expect(window.fromLedger).toBe(next);
    next = window.throughLedger + 1;
    expect(ahead.position).toBe(next);
    ids.push(...window.events.map(({ id }) => id));
  }
  expect(ids).toEqual(idsOnChain(chain, [A]));
  const spans = gate.asked.map(({ fromLedger, throughLedger = 0 }) => throughLedger - fromLedger + 1);
  expect(spans).toEqual([64, 64, 64, 128, 80]); // longer where there is little in them
});

test("a part is no longer than a window of the source", async () => {
  const source = { ...(await sourceOf(chainOf(400))), windowsAtOnce: 2, ledgersAtOnce: 50 };
  const ahead = readAhead(source, range(1, 400), never);
  for (let i = 1; i <= 8; i++) expect(windowOf(await ahead.next()).throughLedger).toBe(i * 50);
  expect(ahead.hasNext).toBe(false);
});

test("no more than so many windows are held, however far the range goes", async () => {
  const gate = gated(await sourceOf(chainOf(10)), 4);
  const ahead = readAhead(gate.source, range(1, 1_000_000), never);
  const first = ahead.next();
  await Promise.resolve();
  expect(gate.asked).toHaveLength(4);
  gate.open();
  await first;
  expect(gate.asked).toHaveLength(5);
  ahead.stop();
});

test("a part with more events than a window holds is read on before the parts after it are given", async () => {
  const chain = chainOf(40, (ledger) => (ledger > 10 && ledger < 14 ? 3_000 : 1));
  const source = { ...(await sourceOf(chain, { pageLimit: 2_000 })), windowsAtOnce: 3 };
  const ahead = readAhead(source, range(1, 40), never);
  const ends: number[] = [];
  const ids: string[] = [];
  while (ahead.hasNext) {
    const window = windowOf(await ahead.next());
    ends.push(window.throughLedger);
    ids.push(...window.events.map(({ id }) => id));
  }
  expect(ends).toEqual([11, 12, 40]);
  expect(ids).toEqual(idsOnChain(chain, [A]));
});

test("what the source cannot give is told in its place: after the windows before it", async () => {
  const chain = chainOf(200);
  const source = { ...(await sourceOf(chain)), windowsAtOnce: 4 };
  const ahead = readAhead(source, range(1, 400), never);
  const kinds: string[] = [];
  for (let i = 0; i < 5; i++) kinds.push((await ahead.next()).kind);
  expect(kinds).toEqual(["window", "window", "window", "window", "idle"]);
  expect(ahead.position).toBe(201);
});

test("a failure is thrown in its place, and one that nobody comes to harms nothing", async () => {
  const source = await sourceOf(chainOf(400));
  const failing: Source = {
    ...source,
    windowsAtOnce: 4,
    window: (request, signal) =>
      request.fromLedger > 64
        ? Promise.reject(new SourceUnavailableError("not now"))
        : source.window(request, signal),
  };
  const ahead = readAhead(failing, range(1, 400), never);
  expect(windowOf(await ahead.next()).throughLedger).toBe(64);
  await expect(ahead.next()).rejects.toThrow("not now");
  ahead.stop();
});

test("stop, and the caller's signal, end what is under way", async () => {
  const rpc = await startRpc({ chain: chainOf(400) });
  closing.push(rpc.close);
  const source = stellarRpcWith({ network: "testnet", urls: rpc.url, timeoutMs: 600_000 }, noWait);
  await source.check(never);
  const stopped = new AbortController();
  for (const by of ["stop", "signal"]) {
    const ahead = readAhead(source, range(1, 400), stopped.signal);
    for (let i = 0; i < 4; i++) rpc.next({ kind: "hang" });
    const before = rpc.requests.length;
    const settled = expect(ahead.next()).rejects.toMatchObject({ name: "AbortError" });
    await rpc.waitFor(before + 4);
    if (by === "stop") ahead.stop();
    else stopped.abort();
    await settled;
  }
});

describe("how long the next part is", () => {
  test.each([
    ["twice as long where there is little in it", 64, { ledgers: 64, events: 10 }, 128],
    ["as long where it fits one answer", 64, { ledgers: 64, events: 700 }, 64],
    ["shorter where it needed several", 64, { ledgers: 64, events: 3_000 }, 16],
    ["as long after the rest of a part that was cut", 64, { ledgers: 5, events: 10 }, 64],
    ["no shorter than a ledger", 1, { ledgers: 1, events: 9_000 }, 1],
  ])("%s", (_, span, window, expected) => {
    expect(nextSpan(span, window, 1_000)).toBe(expected);
  });
});

test("for any chain, faults and number at once, every event comes once and in order", async () => {
  const scenario = fc.record({
    seed: fc.nat(),
    ledgers: fc.integer({ min: 1, max: 300 }),
    atOnce: fc.integer({ min: 1, max: 6 }),
    rate: fc.constantFrom(0, 0.02),
    pageLimit: fc.constantFrom(3, 50, 1_000),
  });
  await fc.assert(
    fc.asyncProperty(scenario, async ({ seed, ledgers, atOnce, rate, pageLimit }) => {
      const random = seededRandom(seed);
      const chain = chainOf(ledgers, () => random.int(0, 3));
      const rpc = await startRpc({ chain, plan: { seed, rates: everyFault(rate) } });
      try {
        const open = () => stellarRpcWith({ network: "testnet", urls: rpc.url, pageLimit }, noWait);
        const ids: string[] = [];
        let next = 1;
        for (let attempts = 0; next <= ledgers; attempts++) {
          if (attempts > 300) throw new Error(`Still at ledger ${next} of ${ledgers}.`);
          const ahead = readAhead({ ...open(), windowsAtOnce: atOnce }, range(next, ledgers), never);
          try {
            while (ahead.hasNext) {
              const window = await ahead.next();
              if (window.kind !== "window") break;
              ids.push(...window.events.map(({ id }) => id));
              next = ahead.position;
            }
          } catch (error) {
            if (!(error instanceof SourceUnavailableError || error instanceof RpcResponseError)) throw error;
          } finally {
            ahead.stop();
          }
        }
        expect(ids).toEqual(idsOnChain(chain, [A]));
      } finally {
        await rpc.close();
      }
    }),
    { numRuns: 15 },
  );
});
