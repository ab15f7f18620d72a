import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { zstdDecompressSync } from "node:zlib";
import { xdr } from "@stellar/stellar-sdk/base";
import { afterEach, describe, expect, test } from "vitest";
import {
  batchXdr,
  ChainError,
  type EventSpec,
  lakeKey,
  ledgerXdr,
  scv,
  startChain,
  startLakeServer,
  writeLake,
} from "./index.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function emptyFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-lake-"));
  closing.push(() => rm(folder, { recursive: true }));
  return folder;
}

const value = scv.u32(1);
const contract = scv.contractId("pool");

function metaOf(events: readonly EventSpec[], form = {}) {
  const chain = startChain({ firstLedger: 50 });
  const ledger = chain.close({ events });
  return { ledger, meta: xdr.LedgerCloseMeta.fromXdr(ledgerXdr(chain, ledger, form)) };
}

describe("the XDR of a simulated ledger", () => {
  test("says who it is, and holds each event at its place", () => {
    const { ledger, meta } = metaOf([
      { contract, value, place: "fee", tx: 1 },
      { contract, value, tx: 2, op: 1, topics: [scv.sym("a"), scv.u32(2)] },
      { contract, value, tx: 2, place: "afterTransaction", type: "system" },
      { value, tx: 2, place: "afterAll" },
    ]);
    if (meta.type !== "v2") throw new Error(meta.type);
    const { ledgerHeader, txProcessing } = meta.value;
    expect(Buffer.from(ledgerHeader.hash.value).toString("hex")).toBe(ledger.hash);
    expect(ledgerHeader.header.ledgerSeq).toBe(50);
    expect(ledgerHeader.header.scpValue.closeTime).toBe(BigInt(ledger.closedAt));
    const metas = txProcessing.map(({ txApplyProcessing }) => {
      if (txApplyProcessing.type !== "v4") throw new Error(txApplyProcessing.type);
      const { operations, events, diagnosticEvents } = txApplyProcessing.value;
      return {
        operations: operations.map((operation) => operation.events.length),
        stages: events.map(({ stage }) => stage.toJson()),
        diagnostic: diagnosticEvents.length,
      };
    });
    expect(metas).toEqual([
      { operations: [], stages: ["before_all_txs"], diagnostic: 1 },
      { operations: [0, 1], stages: ["after_tx", "after_all_txs"], diagnostic: 3 },
    ]);
  });

  test("can be that of protocol 22, where a transaction with events has one operation", () => {
    const form = { ledgerMeta: 1, transactionMeta: 3 };
    const { meta } = metaOf([{ contract, value, tx: 2 }], form);
    expect(meta.type).toBe("v1");
    expect(() => metaOf([{ contract, value, op: 1 }], form)).toThrow(/no place for event/);
  });

  test("is refused for what no ledger holds", () => {
    expect(() => metaOf([{ contract, value: "garbage" }])).toThrow(ChainError);
    const fee = (tx: number) => ({ contract, value, place: "fee" as const, tx });
    expect(() => metaOf([fee(2), fee(1)])).toThrow(/order of their transactions/);
    expect(() => batchXdr(startChain(), 1, 1)).toThrow(/has not closed/);
  });
});

describe("a lake", () => {
  test("names its objects as the examples of SEP-54 do, and older ones with their extension", () => {
    const layout = { ledgersPerBatch: 2, batchesPerPartition: 8 };
    expect([2, 3, 15, 19].map((ledger) => lakeKey(ledger, layout))).toEqual([
      "FFFFFFFF--0-15/FFFFFFFD--2-3.xdr.zst",
      "FFFFFFFF--0-15/FFFFFFFD--2-3.xdr.zst",
      "FFFFFFFF--0-15/FFFFFFF1--14-15.xdr.zst",
      "FFFFFFEF--16-31/FFFFFFED--18-19.xdr.zst",
    ]);
    expect(lakeKey(53_312_000, { extension: "xdr.zstd" })).toBe("FCD285FF--53312000.xdr.zstd");
  });

  test("has an object for each whole batch of its ledgers", async () => {
    const chain = startChain({ firstLedger: 1 });
    chain.closeMany(11);
    const folder = await emptyFolder();
    await writeLake(folder, chain, { ledgersPerBatch: 4 });
    expect((await readdir(folder)).sort()).toEqual([
      ".config.json",
      "FFFFFFF7--8-11.xdr.zst",
      "FFFFFFFB--4-7.xdr.zst",
      "FFFFFFFF--0-3.xdr.zst",
    ]);
    const object = await readFile(join(folder, "FFFFFFFF--0-3.xdr.zst"));
    const batch = xdr.LedgerCloseMetaBatch.fromXdr(zstdDecompressSync(object));
    expect([batch.startSequence, batch.endSequence, batch.ledgerCloseMetas.length]).toEqual([2, 3, 2]);
  });

  test("is served as files, and does what it is told instead", async () => {
    const chain = startChain({ firstLedger: 2 });
    chain.close();
    const folder = await emptyFolder();
    await writeLake(folder, chain);
    const server = await startLakeServer({ folder });
    closing.push(server.close);
    const status = async (key: string, method = "GET") =>
      (await fetch(`${server.url}/${key}`, { method })).status;
    expect(await status(lakeKey(2))).toBe(200);
    expect(await status(lakeKey(2), "HEAD")).toBe(200);
    expect(await status(lakeKey(3))).toBe(404);
    expect(await status("%2e%2e/etc")).toBe(404);
    server.fault = ({ key }) => (key === lakeKey(2) ? { kind: "status", status: 503 } : undefined);
    expect(await status(lakeKey(2))).toBe(503);
    server.fault = () => ({ kind: "cut" });
    await expect(fetch(`${server.url}/${lakeKey(2)}`).then((answer) => answer.text())).rejects.toThrow();
    expect(server.requests).toHaveLength(6);
  });

  test("is listed page by page as a bucket, to those who sign", async () => {
    const chain = startChain({ firstLedger: 2 });
    chain.closeMany(5);
    const folder = await emptyFolder();
    await writeLake(folder, chain);
    const open = await startLakeServer({ folder, s3: { bucket: "b", pageSize: 4 } });
    const locked = await startLakeServer({
      folder,
      s3: { bucket: "b", accessKeyId: "A", secretAccessKey: "S" },
    });
    closing.push(open.close, locked.close);
    const list = async (more = "") => (await fetch(`${open.url}/b/?list-type=2${more}`)).text();
    const page = await list();
    expect(page).toContain("<IsTruncated>true</IsTruncated>");
    const token = /<NextContinuationToken>(.*)<\/Next/.exec(page)?.[1];
    expect(await list(`&continuation-token=${token}`)).toContain("FFFFFFFD--2.xdr.zst");
    expect((await fetch(`${locked.url}/b/?list-type=2`)).status).toBe(403);
    expect((await fetch(`${open.url}/other/x`)).status).toBe(404);
  });
});
