import {
  type Chain,
  type NodeSettings,
  type RpcServer,
  scv,
  startChain,
  startRpc,
} from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { never, noWait, windowOf } from "../__tests__/support/windows.ts";
import { ChainResetError, EpochMismatchError, SourceUnavailableError } from "./errors.ts";
import type { LedgerRef, Source } from "./source.ts";
import { stellarRpcWith } from "./stellarRpc.ts";

const A = scv.contractId("a");
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function chainOf(ledgers: number, options = {}): Chain {
  const chain = startChain(options);
  for (let i = 0; i < ledgers; i++) {
    chain.close({ events: [{ contract: A, topics: [scv.sym("locked")], value: scv.u32(i) }] });
  }
  return chain;
}

async function serve(
  chain: Chain,
  settings: Partial<NodeSettings> = {},
): Promise<{ rpc: RpcServer; source: Source }> {
  const rpc = await startRpc({ chain, ...settings });
  closing.push(rpc.close);
  return { rpc, source: stellarRpcWith({ network: "testnet", urls: rpc.url, pageLimit: 7 }, noWait) };
}

const refOf = (chain: Chain, sequence: number): LedgerRef => {
  const { hash, closedAt } = chain.ledger(sequence) ?? { hash: "", closedAt: 0 };
  return { ledger: sequence, hash, closedAt };
};
const read = (source: Source, fromLedger: number, anchor: LedgerRef) =>
  source.window({ fromLedger, contractIds: [A], anchor }, never);

/** A chain at ledger 30, which was read up to 20, with an anchor at 25. */
const before = chainOf(30);
const anchor = refOf(before, 25);
/** The same hours, so that close times tell nothing: only its hashes do. */
const sameTimes = { life: "second", startTime: Date.UTC(2025, 11, 17, 17) / 1000 };

describe("another chain is told", () => {
  test.each<[string, Chain, Partial<NodeSettings>]>([
    ["where it has grown past the anchor", chainOf(400, { life: "second" }), {}],
    ["where it has not come to the cursor yet", chainOf(5, { life: "second" }), {}],
    ["where it stands between the cursor and the anchor", chainOf(22, { life: "second" }), {}],
    ["where it stands at the cursor itself", chainOf(21, { life: "second" }), {}],
    ["where only its hashes differ", chainOf(400, sameTimes), {}],
    ["at a provider without getLedgers", chainOf(400, { life: "second" }), { unsupported: ["getLedgers"] }],
    [
      "at a provider with nothing but getEvents",
      chainOf(5, { life: "second" }),
      { unsupported: ["getLedgers", "getLatestLedger", "getHealth"] },
    ],
    ["where it no longer has the ledger of the anchor", chainOf(400, { life: "second", retention: 376 }), {}],
    [
      "behind a provider that answers expired cursors with an empty page",
      chainOf(400, { life: "second", retention: 50 }),
      { expired: "empty" },
    ],
  ])("%s", async (_, chain, settings) => {
    const { rpc, source } = await serve(before);
    expect(windowOf(await read(source, 21, anchor)).throughLedger).toBe(30);
    Object.assign(rpc.node, settings, { chain });
    for (const asked of [source, (await serve(chain, settings)).source]) {
      const answer = await read(asked, 21, anchor);
      // With the anchor's ledger gone, what is left is the hole: nothing is read of the new chain either.
      if (chain.oldestAt(chain.latest) > 25) expect(answer.kind).toBe("gap");
      else expect(answer).toMatchObject({ kind: "reset", anchor });
    }
  });

  test("with the hash that its ledger has now", async () => {
    const after = chainOf(400, { life: "second" });
    const { source } = await serve(after);
    expect(await read(source, 21, anchor)).toEqual({ kind: "reset", anchor, found: refOf(after, 25) });
    const short = chainOf(5, { life: "second" });
    const { source: other } = await serve(short);
    expect(await read(other, 21, anchor)).toEqual({ kind: "reset", anchor, found: refOf(short, 5) });
  });

  test("at the start, by both", async () => {
    const after = chainOf(400, { life: "second", startTime: Date.UTC(2025, 11, 18) / 1000 });
    const { source } = await serve(after);
    const error = await source.check(never, anchor).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ChainResetError);
    const { message } = error as Error;
    expect(message).toContain(before.ledger(25)?.hash);
    expect(message).toContain(after.ledger(25)?.hash);
    expect(message).toContain('"fencepost epoch begin"');
    await expect((await serve(before)).source.check(never, anchor)).resolves.toMatchObject({
      latestLedger: 30,
    });
  });

  test("also by an anchor without a hash", async () => {
    const { source } = await serve(chainOf(400, { life: "second" }));
    expect(await read(source, 21, { ...anchor, hash: null })).toMatchObject({ kind: "reset" });
  });

  test("between two pages of one window", async () => {
    const { rpc, source } = await serve(before);
    const changing = source.window({ fromLedger: 1, contractIds: [A], anchor }, never);
    await rpc.waitFor(4); // network, version, the first page, the look at the anchor
    rpc.node.chain = chainOf(400, { life: "second" });
    const answer = await changing;
    if (answer.kind === "window") {
      // What was complete before is given, and of the old chain; the next question finds the new one.
      for (const { closedAt, ledger } of answer.events) {
        expect(Date.parse(closedAt) / 1000).toBe(before.ledger(ledger)?.closedAt);
      }
      expect(await read(source, answer.throughLedger + 1, anchor)).toMatchObject({ kind: "reset" });
    } else expect(answer.kind).toBe("reset");
  });
});

describe("the same chain is not taken for another one", () => {
  test("where it stood still, is behind, or forgot the anchor", async () => {
    const chain = chainOf(30);
    chain.close({ closedAt: (chain.ledger(30)?.closedAt ?? 0) + 40 * 86_400 });
    const { rpc, source } = await serve(chain);
    const known = refOf(chain, 25);
    expect((await read(source, 21, known)).kind).toBe("window");
    rpc.node.lag = 15;
    expect((await read(source, 21, known)).kind).toBe("behind");
    rpc.node.lag = 0;
    chain.retain(3);
    expect((await read(source, 31, known)).kind).toBe("window");
  });

  test("by an odd answer: a close time that does not fit is asked about before it is believed", async () => {
    const chain = chainOf(30);
    const { rpc, source } = await serve(chain);
    const newest = refOf(chain, 30);
    await read(source, 21, newest);
    chain.close();
    // The newest ledger goes back and its close time does not; more often than a ledger is looked at by itself.
    for (let i = 0; i < 3; i++) rpc.next({ kind: "latestBack", ledgers: 9 });
    expect(windowOf(await read(source, 21, newest)).throughLedger).toBe(31);
    for (let i = 0; i < 5; i++) rpc.next({ kind: "latestBack", ledgers: 9 });
    await expect(read(source, 21, newest)).rejects.toThrow(SourceUnavailableError);
  });

  test("while nobody can be asked", async () => {
    const { rpc, source } = await serve(chainOf(400, { life: "second" }));
    for (let i = 0; i < 5; i++) rpc.next({ kind: "status", status: 503 }, "getLedgers");
    await expect(read(source, 21, anchor)).rejects.toThrow(SourceUnavailableError);
  });
});

test("the ledger of the anchor is looked at once, and not with each window", async () => {
  const { rpc, source } = await serve(before);
  for (let i = 0; i < 5; i++) await read(source, 21, anchor);
  expect(rpc.requests.filter(({ method }) => method === "getLedgers")).toHaveLength(1);
});

describe("an epoch that does not fit the chain", () => {
  test("is refused at the start, naming when the chain began", async () => {
    const { source } = await serve(chainOf(30, { startTime: Date.UTC(2026, 11, 16, 17) / 1000 }));
    await expect(source.check(never)).rejects.toThrow(EpochMismatchError);
    await expect(source.check(never)).rejects.toThrow(/began between 2026-12-16 and 2026-12-16.*20251217/);
  });

  test("is no matter for a network of one's own, which may close ledgers at any pace", async () => {
    const rpc = await startRpc({
      chain: chainOf(30, {
        passphrase: "My Network",
        startTime: Date.UTC(2026, 5, 1) / 1000,
        secondsPerLedger: 3_600,
      }),
    });
    closing.push(rpc.close);
    const network = { name: "local", passphrase: "My Network", epoch: "20260501" };
    const source = stellarRpcWith({ network, urls: rpc.url }, noWait);
    await expect(source.check(never)).resolves.toMatchObject({ latestLedger: 30 });
    const later = stellarRpcWith({ network: { ...network, epoch: "20270101" }, urls: rpc.url }, noWait);
    await expect(later.check(never)).rejects.toThrow(EpochMismatchError);
  });

  test("is not known, and not refused, where the node does not tell close times", async () => {
    const { source } = await serve(chainOf(30, { startTime: Date.UTC(2026, 11, 16, 17) / 1000 }), {
      unsupported: ["getLedgers"],
      hides: () => true,
    });
    await expect(source.check(never)).resolves.toMatchObject({ latestLedger: 30 });
  });
});
