import { rm } from "node:fs/promises";
import { type Chain, lakeKey, startChain, writeLake } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { never, windowOf } from "../../__tests__/support/windows.ts";
import { ChainResetError, EpochMismatchError } from "../errors.ts";
import type { LedgerRef } from "../source.ts";
import { ask, chainWithLake, closeThrough, opened, POOL } from "./__tests__/support/lakes.ts";
import { dataLake, dataLakeWith } from "./dataLake.ts";

const open = opened();
afterEach(open.closeAll);

function refOf(chain: Chain, ledger: number): LedgerRef {
  const { hash, closedAt } = chain.ledger(ledger)!;
  return { ledger, hash, closedAt };
}

const from = (fromLedger: number, anchor: LedgerRef) => ({ fromLedger, contractIds: [POOL], anchor });

/** Another life of the chain of which ledger `n` closes as much later. */
function laterLife(seconds: number): Chain {
  const before = startChain({ firstLedger: 2 });
  return startChain({ firstLedger: 2, life: "second", startTime: before.close().closedAt + seconds });
}

test("a lake that has the anchor gives windows, and one that has another ledger in its place gives none", async () => {
  const [folder, other] = [await open.folder(), await open.folder()];
  const chain = await chainWithLake(folder, 20);
  const reset = await chainWithLake(other, 30, { life: "second" });
  const anchor = refOf(chain, 15);
  const lake = dataLake({ network: "testnet", url: folder });
  expect(windowOf(await lake.window(from(16, anchor), never)).throughLedger).toBe(20);
  expect(await lake.check(never, anchor)).toEqual({ oldestLedger: 2, latestLedger: 20 });

  // It has grown past the cursor, and its close times are those of the other life.
  const after = dataLake({ network: "testnet", url: other });
  const answer = { kind: "reset", anchor, found: refOf(reset, 15) };
  expect(await after.window(from(16, anchor), never)).toEqual(answer);
  expect(await after.window(from(3, anchor), never)).toEqual(answer);
  await expect(after.check(never, anchor)).rejects.toThrow(ChainResetError);
});

test("a lake that has not come to the anchor is of another chain if its newest ledger closed later", async () => {
  const folder = await open.folder();
  const chain = await chainWithLake(await open.folder(), 40);
  const anchor = refOf(chain, 40);
  const reset = laterLife(10_000);
  closeThrough(reset, 9);
  await writeLake(folder, reset);
  const lake = dataLake({ network: "testnet", url: folder });
  expect(await lake.window(from(41, anchor), never)).toEqual({
    kind: "reset",
    anchor,
    found: refOf(reset, 9),
  });
  await expect(lake.check(never, anchor)).rejects.toThrow(ChainResetError);
});

test("a lake that is merely behind the anchor is of its chain", async () => {
  const folder = await open.folder();
  const chain = await chainWithLake(folder, 9);
  closeThrough(chain, 40);
  const lake = dataLake({ network: "testnet", url: folder });
  const anchor = refOf(chain, 40);
  expect(await lake.check(never, anchor)).toEqual({ oldestLedger: 2, latestLedger: 9 });
  expect(windowOf(await lake.window(from(3, anchor), never)).throughLedger).toBe(9);
  expect(await lake.window(from(41, anchor), never)).toMatchObject({ kind: "behind" });
});

test("a lake that no longer has the anchor is of another chain if a ledger in it contradicts the anchor", async () => {
  const [folder, other] = [await open.folder(), await open.folder()];
  const chain = await chainWithLake(folder, 40);
  const anchor = refOf(chain, 8);
  for (let ledger = 2; ledger <= 20; ledger++) await rm(`${folder}/${lakeKey(ledger)}`);
  const lake = dataLake({ network: "testnet", url: folder });
  expect(windowOf(await lake.window(from(21, anchor), never)).throughLedger).toBe(40);

  const early = laterLife(-10_000);
  closeThrough(early, 40);
  await writeLake(other, early, { from: 21 });
  const found = refOf(early, 40);
  const reset = dataLake({ network: "testnet", url: other });
  expect(await reset.window(from(21, anchor), never)).toEqual({ kind: "reset", anchor, found });
});

test("the anchor is looked for once in a while, not for each window, and a ledger that contradicts it is not given", async () => {
  const folder = await open.folder();
  const chain = await chainWithLake(folder, 20);
  const server = await open.http(folder);
  let now = 0;
  const lake = dataLakeWith({ network: "testnet", url: server.url, ahead: 1 }, () => now);
  const anchor = refOf(chain, 5);
  const looks = () =>
    server.requests.filter(({ method, key }) => method === "GET" && key === lakeKey(5)).length;
  for (const ledger of [16, 17, 18])
    await lake.window({ ...from(ledger, anchor), throughLedger: ledger }, never);
  expect(looks()).toBe(1);

  const early = laterLife(-10_000);
  closeThrough(early, 20);
  await writeLake(folder, early, { from: 20 });
  expect(windowOf(await lake.window({ ...from(19, anchor), throughLedger: 19 }, never)).events).toHaveLength(
    1,
  );
  const fresh = dataLakeWith({ network: "testnet", url: server.url }, () => now);
  expect(await fresh.window(from(20, anchor), never)).toEqual({
    kind: "reset",
    anchor,
    found: refOf(early, 20),
  });

  now += 300_001;
  await lake.window({ ...from(16, anchor), throughLedger: 16 }, never);
  expect(looks()).toBe(3);
});

test("a lake whose newest ledger does not fit the epoch is refused at the start", async () => {
  const folder = await open.folder();
  await chainWithLake(folder, 20);
  const { passphrase } = startChain();
  const network = (epoch: string) => ({ name: "testnet", passphrase, epoch });
  await expect(dataLake({ network: network("20250101"), url: folder }).check(never)).rejects.toThrow(
    EpochMismatchError,
  );
  const lake = dataLake({ network: network("20251217"), url: folder });
  expect(await lake.check(never)).toEqual({ oldestLedger: 2, latestLedger: 20 });
  expect(windowOf(await ask(lake, 2)).throughLedger).toBe(20);
});
