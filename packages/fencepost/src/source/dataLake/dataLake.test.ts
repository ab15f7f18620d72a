import { cp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { zstdCompressSync, zstdDecompressSync } from "node:zlib";
import {
  chainFromRecorded,
  lakeKey,
  PUBNET_PASSPHRASE,
  scv,
  startChain,
  startRpc,
  transfers,
  writeLake,
} from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { never, noWait, readToEnd, windowOf } from "../../__tests__/support/windows.ts";
import { stellarRpcWith } from "../stellarRpc.ts";
import {
  ask,
  chainWithLake,
  closeThrough,
  opened,
  POOL,
  readAll,
  S3_KEY,
  skippable,
} from "./__tests__/support/lakes.ts";
import { eventOf, recorded } from "./__tests__/support/recorded.ts";
import { type DataLakeOptions, dataLake, dataLakeWith } from "./dataLake.ts";

const open = opened();
afterEach(open.closeAll);

type Place = Pick<DataLakeOptions, "url" | "s3">;

/** Where the lake in a folder can be read. */
const places: [string, (folder: string) => Promise<Place>][] = [
  ["a folder", async (folder) => ({ url: folder })],
  ["a file:// url", async (folder) => ({ url: pathToFileURL(folder).href })],
  ["http", async (folder) => ({ url: `${(await open.http(folder)).url}/` })],
  [
    "S3",
    async (folder) => {
      const { url } = await open.s3(folder);
      return { url: "s3://lakes", s3: { endpoint: url, ...S3_KEY } };
    },
  ],
];

describe.each(places)("a lake in %s", (_, placeOf) => {
  const layout = { ledgersPerBatch: 2, batchesPerPartition: 4 };

  test("gives every event of its whole batches, says where it ends, and goes on when more is written", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(folder, 12, layout);
    const lake = dataLake({ network: "testnet", ...(await placeOf(folder)) });
    expect(await lake.check(never)).toEqual({ oldestLedger: 2, latestLedger: 11 });

    const first = await readAll(lake, [POOL], 2);
    expect(first.events).toEqual([...chain.events()].filter((row) => row.ledger <= 11).map(eventOf));
    expect(first.last).toEqual({ kind: "idle", oldestLedger: 2, latestLedger: 11 });

    closeThrough(chain, 21);
    await writeLake(folder, chain, { ...layout, from: 12 });
    const more = await readAll(lake, [POOL], 12);
    expect(more.events).toEqual([...chain.events()].filter((row) => row.ledger > 11).map(eventOf));
    expect(more.last).toEqual({ kind: "idle", oldestLedger: 2, latestLedger: 21 });
  });

  test("gives a window of the ledgers that are asked for, also inside a batch, and says what each ledger is", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(folder, 31, layout);
    const lake = dataLake({ network: "testnet", ...(await placeOf(folder)) });
    const window = windowOf(await ask(lake, 7, 12));
    expect(window).toMatchObject({ fromLedger: 7, throughLedger: 12, oldestLedger: 2, latestLedger: 31 });
    expect(window.events.map(({ ledger }) => ledger)).toEqual([7, 8, 9, 10, 11, 12]);
    for (const sequence of [2, 7, 12, 31]) {
      const { hash, closedAt } = chain.ledger(sequence)!;
      expect(await lake.ledger!(sequence, never)).toEqual({ ledger: sequence, hash, closedAt });
    }
    for (const sequence of [1, 32]) expect(await lake.ledger!(sequence, never)).toBeNull();
  });

  test("tells a hole by its ledgers, and reads on beyond it", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 39, layout);
    const lake = dataLake({ network: "testnet", ...(await placeOf(folder)) });
    await rm(join(folder, lakeKey(20, layout))); // 20 and 21
    await rm(join(folder, "FFFFFFE7--24-31"), { recursive: true });
    const head = { oldestLedger: 2, latestLedger: 39 };
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(19);
    expect(await ask(lake, 20)).toEqual({ kind: "gap", fromLedger: 20, throughLedger: 21, ...head });
    expect(await ask(lake, 21)).toMatchObject({ kind: "gap", fromLedger: 21, throughLedger: 21 });
    expect(windowOf(await ask(lake, 22)).throughLedger).toBe(23);
    expect(await ask(lake, 24)).toMatchObject({ kind: "gap", fromLedger: 24, throughLedger: 31 });
    expect(await ask(lake, 26, 28)).toMatchObject({ kind: "gap", fromLedger: 26, throughLedger: 28 });
    expect(windowOf(await ask(lake, 32)).throughLedger).toBe(39);
    expect(await ask(lake, 40)).toEqual({ kind: "idle", ...head });
    expect(await ask(lake, 41)).toEqual({ kind: "behind", ...head });
  });

  test("that begins later is told to begin there", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 39, layout);
    for (const partition of ["FFFFFFFF--0-7", "FFFFFFF7--8-15"])
      await rm(join(folder, partition), { recursive: true });
    await rm(join(folder, lakeKey(16, layout)));
    const lake = dataLake({ network: "testnet", ...(await placeOf(folder)), oldestLedger: 18 });
    expect(await lake.check(never)).toEqual({ oldestLedger: 18, latestLedger: 39 });
    expect(await ask(lake, 5)).toMatchObject({ kind: "gap", fromLedger: 5, throughLedger: 17 });
    expect(windowOf(await ask(lake, 18)).throughLedger).toBe(39);
  });

  test("may have objects of both extensions, and other files beside them", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(folder, 7, { ...layout, extension: "xdr.zstd" });
    closeThrough(chain, 15);
    await writeLake(folder, chain, { ...layout, from: 8 });
    await cp(join(folder, lakeKey(8, layout)), join(folder, "00000000--4294967295.xdr.zst.tmp"));
    await writeFile(join(folder, "README"), "a lake");
    const lake = dataLake({ network: "testnet", ...(await placeOf(folder)) });
    const { events, last } = await readAll(lake, [POOL], 2);
    expect(events).toEqual([...chain.events()].map(eventOf));
    expect(last).toMatchObject({ kind: "idle", latestLedger: 15 });
  });
});

test("an object may have several zstd frames, as packing in parallel and appending make them", async () => {
  const folder = await open.folder();
  const chain = await chainWithLake(folder, 7, { ledgersPerBatch: 4 });
  for (const start of [2, 4]) {
    const path = join(folder, lakeKey(start, { ledgersPerBatch: 4 }));
    const xdr = zstdDecompressSync(await readFile(path));
    const frames = [xdr.subarray(0, 999), xdr.subarray(999)].map((part) => zstdCompressSync(part));
    await writeFile(path, Buffer.concat(frames.flatMap((frame) => [skippable(4), frame])));
  }
  const { events, last } = await readAll(dataLake({ network: "testnet", url: folder }), [POOL], 2);
  expect(events).toEqual([...chain.events()].map(eventOf));
  expect(last).toMatchObject({ kind: "idle", latestLedger: 7 });
});

test("a ledger that is written while its end is looked for is no hole", async () => {
  const folder = await open.folder();
  const chain = await chainWithLake(folder, 20);
  const [later, server] = [await open.folder(), await open.http(folder)];
  closeThrough(chain, 40);
  await writeLake(later, chain, { from: 21 });
  let now = 0;
  const lake = dataLakeWith({ network: "testnet", url: server.url }, () => now);
  expect(windowOf(await ask(lake, 2)).throughLedger).toBe(20);
  now += 60_000; // the end is looked for anew
  let written: Promise<unknown> | undefined;
  server.fault = ({ method, key }) => {
    if (method !== "GET" || !key.includes("--21.")) return undefined;
    written ??= cp(later, folder, { recursive: true });
    return { kind: "status", status: 404 };
  };
  expect(await ask(lake, 21)).toMatchObject({ kind: "idle" });
  await written;
  server.fault = () => undefined;
  expect(windowOf(await ask(lake, 21)).throughLedger).toBe(21);
});

test.each(places)("in %s, a hole at the end is seen once something follows it", async (_, placeOf) => {
  const folder = await open.folder();
  const chain = await chainWithLake(folder, 20);
  let now = 0;
  const lake = dataLakeWith({ network: "testnet", ...(await placeOf(folder)) }, () => now);
  expect(await ask(lake, 21)).toMatchObject({ kind: "idle", latestLedger: 20 });
  closeThrough(chain, 25);
  await writeLake(folder, chain, { from: 22 });
  expect(await ask(lake, 21)).toMatchObject({ kind: "idle", latestLedger: 20 });
  now += 60_000;
  expect(await ask(lake, 21)).toMatchObject({
    kind: "gap",
    fromLedger: 21,
    throughLedger: 21,
    latestLedger: 25,
  });
});

test("ledger 1, which no lake has, is in the first window", async () => {
  const folder = await open.folder();
  await chainWithLake(folder, 5);
  const lake = dataLake({ network: "testnet", url: folder });
  expect(await ask(lake, 1)).toMatchObject({ kind: "window", fromLedger: 1, throughLedger: 5 });
  expect(await ask(lake, 1, 1)).toMatchObject({
    kind: "window",
    fromLedger: 1,
    throughLedger: 1,
    events: [],
  });
});

test("a window has an end: it is cut after 512 ledgers, or 4,000 events", async () => {
  const folder = await open.folder();
  const chain = startChain({ firstLedger: 2 });
  chain.closeMany(560);
  chain.closeMany(
    88,
    transfers({ passphrase: chain.passphrase, contracts: [POOL], eventsPerLedger: 90, seed: 1 }),
  );
  await writeLake(folder, chain, { ledgersPerBatch: 50 });
  const { events, ends } = await readAll(dataLake({ network: "testnet", url: folder }), [POOL], 2);
  expect(ends).toEqual([513, 606, 649]);
  expect(events).toEqual([...chain.events()].map(eventOf));
});

test("each object is fetched once, and no more of them ahead than the option says", async () => {
  const folder = await open.folder();
  await chainWithLake(folder, 60);
  const server = await open.http(folder);
  const lake = dataLake({ network: "testnet", url: server.url, ahead: 4 });
  await lake.check(never);
  const from = server.requests.length;
  await ask(lake, 10, 30);
  await ask(lake, 31, 33);
  await expect.poll(() => server.requests.length - from).toBe(33 + 3 - 10 + 1);
  const asked = server.requests.slice(from).map(({ key }) => Number(/--(\d+)\./.exec(key)?.[1]));
  expect(asked).toEqual(Array.from({ length: 27 }, (_, i) => 10 + i));
});

describe.skipIf(!recorded)("with the recorded ledgers of the public network", () => {
  test("the lake and a node give the same events, byte for byte", async () => {
    const ledgers = [63092988, 63092990].map((sequence) => recorded!.rows(sequence));
    const chain = chainFromRecorded(ledgers, { passphrase: PUBNET_PASSPHRASE });
    const contracts = [...new Set([...chain.events()].map((row) => row.contractId))];
    const rpc = await startRpc({ chain });
    try {
      const node = stellarRpcWith({ network: "pubnet", urls: rpc.url }, noWait);
      const fromNode = await readToEnd(node, chain, contracts, { fromLedger: 63092988 });

      const folder = await open.folder();
      for (const { ledger } of ledgers) {
        const object = zstdCompressSync(recorded!.batch(ledger));
        await writeFile(join(folder, lakeKey(ledger)), object);
      }
      const layout = { ledgersPerBatch: 1, batchesPerPartition: 1 };
      const lake = dataLake({ network: "pubnet", url: folder, layout });
      const before = await readAll(lake, contracts, 63092988);
      const after = await readAll(lake, contracts, 63092990);
      expect(before.last).toMatchObject({ kind: "gap", fromLedger: 63092989, throughLedger: 63092989 });
      expect([...before.events, ...after.events]).toEqual(fromNode.events);
      expect(fromNode.events).toHaveLength(565 + 636);
    } finally {
      await rpc.close();
    }
  });

  test("a recorded object of an older lake, with its old extension and no config, is read where it lies", async () => {
    const layout = { ledgersPerBatch: 1, batchesPerPartition: 1 };
    const lake = dataLake({ network: "pubnet", url: recorded!.folder, layout });
    expect(await lake.check(never)).toEqual({ oldestLedger: 53312000, latestLedger: 53312000 });
    expect(await ask(lake, 53312000)).toMatchObject({
      kind: "window",
      throughLedger: 53312000,
      events: [],
    });
    expect(await lake.ledger!(53312000, never)).toMatchObject({
      hash: expect.stringMatching(/^2a56300b/),
      closedAt: Date.parse("2024-09-02T10:50:19Z") / 1000,
    });
  });
});

test.each<[string, Partial<DataLakeOptions>, RegExp]>([
  ["no url", { url: undefined }, /source.url is empty/],
  ["a url of another kind", { url: "ftp://lake" }, /begins with ftp/],
  ["a url that is none", { url: "http://" }, /is not a url/],
  ["half a key", { url: "s3://b", s3: { accessKeyId: "A" } }, /both accessKeyId and secretAccessKey/],
  ["an endpoint that is no url", { url: "s3://b", s3: { endpoint: "minio:9000" } }, /endpoint is not/],
  ["nothing ahead", { ahead: 0 }, /source.ahead/],
  ["an unknown network", { network: "mainnet" as "pubnet" }, /source.network/],
])("options with %s are refused at once", (_, options, reason) => {
  const make = () => dataLake({ network: "testnet", url: "/lake", ...options });
  expect(make).toThrow(TypeError);
  expect(make).toThrow(reason);
});

test("a window of no contract is refused", async () => {
  const folder = await open.folder();
  await chainWithLake(folder, 3);
  const lake = dataLake({ network: "testnet", url: folder });
  await expect(lake.window({ fromLedger: 2, contractIds: [] }, never)).rejects.toThrow(TypeError);
  const other = await lake.window({ fromLedger: 2, contractIds: [scv.contractId("other")] }, never);
  expect(windowOf(other).events).toEqual([]);
});
