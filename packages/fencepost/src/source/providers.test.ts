import {
  type Chain,
  losesRows,
  type NodeSettings,
  type RpcServer,
  scv,
  startChain,
  startRpc,
} from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { never, windowOf } from "../__tests__/support/windows.ts";
import {
  NoClassicEventsError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./errors.ts";
import type { LedgerRef, NodeEvent, Source } from "./source.ts";
import { type StellarRpcOptions, type StellarRpcSource, stellarRpc, stellarRpcWith } from "./stellarRpc.ts";

const A = scv.contractId("a");
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function chainOf(ledgers: number, options = {}): Chain {
  const chain = startChain(options);
  closeLedgers(chain, ledgers);
  return chain;
}

function closeLedgers(chain: Chain, count: number): void {
  for (let i = 0; i < count; i++) {
    chain.close({ events: [{ contract: A, topics: [scv.sym("locked")], value: scv.u32(i) }] });
  }
}

async function serve(settings: Partial<NodeSettings> & { chain: Chain }): Promise<RpcServer> {
  const rpc = await startRpc(settings);
  closing.push(rpc.close);
  return rpc;
}

interface Opened {
  readonly source: StellarRpcSource;
  readonly events: NodeEvent[];
  readonly waits: number[];
  /** Lets so many milliseconds pass. */
  pass(ms: number): void;
}

function open(urls: StellarRpcOptions["urls"], options: Partial<StellarRpcOptions> = {}): Opened {
  let time = 0;
  const waits: number[] = [];
  const wait = async (ms: number): Promise<void> => {
    waits.push(ms);
    time += ms;
  };
  const source = stellarRpcWith({ network: "testnet", urls, ...options }, wait, () => time);
  const events: NodeEvent[] = [];
  source.observe((event) => events.push(event));
  return { source, events, waits, pass: (ms) => (time += ms) };
}

const read = (source: Source, fromLedger = 1, anchor?: LedgerRef) =>
  source.window({ fromLedger, contractIds: [A], ...(anchor && { anchor }) }, never);
const calls = (rpc: RpcServer, method = "getEvents") =>
  rpc.requests.filter((request) => request.method === method).length;
const anchorAt = (chain: Chain, sequence: number): LedgerRef => {
  const { hash, closedAt } = chain.ledger(sequence) ?? { hash: "", closedAt: 0 };
  return { ledger: sequence, hash, closedAt };
};

describe("a node of several", () => {
  test("that lags is set aside by name, its answer not used, and another is asked at once", async () => {
    const chain = chainOf(40);
    const [good, lagging] = [await serve({ chain }), await serve({ chain })];
    const { source, events, waits, pass } = open([good.url, lagging.url]);
    await read(source);
    lagging.node.lag = 20;
    good.next({ kind: "status", status: 503 }); // so the other one is asked
    expect(windowOf(await read(source)).throughLedger).toBe(40);
    expect(waits).toHaveLength(1);
    expect(events).toEqual([
      {
        kind: "aside",
        node: lagging.url,
        reason: "behind",
        detail: "ledger 20, where 40 was seen",
        forMs: 30_000,
      },
    ]);
    expect(source.nodes().map(({ aside }) => aside)).toEqual([null, "behind"]);

    const before = calls(lagging);
    good.next({ kind: "status", status: 503 });
    await read(source);
    expect(calls(lagging)).toBe(before); // while it is set aside
    lagging.node.lag = 0;
    pass(30_000);
    good.next({ kind: "status", status: 503 });
    await read(source);
    expect(events.at(-1)).toEqual({ kind: "back", node: lagging.url });
  });

  test("that goes back is set aside as that", async () => {
    const chain = chainOf(40);
    const [one, two] = [await serve({ chain }), await serve({ chain })];
    const { source, events } = open([one.url, two.url]);
    await read(source);
    one.node.lag = 30;
    expect(windowOf(await read(source)).throughLedger).toBe(40);
    expect(events).toMatchObject([{ kind: "aside", node: one.url, reason: "went_back" }]);
  });

  test("that is stale is set aside once another one has news that it has not", async () => {
    const chain = chainOf(9);
    const [stale, good] = [await serve({ chain }), await serve({ chain })];
    const { source, events } = open([stale.url, good.url]);
    await read(source);
    closeLedgers(chain, 4);
    stale.node.lag = 4;
    const kinds: string[] = [];
    while (kinds.at(-1) !== "window" && kinds.length < 20) kinds.push((await read(source, 10)).kind);
    expect(kinds).toEqual([...Array(10).fill("idle"), "window"]);
    expect(events).toMatchObject([{ kind: "aside", node: stale.url, reason: "stale" }]);
  });

  test("is not stale where nobody has news: the network stands still", async () => {
    const chain = chainOf(9);
    const [one, two] = [await serve({ chain }), await serve({ chain })];
    const { source, events } = open([one.url, two.url]);
    for (let i = 0; i < 45; i++) expect((await read(source, 10)).kind).toBe("idle");
    expect(events).toEqual([]);
  });

  test("that fails three times in a row is set aside, and asked again after a while", async () => {
    const chain = chainOf(9);
    const [failing, good] = [await serve({ chain }), await serve({ chain })];
    const { source, events, pass } = open([failing.url, good.url]);
    await read(source);
    for (let i = 0; i < 3; i++) failing.next({ kind: "status", status: 503 });
    for (let i = 0; i < 2; i++) good.next({ kind: "status", status: 503 });
    await expect(read(source)).rejects.toThrow(SourceUnavailableError);
    expect(events).toMatchObject([{ kind: "aside", node: failing.url, reason: "failing" }]);
    const before = calls(failing);
    await read(source);
    await read(source);
    expect(calls(failing)).toBe(before);
    pass(30_000);
    good.next({ kind: "status", status: 503 });
    await read(source);
    await read(source);
    expect(calls(failing)).toBeGreaterThan(before);
  });

  test("is asked all the same where every one is set aside", async () => {
    const chain = chainOf(40);
    const [one, two] = [await serve({ chain }), await serve({ chain })];
    const { source } = open([one.url, two.url]);
    await read(source);
    one.node.lag = two.node.lag = 30;
    expect(windowOf(await read(source)).throughLedger).toBe(10);
  });

  test("of another network, which a url serves from one day to the next, is refused and set aside", async () => {
    const [one, two] = [await serve({ chain: chainOf(9) }), await serve({ chain: chainOf(9) })];
    const { source, events, pass } = open([one.url, two.url]);
    await read(source);
    one.node.chain = chainOf(9, { passphrase: "Public Global Stellar Network ; September 2015" });
    pass(600_000);
    await expect(read(source)).rejects.toThrow(WrongNetworkError);
    expect(events).toMatchObject([{ kind: "aside", node: one.url, reason: "refused" }]);
    const before = calls(one);
    await read(source);
    expect(calls(one)).toBe(before);
  });

  test("of a version before v23, which a url serves from one day to the next, is refused and set aside", async () => {
    const chain = chainOf(9);
    const [one, two] = [await serve({ chain }), await serve({ chain })];
    const { source, events, pass } = open([one.url, two.url]);
    await read(source);
    one.node.version = "22.1.5";
    pass(600_000);
    await expect(read(source)).rejects.toThrow(UnsupportedRpcVersionError);
    expect(events).toMatchObject([{ kind: "aside", node: one.url, reason: "refused" }]);
    const before = calls(one);
    expect(windowOf(await read(source)).throughLedger).toBe(9);
    expect(calls(one)).toBe(before);
  });

  test("of another life of the chain is set aside, and no window of it is given", async () => {
    const chain = chainOf(40);
    const other = chainOf(60, { life: "second" });
    const [wrong, right] = [await serve({ chain: other }), await serve({ chain })];
    const { source, events } = open([wrong.url, right.url]);
    const window = windowOf(await read(source, 1, anchorAt(chain, 30)));
    expect(window.throughLedger).toBe(40);
    expect(events).toMatchObject([{ kind: "aside", node: wrong.url, reason: "other_chain" }]);
  });
});

describe("limits of a provider", () => {
  test("on requests in a second are kept", async () => {
    const rpc = await serve({ chain: chainOf(9) });
    const { source, waits } = open([{ url: rpc.url, requestsPerSecond: 2 }]);
    for (let i = 0; i < 3; i++) await read(source);
    // Network, version and three pages: each half a second after the one before.
    expect(waits).toEqual([500, 500, 500, 500]);
  });

  test("on requests at once are kept, and what is beyond them goes to the next provider", async () => {
    const chain = chainOf(9);
    const [one, two] = [await serve({ chain, latencyMs: 30 }), await serve({ chain, latencyMs: 30 })];
    const source = stellarRpc({
      network: "testnet",
      urls: [
        { url: one.url, maxInFlight: 2 },
        { url: two.url, maxInFlight: 3 },
      ],
    });
    expect(source.windowsAtOnce).toBe(5);
    await source.check(never);
    await Promise.all(Array.from({ length: 10 }, () => read(source)));
    expect(one.mostInFlight).toBe(2);
    expect(two.mostInFlight).toBe(3);
  });

  test("that it never told are found by its refusals, and no window is lost", async () => {
    const rpc = await serve({ chain: chainOf(9), latencyMs: 5, maxInFlight: 1 });
    const { source } = open([{ url: rpc.url, maxInFlight: 4 }]);
    await source.check(never);
    const windows = await Promise.all(Array.from({ length: 4 }, () => read(source)));
    expect(windows.map((window) => windowOf(window).throughLedger)).toEqual([9, 9, 9, 9]);
  });

  test.each([{ requestsPerSecond: 0 }, { requestsPerSecond: -1 }, { maxInFlight: 0 }, { maxInFlight: 1.5 }])(
    "that cannot be are refused: %j",
    (limits) => {
      const urls = [{ url: "http://127.0.0.1:1/secret", ...limits }];
      expect(() => stellarRpc({ network: "testnet", urls })).toThrow(/^source\.urls: number 1 has limits/);
    },
  );
});

describe("the event profile of a node", () => {
  /** Each ledger has a fee, a payment of the asset contract, and an event of a contract that it called. */
  function classicChain(): Chain {
    const chain = startChain();
    for (let i = 0; i < 6; i++) {
      chain.close({
        events: [
          { contract: A, topics: [scv.sym("fee"), scv.sym("x")], value: scv.i128(1n), place: "fee" },
          { contract: A, topics: [scv.sym("transfer")], value: scv.i128(7n), tx: 1 },
          { contract: A, topics: [scv.sym("locked")], value: scv.u32(1), tx: 2 },
        ],
      });
    }
    return chain;
  }
  const isClassic = ({ transactionIndex }: { transactionIndex: number }) => transactionIndex < 2;

  test("is found out: a window comes only from nodes that emit classic events, where they are wanted", async () => {
    const chain = classicChain();
    const [off, on] = [await serve({ chain, hides: isClassic }), await serve({ chain })];
    const { source, events } = open([off.url, on.url], { classicEvents: true });
    await source.check(never);
    expect(windowOf(await read(source)).events).toHaveLength(18);
    expect(source.nodes().map(({ classicEvents }) => classicEvents)).toEqual(["off", "on"]);
    expect(source.nodes().map(({ version }) => version)).toEqual(["27.1.1", "27.1.1"]);
    expect(events).toMatchObject([{ kind: "aside", node: off.url, reason: "no_classic_events" }]);

    on.next({ kind: "status", status: 503 });
    expect(windowOf(await read(source)).events).toHaveLength(18);
  });

  test("is no matter where they are not wanted", async () => {
    const rpc = await serve({ chain: classicChain(), hides: isClassic });
    expect(windowOf(await read(open(rpc.url).source)).events).toHaveLength(6);
  });

  test("is refused by name where no node emits them", async () => {
    const rpc = await serve({ chain: classicChain(), hides: isClassic });
    const { source } = open(rpc.url, { classicEvents: true });
    await expect(source.check(never)).rejects.toThrow(NoClassicEventsError);
    await expect(read(source)).rejects.toThrow(NoClassicEventsError);
  });

  test("is what the config declares, without a question", async () => {
    const rpc = await serve({ chain: classicChain() });
    const { source } = open([{ url: rpc.url, classicEvents: false }], { classicEvents: true });
    await expect(read(source)).rejects.toThrow(NoClassicEventsError);
    expect(calls(rpc)).toBe(0);
  });

  test("is not known where nothing has happened yet, and not believed", async () => {
    const chain = startChain();
    chain.closeMany(3);
    const rpc = await serve({ chain });
    const { source } = open(rpc.url, { classicEvents: true });
    await expect(read(source)).rejects.toThrow(/no ledger yet that tells/);
    expect(source.nodes()[0]?.classicEvents).toBe("unknown");
  });
});

test("each provider can be asked alone, under the limits that all of them share", async () => {
  const chain = chainOf(50);
  const lossy = await serve({ chain, hides: losesRows({ seed: 1, rate: 0.3 }) });
  const whole = await serve({ chain });
  const { source } = open([lossy.url, whole.url]);
  const counts = await Promise.all(
    source.providers.map(async (provider) => windowOf(await read(provider)).events.length),
  );
  expect(counts[0]).toBeLessThan(50);
  expect(counts[1]).toBe(50);
  expect(source.providers.map(({ name }) => name)).toEqual([lossy.url, whole.url]);
  expect(open(whole.url).source.providers).toEqual([]);
});
