import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Chain,
  type LakeLayout,
  type LakeServer,
  type LedgerForm,
  scv,
  startChain,
  startLakeServer,
  writeLake,
} from "@fencepost/simulator";
import { never } from "../../../../__tests__/support/windows.ts";
import type { Source, SourceEvent, SourceWindow } from "../../../source.ts";

export const POOL = scv.contractId("pool");
export const S3_KEY = {
  accessKeyId: "AKEXAMPLE",
  secretAccessKey: "a secret/of+40 characters",
  region: "eu-test-1",
};

/** What a test opens, closed after it in reverse order. */
export interface Opened {
  folder(): Promise<string>;
  http(folder: string): Promise<LakeServer>;
  /** A bucket named `lakes`, whose pages have three names, with its key. */
  s3(folder: string): Promise<LakeServer>;
  /** A bucket named `public` that anybody may read. */
  s3Public(folder: string): Promise<LakeServer>;
  closeAll(): Promise<void>;
}

export function opened(): Opened {
  const closing: (() => Promise<unknown>)[] = [];
  const serve = async (options: Parameters<typeof startLakeServer>[0]): Promise<LakeServer> => {
    const server = await startLakeServer(options);
    closing.push(server.close);
    return server;
  };
  return {
    async folder() {
      const folder = await mkdtemp(join(tmpdir(), "fencepost-lake-"));
      closing.push(() => rm(folder, { recursive: true, force: true }));
      return folder;
    },
    http: (folder) => serve({ folder }),
    s3: (folder) => serve({ folder, s3: { bucket: "lakes", pageSize: 3, ...S3_KEY } }),
    s3Public: (folder) => serve({ folder, s3: { bucket: "public", pageSize: 3 } }),
    async closeAll() {
      for (const close of closing.splice(0).reverse()) await close();
    },
  };
}

/** Ledgers 2 to `through`, each with one event of the pool, as a chain and as a lake in a folder. */
export async function chainWithLake(
  folder: string,
  through: number,
  options: LakeLayout & LedgerForm & { readonly life?: string } = {},
): Promise<Chain> {
  const chain = startChain({ firstLedger: 2, life: options.life ?? "" });
  closeThrough(chain, through);
  await writeLake(folder, chain, options);
  return chain;
}

/** Closes ledgers up to this one, each with one event of the pool. */
export function closeThrough(chain: Chain, through: number): void {
  while (chain.latest < through) {
    chain.close({ events: [{ contract: POOL, topics: [scv.sym("moved")], value: scv.u32(chain.latest) }] });
  }
}

/** A zstd frame that a reader skips, with so many bytes in it. */
export function skippable(bytes: number): Buffer {
  const frame = Buffer.alloc(8 + bytes, 0xff);
  frame.writeUInt32LE(0x184d2a50, 0);
  frame.writeUInt32LE(bytes, 4);
  return frame;
}

export function ask(lake: Source, fromLedger: number, throughLedger?: number): Promise<SourceWindow> {
  const request = { fromLedger, contractIds: [POOL], ...(throughLedger && { throughLedger }) };
  return lake.window(request, never);
}

/** Reads windows from `fromLedger` on until the answer is not one. */
export async function readAll(
  lake: Source,
  contractIds: readonly string[],
  fromLedger: number,
  throughLedger?: number,
): Promise<{ readonly events: SourceEvent[]; readonly ends: number[]; readonly last: SourceWindow | null }> {
  const events: SourceEvent[] = [];
  const ends: number[] = [];
  let next = fromLedger;
  for (let answers = 0; answers < 1_000; answers++) {
    if (throughLedger !== undefined && next > throughLedger) return { events, ends, last: null };
    const request = { fromLedger: next, contractIds, ...(throughLedger && { throughLedger }) };
    const answer = await lake.window(request, never);
    if (answer.kind !== "window") return { events, ends, last: answer };
    if (answer.fromLedger !== next || answer.throughLedger < next) {
      throw new Error(`Asked for ledger ${next}, got ${answer.fromLedger} to ${answer.throughLedger}.`);
    }
    events.push(...answer.events);
    ends.push(answer.throughLedger);
    next = answer.throughLedger + 1;
  }
  throw new Error("1,000 windows, and no end.");
}
