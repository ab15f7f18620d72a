import { copyFile, mkdir, open as openFile, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { zstdCompressSync, zstdDecompressSync } from "node:zlib";
import { batchXdr, type LakeFault, lakeKey, startChain, writeLake } from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { never, windowOf } from "../../__tests__/support/windows.ts";
import { SourceUnavailableError, WrongNetworkError } from "../errors.ts";
import {
  ask,
  chainWithLake,
  closeThrough,
  opened,
  POOL,
  S3_KEY,
  skippable,
} from "./__tests__/support/lakes.ts";
import { type DataLakeOptions, dataLake } from "./dataLake.ts";
import { LakeConfigError, LakeObjectError, LedgerChainError } from "./errors.ts";

const open = opened();
afterEach(open.closeAll);

async function failure<E extends Error>(promise: Promise<unknown>): Promise<E> {
  return promise.then(
    (value) => Promise.reject(new Error(`It answered ${JSON.stringify(value)}.`)),
    (error) => error,
  );
}

/** Rewrites the object of a ledger. */
async function change(folder: string, ledger: number, how: (packed: Buffer) => Buffer | Promise<Buffer>) {
  const path = join(folder, lakeKey(ledger));
  await writeFile(path, await how(await readFile(path)));
}

const repack = (how: (xdr: Buffer) => Buffer) => (packed: Buffer) =>
  zstdCompressSync(how(zstdDecompressSync(packed)));

/** Its second half in a frame of its own that ends too early. */
function cutSecondFrame(packed: Buffer): Buffer {
  const xdr = zstdDecompressSync(packed);
  const [first, second] = [xdr.subarray(0, xdr.length / 2), xdr.subarray(xdr.length / 2)].map((half) =>
    zstdCompressSync(half),
  );
  return Buffer.concat([first!, second!.subarray(0, -1)]);
}

describe("of an object that cannot be read, nothing is taken, and what is before it is:", () => {
  test.each<[string, (packed: Buffer) => Buffer, string, RegExp]>([
    [
      "truncated zstd",
      (packed) => packed.subarray(0, -5),
      "truncated",
      /ends after \d+ bytes, before its end/,
    ],
    ["no bytes", () => Buffer.alloc(0), "truncated", /ends after 0 bytes/],
    ["zstd with a changed byte", (packed) => packed.fill(7, 40, 44), "garbled", /zstd data is wrong/],
    ["no zstd", () => Buffer.from("<html>not here</html>"), "garbled", /zstd data is wrong/],
    [
      "a second zstd frame that is truncated",
      cutSecondFrame,
      "truncated",
      /ends after \d+ bytes, before its end/,
    ],
    [
      "a frame to skip that is truncated",
      (packed) => Buffer.concat([packed, skippable(9).subarray(0, -1)]),
      "truncated",
      /ends after \d+ bytes, before its end/,
    ],
    [
      "something else after its zstd frame",
      (packed) => Buffer.concat([packed, Buffer.from("<html>")]),
      "garbled",
      /zstd data is wrong/,
    ],
    [
      "more zstd frames than anything writes",
      (packed) => Buffer.concat([packed, ...Array(10_000).fill(skippable(0))]),
      "too large",
      /more than 10000 zstd frames/,
    ],
    ["truncated XDR", repack((xdr) => xdr.subarray(0, -8)), "garbled", /in the middle of a value/],
    ["XDR with a changed word", repack((xdr) => xdr.fill(9, 12, 16)), "garbled", /no such value/],
    [
      "XDR with something after it",
      repack((xdr) => Buffer.concat([xdr, Buffer.alloc(4)])),
      "garbled",
      /4 bytes follow/,
    ],
    ["XDR of nothing", repack(() => Buffer.alloc(12)), "other ledgers", /says 5 to 5, its content none/],
    ["bytes that unpack to gigabytes", () => bomb, "too large", /unpacks to more than 33554432 bytes/],
    [
      "frames that only together unpack to gigabytes",
      () => Buffer.concat(Array(3).fill(zstdCompressSync(Buffer.alloc(16 * 1024 * 1024)))),
      "too large",
      /unpacks to more than 33554432 bytes/,
    ],
  ])("%s", async (_, how, fault, reason) => {
    const folder = await open.folder();
    await chainWithLake(folder, 8);
    const whole = await readFile(join(folder, lakeKey(5)));
    await change(folder, 5, how);
    const lake = dataLake({ network: "testnet", url: folder });

    expect(windowOf(await ask(lake, 2))).toMatchObject({ throughLedger: 4, events: { length: 3 } });
    const error = await failure<LakeObjectError>(ask(lake, 5));
    expect(error).toBeInstanceOf(LakeObjectError);
    expect(error).toMatchObject({ fault, key: lakeKey(5) });
    expect(error.message).toMatch(reason);
    expect(error.message).toContain(folder);

    await change(folder, 5, () => whole); // mended: no restart is needed
    expect(windowOf(await ask(lake, 5)).throughLedger).toBe(8);
  });

  const bomb = zstdCompressSync(Buffer.alloc(33 * 1024 * 1024));

  test("more bytes than any object has", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 3);
    const file = await openFile(join(folder, lakeKey(3)), "w");
    await file.truncate(129 * 1024 * 1024);
    await file.close();
    const error = await failure(ask(dataLake({ network: "testnet", url: folder }), 3));
    expect(error).toMatchObject({ name: "LakeObjectError", fault: "too large", key: lakeKey(3) });
  });

  test("an object that is replaced by one of other ledgers", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 8);
    const lake = dataLake({ network: "testnet", url: folder });
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(8);
    await copyFile(join(folder, lakeKey(6)), join(folder, lakeKey(5)));
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(4);
    const error = await failure<LakeObjectError>(ask(lake, 5));
    expect(error).toMatchObject({ name: "LakeObjectError", fault: "other ledgers" });
    expect(error.message).toMatch(/of other ledgers: its name says 5 to 5, its content 6/);
  });

  test("a batch that lacks a ledger in the middle, or says another range", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(folder, 8, { ledgersPerBatch: 4 });
    const path = join(folder, lakeKey(4, { ledgersPerBatch: 4 }));
    for (const [start, end] of [
      [4, 6],
      [5, 7],
    ] as const) {
      const batch = Buffer.from(batchXdr(chain, start, end));
      batch.writeUInt32BE(4, 0);
      batch.writeUInt32BE(7, 4);
      await writeFile(path, zstdCompressSync(batch));
      const error = await failure(ask(dataLake({ network: "testnet", url: folder }), 4));
      expect(error).toMatchObject({ name: "LakeObjectError", fault: "other ledgers" });
    }
  });
});

describe("ledgers that do not follow each other are refused", () => {
  test("across objects, also where they are read in two windows", async () => {
    const [folder, other] = [await open.folder(), await open.folder()];
    const chain = await chainWithLake(folder, 8);
    const reset = await chainWithLake(other, 8, { life: "second" });
    await copyFile(join(other, lakeKey(6)), join(folder, lakeKey(6)));
    const lake = dataLake({ network: "testnet", url: folder });
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(5);
    const error = await failure<LedgerChainError>(ask(lake, 6));
    expect(error).toBeInstanceOf(LedgerChainError);
    expect(error.ledger).toBe(6);
    expect(error.message).toContain(reset.ledger(5)!.hash);
    expect(error.message).toContain(chain.ledger(5)!.hash);
    await writeLake(folder, chain, { from: 6, through: 6 });
    expect(windowOf(await ask(lake, 6)).throughLedger).toBe(8);
  });

  test("inside a batch", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(folder, 7, { ledgersPerBatch: 4 });
    const batch = Buffer.from(batchXdr(chain, 4, 7));
    const at = batch.indexOf(chain.ledger(6)!.hash, 0, "hex");
    batch.writeUInt32BE(0, at);
    await writeFile(join(folder, lakeKey(4, { ledgersPerBatch: 4 })), zstdCompressSync(batch));
    const error = await failure<LedgerChainError>(ask(dataLake({ network: "testnet", url: folder }), 4));
    expect([error.name, error.ledger]).toEqual(["LedgerChainError", 7]);
  });
});

describe("a lake is not believed", () => {
  test("of another network", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 3);
    const lake = dataLake({ network: "pubnet", url: folder });
    for (const question of [lake.check(never), ask(lake, 2)]) {
      expect(await failure(question)).toBeInstanceOf(WrongNetworkError);
    }
  });

  test.each<[string, (folder: string) => Promise<unknown>, RegExp]>([
    ["without a config", (folder) => rm(join(folder, ".config.json")), /has no .config.json/],
    ["with one that is no JSON", (folder) => writeFile(join(folder, ".config.json"), "{"), /not JSON/],
    [
      "with one that never ends",
      (folder) => writeFile(join(folder, ".config.json"), " ".repeat(70_000)),
      /more than 65536 bytes/,
    ],
  ])("%s", async (_, spoil, reason) => {
    const folder = await open.folder();
    await chainWithLake(folder, 3);
    await spoil(folder);
    const error = await failure(ask(dataLake({ network: "testnet", url: folder }), 2));
    expect(error).toBeInstanceOf(LakeConfigError);
    expect(error.message).toMatch(reason);
  });

  test("without a ledger, until there is one", async () => {
    const folder = await open.folder();
    await writeLake(folder, startChain({ firstLedger: 2 }));
    const server = await open.http(folder);
    const s3 = await open.s3(folder);
    const lakes = [
      dataLake({ network: "testnet", url: folder }),
      dataLake({ network: "testnet", url: server.url }),
      dataLake({ network: "testnet", url: "s3://lakes", s3: { endpoint: s3.url, ...S3_KEY } }),
    ];
    for (const lake of lakes) expect(await failure(lake.check(never))).toBeInstanceOf(SourceUnavailableError);
    await chainWithLake(folder, 3);
    for (const lake of lakes) expect(await lake.check(never)).toEqual({ oldestLedger: 2, latestLedger: 3 });
  });

  test("that is no folder", async () => {
    const folder = await open.folder();
    const error = await failure(ask(dataLake({ network: "testnet", url: join(folder, "none") }), 2));
    expect(error).toBeInstanceOf(LakeConfigError);
    await mkdir(join(folder, ".config.json"));
    const unreadable = await failure(ask(dataLake({ network: "testnet", url: folder }), 2));
    expect(unreadable).toBeInstanceOf(SourceUnavailableError);
    expect(unreadable.message).toMatch(/did not give .config.json: EISDIR/);
  });
});

describe.each(["http", "S3"])("a lake over %s", (kind) => {
  async function serve(options: Partial<DataLakeOptions> = {}) {
    const folder = await open.folder();
    await chainWithLake(folder, 8);
    const server = await (kind === "http" ? open.http(folder) : open.s3(folder));
    const lake = dataLake({
      network: "testnet",
      ...(kind === "http"
        ? { url: server.url }
        : { url: "s3://lakes", s3: { endpoint: server.url, ...S3_KEY } }),
      ...options,
    });
    return { server, lake };
  }

  test.each<[string, LakeFault, RegExp]>([
    ["HTTP 403", { kind: "status", status: 403 }, /HTTP 403/],
    ["HTTP 429", { kind: "status", status: 429, retryAfter: 1 }, /HTTP 429/],
    ["HTTP 500", { kind: "status", status: 500 }, /HTTP 500/],
    ["HTTP 503", { kind: "status", status: 503 }, /HTTP 503/],
    ["half a body", { kind: "cut" }, /did not give/],
    ["no answer", { kind: "hang" }, /not whole within 300 ms/],
  ])("that answers %s is asked again later, and loses nothing", async (_, fault, reason) => {
    const { server, lake } = await serve({ timeoutMs: 300 });
    server.fault = ({ method, key }) => (method === "GET" && key.includes("--5.") ? fault : undefined);
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(4);
    const error = await failure(ask(lake, 5));
    expect(error).toBeInstanceOf(SourceUnavailableError);
    expect(error.message).toMatch(reason);
    expect(error.message).toContain("--5.xdr.zst");
    server.fault = () => undefined;
    expect(windowOf(await ask(lake, 5))).toMatchObject({ throughLedger: 8, events: { length: 4 } });
  });

  test("that cannot be asked for its config or its end gives nothing yet", async () => {
    const { server, lake } = await serve();
    server.fault = ({ key }) => (key.includes("config") ? { kind: "status", status: 502 } : undefined);
    expect(await failure(ask(lake, 2))).toBeInstanceOf(SourceUnavailableError);
    server.fault = ({ list, method }) =>
      list || method === "HEAD" ? { kind: "status", status: 502 } : undefined;
    expect(await failure(ask(lake, 2))).toBeInstanceOf(SourceUnavailableError);
    server.fault = () => undefined;
    expect(windowOf(await ask(lake, 2)).throughLedger).toBe(8);
  });

  test("that sends more than there can be is cut off", async () => {
    const { server, lake } = await serve();
    server.fault = ({ key }) => (key === ".config.json" ? { kind: "flood", bytes: 2 ** 34 } : undefined);
    const error = await failure(ask(lake, 2));
    expect(error).toBeInstanceOf(LakeConfigError);
    expect(error.message).toMatch(/more than 65536 bytes/);
  });

  test("that is gone is away, and named without its secrets", async () => {
    const { server, lake } = await serve();
    await server.close();
    const error = await failure(ask(lake, 2));
    expect(error).toBeInstanceOf(SourceUnavailableError);
    expect(error.message).toMatch(/ECONNREFUSED/);
    expect(error.message).not.toContain(S3_KEY.secretAccessKey);
  });

  test("is left as soon as its reader is stopped", async () => {
    const { server, lake } = await serve({ ahead: 1 });
    expect(windowOf(await ask(lake, 2, 3)).throughLedger).toBe(3);
    const stop = new AbortController();
    server.fault = () => {
      queueMicrotask(() => stop.abort(new Error("stopped")));
      return { kind: "hang" };
    };
    const window = lake.window({ fromLedger: 4, contractIds: [POOL] }, stop.signal);
    expect((await failure(window)).message).toBe("stopped");
    server.fault = () => undefined;
    expect(windowOf(await ask(lake, 4)).throughLedger).toBe(8);
  });
});

describe("a bucket", () => {
  test("is read in the name of a key, and by nobody else", async () => {
    const folder = await open.folder();
    await chainWithLake(folder, 8);
    const s3 = await open.s3(folder);
    const endpoint = s3.url;
    for (const key of [{}, { ...S3_KEY, secretAccessKey: "another" }, { ...S3_KEY, region: "us-east-1" }]) {
      const lake = dataLake({ network: "testnet", url: "s3://lakes", s3: { endpoint, ...key } });
      const error = await failure(lake.check(never));
      expect(error).toBeInstanceOf(SourceUnavailableError);
      expect(error.message).toMatch(
        /^s3:\/\/lakes\/ did not give .config.json: HTTP 403 SignatureDoesNotMatch\.$/,
      );
    }
  });

  test("that is public is read without a key, under a prefix", async () => {
    const folder = await open.folder();
    const chain = await chainWithLake(join(folder, "v1", "ledgers"), 8, { batchesPerPartition: 4 });
    const { url } = await open.s3Public(folder);
    const lake = dataLake({ network: "testnet", url: "s3://public/v1/ledgers/", s3: { endpoint: url } });
    expect(await lake.check(never)).toEqual({ oldestLedger: 2, latestLedger: 8 });
    expect(windowOf(await ask(lake, 2)).events).toHaveLength(7);
    closeThrough(chain, 9);
    await writeLake(join(folder, "v1", "ledgers"), chain, { batchesPerPartition: 4, from: 9 });
    expect(windowOf(await ask(lake, 9)).throughLedger).toBe(9);
  });
});
