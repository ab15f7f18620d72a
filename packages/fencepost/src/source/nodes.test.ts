import { setTimeout as sleep } from "node:timers/promises";
import { type Fault, type RpcServer, scv, startChain, startRpc } from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { never, noWait, windowOf } from "../__tests__/support/windows.ts";
import {
  RpcResponseError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./errors.ts";
import type { Source } from "./source.ts";
import { type StellarRpcOptions, stellarRpc, stellarRpcWith } from "./stellarRpc.ts";

const A = scv.contractId("a");
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function chainOf(ledgers: number, options = {}) {
  const chain = startChain(options);
  for (let i = 0; i < ledgers; i++) {
    chain.close({ events: [{ contract: A, topics: [scv.sym("locked")], value: scv.u32(i) }] });
  }
  return chain;
}

async function serve(options: Parameters<typeof startRpc>[0]): Promise<RpcServer> {
  const rpc = await startRpc(options);
  closing.push(rpc.close);
  return rpc;
}

function open(urls: StellarRpcOptions["urls"], options: Partial<StellarRpcOptions> = {}) {
  const waits: number[] = [];
  const wait = async (ms: number): Promise<void> => {
    waits.push(ms);
  };
  return { waits, source: stellarRpcWith({ network: "testnet", urls, ...options }, wait) };
}

const read = (source: Source, fromLedger = 1) => source.window({ fromLedger, contractIds: [A] }, never);
const calls = (rpc: RpcServer, method = "getEvents") =>
  rpc.requests.filter((request) => request.method === method).length;

describe("one failed answer is survived:", () => {
  const rpcError = (code: number, message: string): Fault => ({ kind: "error", code, message });
  test.each<[string, Fault]>([
    ["HTTP 429", { kind: "status", status: 429, retryAfter: 1 }],
    ["HTTP 503", { kind: "status", status: 503 }],
    ["HTTP 504", { kind: "status", status: 504 }],
    ["HTML with 200", { kind: "html" }],
    ["half of an answer", { kind: "truncate" }],
    ["a reset before the answer", { kind: "reset", when: "before" }],
    ["a reset in the answer", { kind: "reset", when: "middle" }],
    ["no answer", { kind: "hang" }],
    ["a database that fails", rpcError(-32600, "could not read from the database: disk I/O error")],
    ["an empty node", rpcError(-32603, "DB is empty")],
    ["the processing limit", rpcError(-32001, "request exceeded processing limit threshold")],
    ["a full queue", rpcError(-32098, "queue is full")],
  ])("%s", async (_, fault) => {
    const rpc = await serve({ chain: chainOf(4) });
    const { source, waits } = open(rpc.url, { timeoutMs: 500 });
    rpc.next(fault);
    expect(windowOf(await read(source)).events).toHaveLength(4);
    expect(calls(rpc)).toBe(2);
    expect(waits[0]).toBeGreaterThanOrEqual(125);
    expect(waits[0]).toBeLessThanOrEqual(250);
  });

  test.each<[string, Fault]>([
    ["the same page again", { kind: "samePage" }],
    ["an older page", { kind: "oldPage" }],
    ["rows out of order", { kind: "shuffle" }],
    ["rows twice", { kind: "repeatRows" }],
    ["an empty page before the first match", { kind: "emptyPage" }],
    ["fewer rows than asked for", { kind: "shortPage", rows: 1 }],
    ["a window of two ledgers", { kind: "shortWindow", ledgers: 2 }],
    ["latestLedger going back", { kind: "latestBack", ledgers: 3 }],
  ])("%s, with every event once and in order", async (_, fault) => {
    const rpc = await serve({ chain: chainOf(9) });
    const { source } = open(rpc.url, { pageLimit: 2 });
    for (let i = 0; i < 3; i++) {
      rpc.next({ kind: "shortPage", rows: 2 });
      rpc.next(fault);
    }
    const found: number[] = [];
    for (let next = 1; next <= 9; ) {
      const window = windowOf(await read(source, next));
      found.push(...window.events.map((event) => event.ledger));
      next = window.throughLedger + 1;
    }
    expect(found).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });
});

describe("failures that last", () => {
  test("end after five tries, with waits that grow, by the name of the failure", async () => {
    const rpc = await serve({ chain: chainOf(1), plan: { seed: 1, rates: { unavailable: 1 } } });
    const { source, waits } = open(rpc.url);
    await expect(read(source)).rejects.toThrow(SourceUnavailableError);
    expect(rpc.requests).toHaveLength(5);
    expect(waits).toHaveLength(4);
    for (const [i, ms] of waits.entries()) {
      expect(ms).toBeGreaterThanOrEqual(125 * 2 ** i);
      expect(ms).toBeLessThanOrEqual(250 * 2 ** i);
    }
  });

  test("do not lose the ledgers that were complete before", async () => {
    const rpc = await serve({ chain: chainOf(9) });
    const { source } = open(rpc.url, { pageLimit: 4 });
    rpc.next({ kind: "shortPage", rows: 4 });
    for (let i = 0; i < 5; i++) rpc.next({ kind: "status", status: 503 });
    expect(windowOf(await read(source)).events.map((e) => e.ledger)).toEqual([1, 2, 3]);
    for (let i = 0; i < 5; i++) rpc.next({ kind: "status", status: 503 });
    await expect(read(source, 4)).rejects.toThrow(SourceUnavailableError);
  });

  test("of the node itself keep their code", async () => {
    const chain = startChain();
    const { source } = open((await serve({ chain })).url);
    await expect(read(source)).rejects.toMatchObject({
      name: "RpcResponseError",
      code: -32603,
      message: expect.stringContaining("DB is empty"),
    });
  });

  test("by a request that the node calls invalid are not tried again", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    const { source, waits } = open(rpc.url);
    rpc.next({ kind: "error", code: -32602, message: "filter 1 invalid" });
    await expect(read(source)).rejects.toThrow(RpcResponseError);
    expect(waits).toEqual([]);
  });
});

describe("retry-after", () => {
  test("is waited for before the node is asked again", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    const { source, waits } = open(rpc.url);
    rpc.next({ kind: "status", status: 429, retryAfter: 30 });
    await read(source);
    expect(Math.max(...waits)).toBeGreaterThan(25_000);
  });

  test("is waited for by the next window too, when the window was given up", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    const { source, waits } = open(rpc.url);
    for (let i = 0; i < 5; i++) rpc.next({ kind: "status", status: 429, retryAfter: 30 });
    await expect(read(source)).rejects.toThrow(/HTTP 429/);
    waits.length = 0;
    await read(source);
    expect(waits).toHaveLength(1);
    expect(waits[0]).toBeGreaterThan(25_000);
  });

  test("of one node does not hold up another", async () => {
    const [one, two] = [await serve({ chain: chainOf(1) }), await serve({ chain: chainOf(1) })];
    const { source, waits } = open([one.url, two.url]);
    one.next({ kind: "status", status: 429, retryAfter: 30 });
    await read(source);
    expect(Math.max(...waits)).toBeLessThanOrEqual(250);
    expect(calls(two)).toBe(1);
  });
});

describe("an abort", () => {
  test("ends a call at once, with its reason", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    const { source } = open(rpc.url, { timeoutMs: 600_000 });
    await source.check(never);
    rpc.next({ kind: "hang" });
    const stop = new AbortController();
    const settled = expect(source.window({ fromLedger: 1, contractIds: [A] }, stop.signal)).rejects;
    await rpc.waitFor(rpc.requests.length + 1);
    stop.abort(new Error("stopping"));
    await settled.toThrow("stopping");
  });

  test("ends the wait before a retry at once", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    const stop = new AbortController();
    const wait = (ms: number, signal: AbortSignal) => {
      setImmediate(() => stop.abort());
      return sleep(ms, undefined, { signal });
    };
    const source = stellarRpcWith({ network: "testnet", urls: rpc.url }, wait);
    for (let i = 0; i < 5; i++) rpc.next({ kind: "status", status: 429, retryAfter: 60 });
    await expect(source.window({ fromLedger: 1, contractIds: [A] }, stop.signal)).rejects.toMatchObject({
      name: "AbortError",
    });
    expect(calls(rpc)).toBe(1);
  });
});

describe("a node that is not the right one", () => {
  test("by its network is refused before a row is read, naming both networks", async () => {
    const rpc = await serve({
      chain: chainOf(1, { passphrase: "Public Global Stellar Network ; September 2015" }),
    });
    const { source } = open(`${rpc.url}/secret?key=secret`);
    for (const attempt of [() => source.check(never), () => read(source)]) {
      const error = await attempt().catch((e: unknown) => e);
      expect(error).toBeInstanceOf(WrongNetworkError);
      expect((error as Error).message).toContain("Public Global Stellar Network");
      expect((error as Error).message).toContain("Test SDF Network");
      expect((error as Error).message).not.toContain("secret");
    }
    expect(calls(rpc)).toBe(0);
  });

  test.each(["22.1.5", "v22.0.0", "21.4.0-a1b2c3", "0.0.0", "nonsense"])(
    "by its version %s is refused before a row is read",
    async (version) => {
      const rpc = await serve({ chain: chainOf(1), version });
      const { source } = open(rpc.url);
      await expect(read(source)).rejects.toThrow(UnsupportedRpcVersionError);
      expect(calls(rpc)).toBe(0);
    },
  );

  test("because it does not know its version is refused as too old", async () => {
    const rpc = await serve({ chain: chainOf(1) });
    rpc.next({ kind: "error", code: -32601, message: "method not found" }, "getVersionInfo");
    await expect(read(open(rpc.url).source)).rejects.toThrow(UnsupportedRpcVersionError);
  });

  test.each(["23.0.0", "v23.0.1", "23.0.0-rc.1", "28.1.0-commit"])(
    "is not meant by version %s",
    async (version) => {
      const rpc = await serve({ chain: chainOf(1), version });
      expect((await read(open(rpc.url).source)).kind).toBe("window");
    },
  );

  test("is found at the start also when it is the second url", async () => {
    const [one, two] = [
      await serve({ chain: chainOf(1) }),
      await serve({ chain: chainOf(1), version: "22.0.0" }),
    ];
    await expect(open([one.url, two.url]).source.check(never)).rejects.toThrow(UnsupportedRpcVersionError);
  });

  test("does not keep the others from being asked after it", async () => {
    const [one, two] = [
      await serve({ chain: chainOf(1) }),
      await serve({ chain: chainOf(1), version: "22.0.0" }),
    ];
    const { source } = open([one.url, two.url]);
    await read(source);
    one.next({ kind: "status", status: 503 });
    await expect(read(source)).rejects.toThrow(UnsupportedRpcVersionError);
    expect((await read(source)).kind).toBe("window");
  });
});

describe("several nodes", () => {
  const DOWN = "http://127.0.0.1:1";

  test("are asked in turn when one fails, from a text with commas or a list", async () => {
    const rpc = await serve({ chain: chainOf(3) });
    for (const urls of [`${DOWN}, ${rpc.url},`, [DOWN, rpc.url]]) {
      const { source, waits } = open(urls);
      expect(windowOf(await read(source)).events).toHaveLength(3);
      expect(waits).toHaveLength(1);
      await read(source);
      expect(waits).toHaveLength(1); // it stays with the one that answered
    }
  });

  test("are one chain: a page of one goes on at the cursor of the other", async () => {
    const chain = chainOf(6);
    const [one, two] = [await serve({ chain }), await serve({ chain })];
    const { source } = open([one.url, two.url], { pageLimit: 2 });
    one.next({ kind: "shortPage", rows: 2 });
    one.next({ kind: "status", status: 503 });
    expect(windowOf(await read(source)).events.map((e) => e.ledger)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(calls(two)).toBeGreaterThan(0);
  });

  test("tell at the start the widest range, also while one of them is down", async () => {
    const full = await serve({ chain: chainOf(20) });
    const short = await serve({ chain: chainOf(22, { retention: 5 }) });
    const { source } = open([short.url, DOWN, full.url]);
    expect(await source.check(never)).toEqual({ latestLedger: 22, oldestLedger: 1 });
  });

  test("that all cannot be used fail the check by name", async () => {
    const rpc = await serve({ chain: chainOf(1), unhealthy: true });
    await expect(open(rpc.url).source.check(never)).rejects.toThrow(/latency/);
    await expect(open(DOWN).source.check(never)).rejects.toThrow(SourceUnavailableError);
  });

  test("are a gap only when none of them has the ledger", async () => {
    const chain = chainOf(20);
    const short = await serve({ chain: chainOf(20, { retention: 5 }) });
    const shorter = await serve({ chain: chainOf(20, { retention: 3 }) });
    const full = await serve({ chain });
    const { source } = open([short.url, full.url]);
    expect(windowOf(await read(source, 4)).events[0]?.ledger).toBe(4);
    const both = open([shorter.url, short.url]);
    expect(await read(both.source, 4)).toMatchObject({ kind: "gap", fromLedger: 4, throughLedger: 15 });
  });

  test("are no gap while one of them cannot be asked: nobody knows yet", async () => {
    const short = await serve({ chain: chainOf(20, { retention: 5 }) });
    await expect(read(open([short.url, DOWN]).source, 4)).rejects.toThrow(SourceUnavailableError);
  });

  test("are no gap because of one answer that a look again does not confirm", async () => {
    const chain = chainOf(20);
    const rpc = await serve({ chain });
    const { source } = open(rpc.url);
    const odd = "startLedger must be within the ledger range: 15 - 20";
    rpc.next({ kind: "error", code: -32600, message: odd });
    expect((await read(source, 4)).kind).toBe("window");
  });

  test("take turns when one is behind", async () => {
    const chain = chainOf(9);
    const [stale, good] = [await serve({ chain, lag: 5 }), await serve({ chain })];
    const { source } = open([stale.url, good.url]);
    expect((await read(source, 9)).kind).toBe("behind");
    expect(windowOf(await read(source, 9)).throughLedger).toBe(9);
  });

  test("take turns when one has no news for long: it may be stale", async () => {
    const chain = chainOf(9);
    const [stale, good] = [await serve({ chain, lag: 2 }), await serve({ chain })];
    const { source } = open([stale.url, good.url]);
    const kinds: string[] = [];
    while (kinds.at(-1) !== "window" && kinds.length < 50) kinds.push((await read(source, 8)).kind);
    expect(kinds).toEqual([...Array(10).fill("idle"), "window"]);
  });
});

describe("urls", () => {
  const openUrls = (urls: StellarRpcOptions["urls"]) => () => stellarRpc({ network: "testnet", urls });

  test.each([undefined, "", " ", ",", " , ", [], [""]])(
    "that are empty (%j) name the variable to set",
    (urls) => {
      expect(openUrls(urls)).toThrow(new TypeError("source.urls is empty: set STELLAR_RPC_URL."));
    },
  );

  test.each([
    ["not a url/secret"],
    ["ftp://host/secret"],
    ["http://good.example/, host/secret"],
    [["http://good.example", "secret"]],
  ])("that are none (%j) are refused without showing them", (urls) => {
    expect(openUrls(urls)).toThrow(/^source\.urls: number [12] is not an http or https url\.$/);
  });
});

test("a network is a known name, or given whole", () => {
  const urls = "http://127.0.0.1:1";
  expect(stellarRpc({ network: "pubnet", urls }).chain).toEqual({ stream: "pubnet", epoch: "20150930" });
  const own = { name: "standalone", passphrase: "Standalone Network ; February 2017", epoch: "20260101" };
  expect(stellarRpc({ network: own, urls })).toMatchObject({
    passphrase: own.passphrase,
    chain: { stream: "standalone", epoch: "20260101" },
  });
  expect(() => stellarRpc({ network: { ...own, name: "My Net" }, urls })).toThrow(
    /A stream is 1 to 32 of a-z/,
  );
  expect(() => stellarRpc({ network: { ...own, epoch: "20260231" }, urls })).toThrow(/An epoch is a date/);
  for (const network of ["mainnet", "toString"]) {
    expect(() => stellarRpc({ network: network as "pubnet", urls })).toThrow(/use "pubnet", "testnet" or/);
  }
});

test("waits between retries are real ones unless they are passed in", async () => {
  const rpc = await serve({ chain: chainOf(1) });
  rpc.next({ kind: "status", status: 503 });
  expect((await read(stellarRpc({ network: "testnet", urls: rpc.url }))).kind).toBe("window");
  expect((await read(stellarRpcWith({ network: "testnet", urls: rpc.url }, noWait))).kind).toBe("window");
});
