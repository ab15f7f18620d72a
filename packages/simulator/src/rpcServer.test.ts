import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { rpcCursorAfterLedger } from "@fencepost/token";
import { xdr } from "@stellar/stellar-sdk/base";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { CONTRACTS, call, chainOf, ledgers, type Page, readAll, result } from "./__tests__/support/client.ts";
import { drawFaults } from "./faults.ts";
import {
  type Chain,
  chainFromRecorded,
  everyFault,
  type Fault,
  type FaultPlan,
  losesRows,
  type NodeSettings,
  type RpcServer,
  readRecordedLedger,
  scv,
  startChain,
  startRpc,
} from "./index.ts";

const open: RpcServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((rpc) => rpc.close()));
});
async function start(
  options: { chain: Chain; plan?: FaultPlan } & Partial<NodeSettings>,
): Promise<RpcServer> {
  const rpc = await startRpc(options);
  open.push(rpc);
  return rpc;
}
const pagesOf = (rpc: RpcServer) => (params: unknown) => result<Page>(rpc.url, "getEvents", params);
const oneEvent = { events: [{ value: scv.u32(1), contract: CONTRACTS[0]!, topics: [scv.sym("a")] }] };
const post = (rpc: RpcServer, body: string) => fetch(rpc.url, { method: "POST", body });

describe("a simulated RPC node", () => {
  test("tells its health, its latest ledger, its ledgers, its network and its version", async () => {
    const chain = startChain({ firstLedger: 10, retention: 5, startTime: 0, passphrase: "A network" });
    chain.closeMany(8);
    const rpc = await start({ chain });
    expect(await call(rpc.url, "getHealth")).toEqual({
      jsonrpc: "2.0",
      id: 7,
      result: {
        status: "healthy",
        latestLedger: 17,
        latestLedgerCloseTime: 85,
        oldestLedger: 13,
        oldestLedgerCloseTime: 65,
        ledgerRetentionWindow: 5,
      },
    });
    const { hash } = chain.ledger(17)!;
    expect(await result(rpc.url, "getLatestLedger", {})).toMatchObject({
      id: hash,
      sequence: 17,
      closeTime: "85",
    });
    expect(await result(rpc.url, "getNetwork")).toEqual({ passphrase: "A network", protocolVersion: 26 });
    expect(await result(rpc.url, "getVersionInfo")).toMatchObject({ version: "27.1.1" });
    rpc.node.version = "22.1.1";
    expect(await result(rpc.url, "getVersionInfo")).toMatchObject({ version: "22.1.1" });
    const page = await result<{ ledgers: { sequence: number }[]; cursor: string }>(rpc.url, "getLedgers", {
      startLedger: 16,
      pagination: { limit: 1 },
    });
    expect(page).toMatchObject({
      cursor: "16",
      latestLedger: 17,
      latestLedgerCloseTime: 85,
      oldestLedger: 13,
    });
    expect(page.ledgers).toMatchObject([
      { hash: chain.ledger(16)!.hash, sequence: 16, ledgerCloseTime: "80" },
    ]);
    const next = await result(rpc.url, "getLedgers", { pagination: { cursor: page.cursor } });
    expect(next).toMatchObject({ cursor: "17", ledgers: [{ sequence: 17, hash }] });
  });

  test("serves the XDR of its ledgers: the entry of the header, or the header alone, and the metadata", async () => {
    const chain = startChain({ firstLedger: 10 });
    const { hash } = chain.close(oneEvent);
    const rpc = await start({ chain });
    type Xdr = { headerXdr: string; metadataXdr: string };
    const { ledgers } = await result<{ ledgers: Xdr[] }>(rpc.url, "getLedgers", { startLedger: 10 });
    const entry = xdr.LedgerHeaderHistoryEntry.fromXdr(ledgers[0]!.headerXdr, "base64");
    expect([Buffer.from(entry.hash.value).toString("hex"), entry.header.ledgerSeq]).toEqual([hash, 10]);
    const meta = xdr.LedgerCloseMeta.fromXdr(ledgers[0]!.metadataXdr, "base64");
    expect(meta.type === "v2" && meta.value.ledgerHeader).toEqual(entry);

    const latest = await result<Xdr>(rpc.url, "getLatestLedger", {});
    expect(xdr.LedgerHeader.fromXdr(latest.headerXdr, "base64")).toEqual(entry.header);
    expect(latest.metadataXdr).toBe(ledgers[0]!.metadataXdr);
  });

  test("has no metadata of a ledger with a row that no ledger holds, but its header", async () => {
    const chain = startChain();
    chain.close({ events: [{ value: "garbage" }] });
    const rpc = await start({ chain });
    const { ledgers } = await result<{ ledgers: object[] }>(rpc.url, "getLedgers", { startLedger: 1 });
    expect(ledgers).toMatchObject([{ headerXdr: expect.stringMatching(/^.{400,}$/), metadataXdr: "" }]);
  });

  test.each([
    [
      { startLedger: 12 },
      "start ledger (12) must be between the oldest ledger: 13 and the latest ledger: 17 for this rpc instance",
    ],
    [
      { startLedger: 18 },
      "start ledger (18) must be between the oldest ledger: 13 and the latest ledger: 17 for this rpc instance",
    ],
    [
      { pagination: { cursor: "17" } },
      "cursor ('17') must be between the oldest ledger: 13 and the latest ledger: 17 for this rpc instance",
    ],
    [{ startLedger: 13, pagination: { limit: 201 } }, "limit must not exceed 200"],
    [
      { startLedger: 13, pagination: { cursor: "13" } },
      "startLedger (13) and cursor (13) cannot both be set",
    ],
  ])("refuses getLedgers of %j", async (params, message) => {
    const chain = startChain({ firstLedger: 10, retention: 5 });
    chain.closeMany(8);
    const rpc = await start({ chain });
    await expect(result(rpc.url, "getLedgers", params)).rejects.toThrow(message);
  });

  test("says so when it has no ledger yet, or is unhealthy", async () => {
    const rpc = await start({ chain: startChain() });
    const code = -32603;
    await expect(result(rpc.url, "getHealth")).rejects.toMatchObject({ code, message: /DB is empty/ });
    await expect(result(rpc.url, "getLatestLedger")).rejects.toMatchObject({ code });
    await expect(result(rpc.url, "getLedgers", { startLedger: 1 })).rejects.toMatchObject({ code });
    await expect(result(rpc.url, "getEvents", { startLedger: 1 })).rejects.toMatchObject({ code });
    rpc.node.chain.close();
    expect(await result(rpc.url, "getHealth")).toMatchObject({ status: "healthy" });
    rpc.node.unhealthy = true;
    await expect(result(rpc.url, "getHealth")).rejects.toMatchObject({ code, message: /too high/ });
  });

  test("speaks JSON-RPC 2.0 over POST with an object of parameters, and nothing else", async () => {
    const chain = startChain();
    chain.close();
    const rpc = await start({ chain });
    const error = (code: number) => ({ error: { code } });
    expect(await call(rpc.url, "getEvents", [1])).toMatchObject(error(-32602));
    expect(await call(rpc.url, "getHealth", "x")).toMatchObject(error(-32602));
    expect(await call(rpc.url, "getNothing", {})).toMatchObject(error(-32601));
    expect(await (await post(rpc, "{")).json()).toMatchObject(error(-32700));
    expect(await (await post(rpc, "[]")).json()).toMatchObject(error(-32600));
    expect(await (await post(rpc, '{"jsonrpc":"1.0","method":"getHealth"}')).json()).toMatchObject(
      error(-32600),
    );
    expect((await fetch(rpc.url)).status).toBe(405);
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "getHealth", params: { x: "" } });
    const sized = (size: number) => body.replace('""', `"${"x".repeat(size - body.length)}"`);
    expect((await post(rpc, sized(512 * 1024))).status).toBe(200);
    expect((await post(rpc, sized(512 * 1024 + 1))).status).toBe(413);
  });

  test("can be behind its chain, and then refuses what is ahead of it", async () => {
    const chain = startChain({ retention: 10 });
    chain.closeMany(30);
    const rpc = await start({ chain, lag: 4 });
    expect(await result(rpc.url, "getLatestLedger")).toMatchObject({
      sequence: 26,
      id: chain.ledger(26)!.hash,
    });
    await expect(pagesOf(rpc)({ pagination: { cursor: rpcCursorAfterLedger(30) } })).rejects.toMatchObject({
      code: -32600,
      message: "startLedger must be within the ledger range: 17 - 26",
    });
    rpc.node.lag = 0;
    expect(await pagesOf(rpc)({ startLedger: 30 })).toMatchObject({ latestLedger: 30, oldestLedger: 21 });
  });

  test("serves another chain in place of the first, as after a reset", async () => {
    const [before, after] = [startChain({ life: "1" }), startChain({ life: "2" })];
    before.closeMany(9);
    after.closeMany(3);
    const rpc = await start({ chain: before });
    rpc.node.chain = after;
    expect(await result(rpc.url, "getLatestLedger")).toMatchObject({
      sequence: 3,
      id: after.ledger(3)!.hash,
    });
    await expect(pagesOf(rpc)({ startLedger: 9 })).rejects.toMatchObject({ code: -32600 });
  });

  test("loses the rows that are drawn for it, the same ones at every look", async () => {
    const chain = startChain();
    for (let i = 0; i < 400; i++) chain.close(oneEvent);
    const rpc = await start({ chain, hides: losesRows({ seed: 5, rate: 0.1 }) });
    const look = async () =>
      (await pagesOf(rpc)({ startLedger: 1, pagination: { limit: 1_000 } })).events.map(({ id }) => id);
    const ids = await look();
    expect(ids.length).toBeGreaterThan(320);
    expect(ids.length).toBeLessThan(390);
    expect(await look()).toEqual(ids);
  });

  test("lacks the methods that it is said to lack", async () => {
    const rpc = await start({ chain: startChain(), unsupported: ["getLedgers"] });
    expect(await call(rpc.url, "getLedgers")).toMatchObject({ error: { code: -32601 } });
  });

  test("takes its time, counts what it is asked at once, and refuses more than its limit", async () => {
    const rpc = await start({ chain: startChain(), latencyMs: 50, maxInFlight: 2 });
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "getNetwork" });
    const statuses = await Promise.all([1, 2, 3].map(async () => (await post(rpc, body)).status));
    expect(statuses.sort()).toEqual([200, 200, 429]);
    expect(rpc.mostInFlight).toBe(3);
  });

  test("records what it was asked and what it answered", async () => {
    const chain = startChain();
    chain.close(oneEvent);
    const rpc = await start({ chain });
    const recorded = rpc.waitFor(2);
    await pagesOf(rpc)({ startLedger: 1 });
    await call(rpc.url, "getEvents", { startLedger: 2 });
    await recorded;
    expect(rpc.requests).toMatchObject([
      { method: "getEvents", params: { startLedger: 1 }, faults: [], answer: { rows: 1, latestLedger: 1 } },
      { params: { startLedger: 2 }, answer: { code: -32600 } },
    ]);
    await expect(rpc.waitFor(3, { timeoutMs: 1 })).rejects.toThrow("Waited 1 ms for 3 requests; there are 2");
  });
});

describe("a fault", () => {
  async function withFault(fault: Fault) {
    const chain = startChain();
    for (let i = 0; i < 8; i++) chain.close({ events: [...oneEvent.events, ...oneEvent.events] });
    const rpc = await start({ chain });
    rpc.next(fault);
    return { rpc, page: pagesOf(rpc) };
  }

  test.each<[Fault, number, string | null]>([
    [{ kind: "status", status: 429, retryAfter: 3 }, 429, "3"],
    [{ kind: "status", status: 503 }, 503, null],
    [{ kind: "status", status: 504 }, 504, null],
  ])("%j is a bare HTTP status, once", async (fault, status, retryAfter) => {
    const { rpc, page } = await withFault(fault);
    const response = await post(
      rpc,
      '{"jsonrpc":"2.0","id":1,"method":"getEvents","params":{"startLedger":1}}',
    );
    expect([response.status, response.headers.get("retry-after")]).toEqual([status, retryAfter]);
    expect((await page({ startLedger: 1 })).events).toHaveLength(16);
  });

  test("of the protocol is an error with its code, once", async () => {
    const { page } = await withFault({
      kind: "error",
      code: -32001,
      message: "request exceeded processing limit threshold",
    });
    await expect(page({ startLedger: 1 })).rejects.toMatchObject({ code: -32001 });
    expect((await page({ startLedger: 1 })).events).toHaveLength(16);
  });

  test("waits for a request of its method", async () => {
    const { rpc, page } = await withFault({ kind: "status", status: 503 });
    rpc.next({ kind: "status", status: 504 }, "getHealth");
    await expect(call(rpc.url, "getHealth")).rejects.toThrow("HTTP 504");
    await expect(page({ startLedger: 1 })).rejects.toThrow("HTTP 503");
  });

  test.each<Fault>([{ kind: "html" }, { kind: "truncate" }])("%j is a 200 that is no JSON", async (fault) => {
    const { rpc } = await withFault(fault);
    const response = await post(
      rpc,
      '{"jsonrpc":"2.0","id":1,"method":"getEvents","params":{"startLedger":1}}',
    );
    expect(response.status).toBe(200);
    const text = await response.text();
    expect(text.length).toBeGreaterThan(0);
    expect(() => JSON.parse(text)).toThrow();
  });

  test.each(["before", "middle"] as const)("resets the connection %s the answer", async (when) => {
    const { rpc } = await withFault({ kind: "reset", when });
    const answer = post(rpc, '{"jsonrpc":"2.0","id":1,"method":"getEvents","params":{"startLedger":1}}');
    if (when === "before") await expect(answer).rejects.toMatchObject({ cause: { code: "ECONNRESET" } });
    else await expect((await answer).text()).rejects.toThrow();
  });

  test("hangs until the client gives up", async () => {
    const { rpc } = await withFault({ kind: "hang" });
    const aborter = new AbortController();
    const body = '{"jsonrpc":"2.0","id":1,"method":"getEvents","params":{"startLedger":1}}';
    const answer = fetch(rpc.url, { method: "POST", body, signal: aborter.signal });
    await rpc.waitFor(1);
    aborter.abort();
    await expect(answer).rejects.toMatchObject({ name: "AbortError" });
  });

  test("serves the page that led to this cursor once more", async () => {
    const { rpc, page } = await withFault({ kind: "shortPage", rows: 3 });
    const first = await page({ startLedger: 1 });
    expect(first.events).toHaveLength(3);
    rpc.next({ kind: "samePage" });
    expect(await page({ pagination: { cursor: first.cursor } })).toEqual(first);
    expect((await page({ pagination: { cursor: first.cursor } })).events).toHaveLength(13);
  });

  test("serves a page from further back, but never to other filters", async () => {
    const { rpc, page } = await withFault({ kind: "shortPage", rows: 3 });
    const first = await page({ startLedger: 1 });
    const second = await page({ pagination: { cursor: first.cursor, limit: 3 } });
    rpc.next({ kind: "oldPage" });
    const filters = [{ contractIds: [CONTRACTS[1]] }];
    expect((await page({ filters, pagination: { cursor: second.cursor } })).events).toEqual([]);
    rpc.next({ kind: "oldPage" });
    expect(await page({ pagination: { cursor: second.cursor } })).toEqual(first);
  });

  test("cuts a window before its first match, with an honest cursor", async () => {
    const { page, rpc } = await withFault({ kind: "emptyPage" });
    rpc.node.chain.closeMany(3);
    rpc.node.chain.close(oneEvent);
    expect(await page({ pagination: { cursor: rpcCursorAfterLedger(8) } })).toMatchObject({
      events: [],
      cursor: rpcCursorAfterLedger(11),
      latestLedger: 12,
    });
  });

  test("makes a window short", async () => {
    const { page } = await withFault({ kind: "shortWindow", ledgers: 2 });
    const { events, cursor } = await page({ startLedger: 1 });
    expect([events.length, cursor]).toEqual([4, rpcCursorAfterLedger(2)]);
  });

  test.each<[Fault, (ids: string[], all: string[]) => void]>([
    [{ kind: "shuffle" }, (ids, all) => expect([...ids].sort()).toEqual(all)],
    [
      { kind: "repeatRows" },
      (ids, all) => expect([ids.length > all.length, [...new Set(ids)]]).toEqual([true, all]),
    ],
    [
      { kind: "dropRows" },
      (ids, all) =>
        expect([ids.length < all.length, ids]).toEqual([true, all.filter((id) => ids.includes(id))]),
    ],
  ])("%j changes the rows of a page and nothing else", async (fault, check) => {
    const { page } = await withFault(fault);
    const [wrong, right] = [await page({ startLedger: 1 }), await page({ startLedger: 1 })];
    check(
      wrong.events.map(({ id }) => id),
      right.events.map(({ id }) => id),
    );
    expect({ ...wrong, events: [] }).toEqual({ ...right, events: [] });
    expect(wrong.events).not.toEqual(right.events);
  });

  test("lets the node fall behind for one answer, or only its latestLedger go back", async () => {
    const { page, rpc } = await withFault({ kind: "lag", ledgers: 3 });
    rpc.next({ kind: "latestBack", ledgers: 3 });
    const [lagging, back, right] = [
      await page({ startLedger: 1 }),
      await page({ startLedger: 1 }),
      await page({ startLedger: 1 }),
    ];
    expect([lagging.latestLedger, lagging.events.length]).toEqual([5, 10]);
    expect([back.latestLedger, back.events, back.cursor]).toEqual([5, right.events, right.cursor]);
    expect(right.latestLedger).toBe(8);
  });
});

describe("a fault plan", () => {
  test("draws the same faults for the same seed", async () => {
    const faultsOf = async (seed: number) => {
      const rpc = await start({
        chain: startChain(),
        plan: { seed, rates: { internalError: 0.5, shuffle: 0.5 } },
      });
      for (let i = 0; i < 20; i++) await call(rpc.url, "getEvents", { startLedger: 1 });
      return rpc.requests.map(({ faults }) => faults);
    };
    expect(await faultsOf(5)).toEqual(await faultsOf(5));
    expect(await faultsOf(5)).not.toEqual(await faultsOf(6));
  });

  test("with every survivable fault still gives a correct client each event once", async () => {
    const rpc = await start({ chain: startChain() });
    await fc.assert(
      fc.asyncProperty(
        ledgers,
        fc.integer(),
        fc.integer({ min: 1, max: 20 }),
        async (events, seed, limit) => {
          const chain = chainOf(events);
          rpc.node.chain = chain;
          rpc.plan({ seed, rates: everyFault(0.08) });
          const { rows } = await readAll(pagesOf(rpc), {
            startLedger: chain.first,
            until: chain.latest,
            limit,
          });
          expect(rows).toEqual([...chain.events()]);
        },
      ),
      { numRuns: 40 },
    );
  });

  test("that names every survivable fault draws each of them, and never loses rows", () => {
    const { draw } = drawFaults({ seed: 1, rates: everyFault(0.5) });
    const kinds = new Set(
      Array.from({ length: 100 }, draw).flatMap((faults) => faults.map(({ kind }) => kind)),
    );
    expect([...kinds].sort()).toEqual(
      ["emptyPage", "error", "html", "lag", "latestBack", "oldPage", "repeatRows", "reset", "samePage"]
        .concat(["shortPage", "shortWindow", "shuffle", "status", "truncate"])
        .sort(),
    );
  });

  test("stops when told", async () => {
    const chain = startChain();
    chain.close();
    const rpc = await start({ chain, plan: { seed: 1, rates: { unavailable: 1 } } });
    await expect(call(rpc.url, "getHealth")).rejects.toThrow("HTTP 503");
    rpc.plan(undefined);
    expect(await result(rpc.url, "getHealth")).toMatchObject({ status: "healthy" });
  });
});

const data = (name: string) => fileURLToPath(new URL(`../../../../shared/data/${name}`, import.meta.url));
const recorded = ["getEvents-63092988.json.gz", "getEvents-63092990.json.gz"].map(data);
const examples = data("getEvents-testnet-examples.json");
const present = [...recorded, examples].every((path) => existsSync(path));
if (!present) console.warn("skipped: the recorded Stellar data (../shared/data) is absent");

describe.skipIf(!present)("recorded data", () => {
  test("of two mainnet ledgers is served unchanged, 565 and 636 rows", async () => {
    const [first, second] = recorded.map(readRecordedLedger);
    const chain = chainFromRecorded([first!, second!]);
    const rpc = await start({ chain });
    const range = { startLedger: first!.ledger, until: second!.ledger };
    for (const limit of [7, 10_000]) {
      const { rows } = await readAll(pagesOf(rpc), { ...range, limit });
      expect(rows.filter(({ ledger }) => ledger === first!.ledger)).toEqual(first!.events);
      expect(rows.filter(({ ledger }) => ledger === second!.ledger)).toEqual(second!.events);
      expect(rows).toHaveLength(565 + 636);
    }
    const { ledgers } = await result<{ ledgers: unknown[] }>(rpc.url, "getLedgers", {
      startLedger: first!.ledger,
    });
    expect(ledgers).toMatchObject([
      { sequence: 63_092_988, hash: first!.hash },
      { sequence: 63_092_989, hash: second!.previousLedgerHash },
      {
        sequence: 63_092_990,
        hash: second!.hash,
        ledgerCloseTime: String(Date.parse("2026-06-19T00:21:37Z") / 1000),
      },
    ]);
  });

  test("of a testnet node has the keys and types of the simulator's answers", async () => {
    const chain = startChain();
    chain.close({
      events: [
        {
          value: scv.i128(5n),
          contract: CONTRACTS[0]!,
          topics: [scv.sym("transfer"), scv.address(scv.accountId("a"))],
        },
      ],
    });
    const rpc = await start({ chain });
    const mine = await pagesOf(rpc)({ startLedger: 1, pagination: { limit: 1 } });
    const theirs = JSON.parse(readFileSync(examples, "utf8"));
    for (const name of ["TwoNativeTransferEvents", "AnyTwoEvents"]) {
      const { events, ...envelope } = theirs[name].value;
      expect(shapeOf({ ...mine, events: [] })).toEqual(shapeOf({ ...envelope, events: [] }));
      for (const event of events) expect(shapeOf(mine.events[0])).toEqual(shapeOf(event));
    }
  });
});

/** Keys with the types of their values. */
function shapeOf(value: unknown): Record<string, string> {
  const types = Object.entries(value as object).map(([key, item]) => [
    key,
    Array.isArray(item) ? `list of ${[...new Set(item.map((each) => typeof each))]}` : typeof item,
  ]);
  return Object.fromEntries(types);
}
