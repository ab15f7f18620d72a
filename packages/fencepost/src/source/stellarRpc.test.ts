import {
  type Chain,
  type EventSpec,
  type NodeSettings,
  type RpcServer,
  scv,
  startChain,
  startRpc,
  transfers,
} from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { idsOnChain, never, noWait, readToEnd, windowOf } from "../__tests__/support/windows.ts";
import type { Source } from "./source.ts";
import { type StellarRpcOptions, stellarRpcWith } from "./stellarRpc.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Setup {
  readonly rpc: RpcServer;
  readonly source: Source;
}

async function serve(
  chain: Chain,
  options: Partial<Omit<StellarRpcOptions, "urls">> = {},
  settings: Partial<NodeSettings> = {},
): Promise<Setup> {
  const rpc = await startRpc({ chain, ...settings });
  closing.push(rpc.close);
  return { rpc, source: stellarRpcWith({ network: "testnet", urls: rpc.url, ...options }, noWait) };
}

const event = (contract: string, fields: Partial<EventSpec> = {}): EventSpec => ({
  contract,
  topics: [scv.sym("locked")],
  value: scv.u32(1),
  ...fields,
});

/** Requests of `getEvents`, as the node saw them. */
function asked(rpc: RpcServer) {
  return rpc.requests
    .filter((request) => request.method === "getEvents")
    .map((request) => ({
      ...(request.params as {
        startLedger?: number;
        endLedger?: number;
        filters: { type: string; contractIds: string[] }[];
        pagination: { cursor?: string; limit: number };
      }),
      answer: request.answer,
    }));
}

describe("windows", () => {
  test("hold every event of the watched contracts once, in chain order, over pages that split ledgers and operations", async () => {
    const chain = startChain();
    for (let i = 0; i < 40; i++) {
      chain.close({
        events: Array.from({ length: 11 }, (_, n) =>
          event(n % 3 ? A : B, { tx: 1 + (n % 4), op: n % 2, topics: Array(n % 6).fill(scv.sym("t")) }),
        ),
      });
    }
    const { source } = await serve(chain, { pageLimit: 7 });
    const { events } = await readToEnd(source, chain, [A]);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, [A]));
    const rows = new Map([...chain.events()].map((row) => [row.id, row]));
    for (const { id, topics, value, txHash } of events) {
      expect({ topics, value, txHash }).toEqual({
        topics: rows.get(id)?.topic ?? [],
        value: rows.get(id)?.value,
        txHash: rows.get(id)?.txHash,
      });
    }
  });

  test("hold events at every place of a ledger, and system events", async () => {
    const chain = startChain();
    const places = ["fee", "operation", "afterTransaction", "afterAll"] as const;
    chain.close({ events: places.map((place) => event(A, { place })) });
    chain.close({ events: [event(A, { type: "system" })] });
    const { source } = await serve(chain, { pageLimit: 1 });
    const { events } = await readToEnd(source, chain, [A]);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, [A]));
    expect(events.at(-1)?.type).toBe("system");
  });

  test("end at the ledger asked for, which is inclusive, and are complete up to there", async () => {
    const chain = startChain();
    for (let i = 0; i < 9; i++) chain.close({ events: [event(A), event(A, { tx: 2 })] });
    const { source } = await serve(chain, { pageLimit: 5 });
    const window = windowOf(
      await source.window({ fromLedger: 3, throughLedger: 6, contractIds: [A] }, never),
    );
    expect(window).toMatchObject({ fromLedger: 3, throughLedger: 6 });
    expect(window.events.map((e) => e.ledger)).toEqual([3, 3, 4, 4, 5, 5, 6, 6]);
  });

  test("go on after empty pages, which do not mean caught up", async () => {
    const chain = startChain();
    chain.closeMany(50);
    chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain, {}, { scanLimit: 4 });
    const window = windowOf(await source.window({ fromLedger: 1, contractIds: [A] }, never));
    expect(window.throughLedger).toBe(51);
    expect(window.events).toHaveLength(1);
    expect(asked(rpc).filter(({ answer }) => "rows" in answer && answer.rows === 0).length).toBeGreaterThan(
      10,
    );
  });

  test("go on over the 10,000 ledgers that one call scans, which are not the node's retention", async () => {
    const chain = startChain();
    chain.closeMany(25_000);
    chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain);
    const window = windowOf(await source.window({ fromLedger: 1, contractIds: [A] }, never));
    expect(window).toMatchObject({ throughLedger: 25_001, events: [{ ledger: 25_001 }] });
    expect(asked(rpc)).toHaveLength(3);
  });

  test("are cut at a ledger's end once they hold 4,000 events, and lose nothing between them", async () => {
    const chain = startChain();
    const rows = transfers({ passphrase: chain.passphrase, contracts: [A], eventsPerLedger: 1_100, seed: 1 });
    chain.closeMany(6, rows);
    const { source } = await serve(chain, { pageLimit: 1_000 });
    const { events, ends } = await readToEnd(source, chain, [A]);
    expect(ends).toEqual([3, 6]);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, [A]));
  });

  test("hold a ledger whole that alone is larger than a window", async () => {
    const chain = startChain();
    const rows = transfers({
      passphrase: chain.passphrase,
      contracts: [A],
      eventsPerLedger: 4_500,
      seed: 1,
    });
    chain.closeMany(2, rows);
    const { source } = await serve(chain, { pageLimit: 2_000 });
    const { events, ends } = await readToEnd(source, chain, [A]);
    expect(ends).toEqual([1, 2]);
    expect(events).toHaveLength(9_000);
  });

  test("are idle when caught up, without asking for a ledger that is not closed", async () => {
    const chain = startChain();
    chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain);
    await readToEnd(source, chain, [A]);
    const closedAt = chain.ledger(1)?.closedAt;
    expect(await source.window({ fromLedger: 2, contractIds: [A] }, never)).toEqual({
      kind: "idle",
      latestLedger: 1,
      oldestLedger: 1,
      latestClosedAt: closedAt,
      oldestClosedAt: closedAt,
    });
    chain.close({ events: [event(A)] });
    const next = windowOf(await source.window({ fromLedger: 2, contractIds: [A] }, never));
    expect(next).toMatchObject({ throughLedger: 2, events: [{ ledger: 2 }] });
    expect(asked(rpc).filter(({ answer }) => "code" in answer)).toEqual([]);
  });

  test("of a contract without events move on all the same", async () => {
    const chain = startChain();
    chain.closeMany(10);
    const { source } = await serve(chain);
    expect(await source.window({ fromLedger: 4, contractIds: [A] }, never)).toMatchObject({
      kind: "window",
      throughLedger: 10,
      events: [],
    });
  });

  test("need a contract", async () => {
    const { source } = await serve(startChain());
    await expect(source.window({ fromLedger: 1, contractIds: [] }, never)).rejects.toThrow(TypeError);
  });
});

describe("many contracts", () => {
  const many = (count: number): string[] => Array.from({ length: count }, (_, i) => scv.contractId(`c${i}`));

  function busyChain(contracts: readonly string[], ledgers: number): Chain {
    const chain = startChain();
    for (let ledger = 0; ledger < ledgers; ledger++) {
      chain.close({
        events: contracts
          .filter((_, i) => (i + ledger) % 3 === 0)
          .map((contract, i) => event(contract, { tx: 1 + (i % 5) })),
      });
    }
    return chain;
  }

  test.each([25, 26, 30, 60])(
    "(%i) are asked for in groups of 25 at the most, with filters of the same keys",
    async (count) => {
      const contracts = many(count);
      const chain = busyChain([...contracts, A], 12);
      const { rpc, source } = await serve(chain, { pageLimit: 9 });
      const window = windowOf(await source.window({ fromLedger: 1, contractIds: contracts }, never));
      expect(window.throughLedger).toBe(12);
      expect(window.events.map((e) => e.id)).toEqual(idsOnChain(chain, contracts));
      const groups = new Set<string>();
      for (const { filters } of asked(rpc)) {
        expect(filters.length).toBeLessThanOrEqual(5);
        for (const filter of filters) {
          expect(Object.keys(filter).sort()).toEqual(["contractIds", "type"]);
          expect(filter.contractIds.length).toBeLessThanOrEqual(5);
        }
        groups.add(filters.flatMap((filter) => filter.contractIds).join());
      }
      expect(groups.size).toBe(Math.ceil(count / 25));
      expect([...groups].flatMap((group) => group.split(",")).sort()).toEqual([...contracts].sort());
    },
  );

  test("lose nothing at a node with the filter bug of those before v27.1.1", async () => {
    const contracts = many(12);
    const chain = busyChain(contracts, 9);
    const { source } = await serve(chain, {}, { filterBug: true, version: "27.0.0" });
    const { events } = await readToEnd(source, chain, contracts);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, contracts));
  });

  test("share one end: a group with many events cuts the window for all, and the next window has the rest", async () => {
    const contracts = many(60);
    const busy = [...contracts].sort().at(30) ?? "";
    const chain = startChain();
    for (let i = 0; i < 10; i++) {
      const rest = contracts.filter((contract) => contract !== busy);
      chain.close({
        events: [...rest, ...Array(200).fill(busy)].map((contract, n) => event(contract, { tx: 1 + n })),
      });
    }
    const { source } = await serve(chain);
    const { events, ends } = await readToEnd(source, chain, contracts);
    expect(ends[0]).toBeLessThan(10);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, contracts));
  });

  test("of few events do not read on to the end in each window that a busy one cuts", async () => {
    const contracts = many(250).sort();
    const [rare = "", busy = ""] = [contracts[0], contracts.at(-1)];
    const chain = startChain();
    const crowd = Array.from({ length: 20 }, (_, n) => event(busy, { tx: 1 + n }));
    for (let i = 0; i < 400; i++) chain.close({ events: i % 50 ? crowd : [event(rare), ...crowd] });
    const { rpc, source } = await serve(chain, {}, { scanLimit: 40 });
    const { events, ends } = await readToEnd(source, chain, contracts);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, contracts));
    const ofRare = asked(rpc).filter(({ filters }) => filters[0]?.contractIds.includes(rare));
    // 10 calls to find out how far to read, then about one for each window.
    expect(ofRare.length).toBeLessThan(10 + ends.length * 2);
  });

  test("share one end also when a node falls behind between the groups", async () => {
    const contracts = many(30);
    const chain = busyChain(contracts, 12);
    const { rpc, source } = await serve(chain);
    rpc.next({ kind: "shortWindow", ledgers: 100 });
    rpc.next({ kind: "lag", ledgers: 5 });
    const window = windowOf(await source.window({ fromLedger: 1, contractIds: contracts }, never));
    expect(window.throughLedger).toBe(7);
    expect(window.events.map((e) => e.id)).toEqual(
      idsOnChain(chain, contracts).filter((id) => window.events.some((e) => e.id === id)),
    );
    expect(new Set(window.events.map((e) => e.ledger))).toEqual(new Set([1, 2, 3, 4, 5, 6, 7]));
  });
});

describe("the edge of what a node keeps", () => {
  test.each(["error", "empty"] as const)(
    "is no gap where N was finished and the oldest is N + 1, and loses nothing (expired cursors get: %s)",
    async (expired) => {
      const chain = startChain();
      for (let i = 0; i < 10; i++) chain.close({ events: [event(A)] });
      chain.retain(4); // 7 to 10
      const { source } = await serve(chain, {}, { expired });
      const window = windowOf(await source.window({ fromLedger: 7, contractIds: [A] }, never));
      expect(window.events.map((e) => e.ledger)).toEqual([7, 8, 9, 10]);
    },
  );

  test.each(["error", "empty"] as const)(
    "is a gap with its ledgers where the next one has gone (expired cursors get: %s)",
    async (expired) => {
      const chain = startChain();
      for (let i = 0; i < 10; i++) chain.close({ events: [event(A)] });
      chain.retain(4);
      const { source } = await serve(chain, {}, { expired });
      expect(await source.window({ fromLedger: 3, contractIds: [A] }, never)).toEqual({
        kind: "gap",
        fromLedger: 3,
        throughLedger: 6,
        oldestLedger: 7,
        latestLedger: 10,
      });
      expect(await source.window({ fromLedger: 1, contractIds: [A] }, never)).toMatchObject({
        kind: "gap",
        fromLedger: 1,
        throughLedger: 6,
      });
    },
  );

  test.each(["error", "empty"] as const)(
    "that moves past the middle of a window leaves what was complete, then a gap (expired cursors get: %s)",
    async (expired) => {
      const chain = startChain();
      for (let i = 0; i < 10; i++) chain.close({ events: [event(A), event(A), event(A)] });
      const rpc = await startRpc({ chain, expired });
      closing.push(rpc.close);
      // The second page is refused once, and the node forgets ledgers 1 to 6 while the source waits.
      const forget = async () => chain.retain(4);
      const source = stellarRpcWith({ network: "testnet", urls: rpc.url, pageLimit: 8 }, forget);
      rpc.next({ kind: "shortPage", rows: 100 });
      rpc.next({ kind: "status", status: 503 });
      const window = windowOf(await source.window({ fromLedger: 1, contractIds: [A] }, never));
      expect(window.throughLedger).toBe(2); // 8 rows: two ledgers of 3, and a part of the third
      expect(window.events).toHaveLength(6);
      expect(await source.window({ fromLedger: 3, contractIds: [A] }, never)).toMatchObject({
        kind: "gap",
        fromLedger: 3,
        throughLedger: 6,
      });
    },
  );
});

describe("a node that is behind", () => {
  test("is idle by one ledger, and behind by more: it is not believed", async () => {
    const chain = startChain();
    for (let i = 0; i < 10; i++) chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain);
    rpc.node.lag = 3;
    expect(await source.window({ fromLedger: 8, contractIds: [A] }, never)).toMatchObject({ kind: "idle" });
    expect(await source.window({ fromLedger: 9, contractIds: [A] }, never)).toMatchObject({
      kind: "behind",
      latestLedger: 7,
    });
    expect(await source.window({ fromLedger: 11, contractIds: [A] }, never)).toMatchObject({
      kind: "behind",
    });
    rpc.node.lag = 0;
    const { events } = await readToEnd(source, chain, [A], { fromLedger: 9 });
    expect(events.map((e) => e.ledger)).toEqual([9, 10]);
  });

  test("only in its field latestLedger is asked again", async () => {
    const chain = startChain();
    for (let i = 0; i < 10; i++) chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain);
    rpc.next({ kind: "latestBack", ledgers: 4 });
    const window = windowOf(await source.window({ fromLedger: 1, contractIds: [A] }, never));
    expect(window).toMatchObject({ throughLedger: 10, latestLedger: 10 });
    expect(asked(rpc)).toHaveLength(2);
  });

  test("in the middle of a window ends it at what was complete", async () => {
    const chain = startChain();
    for (let i = 0; i < 10; i++) chain.close({ events: [event(A), event(A)] });
    const { rpc, source } = await serve(chain, { pageLimit: 12 });
    rpc.next({ kind: "shortWindow", ledgers: 100 });
    rpc.next({ kind: "lag", ledgers: 8 });
    const window = windowOf(await source.window({ fromLedger: 1, contractIds: [A] }, never));
    expect(window.throughLedger).toBe(5);
    expect(window.events).toHaveLength(10);
  });
});

describe("limits of a node", () => {
  test("on the rows of a page are taken over from its refusal", async () => {
    const chain = startChain();
    for (let i = 0; i < 90; i++) chain.close({ events: [event(A), event(A)] });
    const { rpc, source } = await serve(chain, {}, { maxLimit: 40 });
    const { events } = await readToEnd(source, chain, [A]);
    expect(events.map((e) => e.id)).toEqual(idsOnChain(chain, [A]));
    expect(asked(rpc).map(({ pagination }) => pagination.limit)).toEqual([1000, 40, 40, 40, 40, 40]);
  });

  test("on processing shrink the range asked for, which grows again", async () => {
    const chain = startChain();
    chain.closeMany(30);
    chain.close({ events: [event(A)] });
    const { rpc, source } = await serve(chain, { pageLimit: 50 });
    const over = {
      kind: "error",
      code: -32001,
      message: "request exceeded processing limit threshold",
    } as const;
    for (let i = 0; i < 3; i++) rpc.next(over);
    const { events } = await readToEnd(source, chain, [A], { fromLedger: 5 });
    expect(events).toHaveLength(1);
    const ranges = asked(rpc).map(({ startLedger: s = 0, endLedger: e = 0 }) => (e ? [s, e - s] : "cursor"));
    expect(ranges).toEqual(["cursor", [5, 1000], [5, 100], [5, 10], [15, 20]]);
  });
});
