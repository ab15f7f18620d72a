import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import {
  type LedgerBatch,
  type LedgerFacts,
  type LedgerReader,
  loadLedgerReader,
  type ReadBatch,
} from "../../xdr/ledger.ts";
import { WrongNetworkError } from "../errors.ts";
import { type NetworkOption, resolveNetwork } from "../networks.ts";
import type { Source, SourceEvent, SourceHead, SourceWindow, WindowRequest } from "../source.ts";
import { type LakeEdges, listedEdges, probedEdges } from "./edges.ts";
import { LakeConfigError, LedgerChainError } from "./errors.ts";
import { httpStorage } from "./httpStorage.ts";
import { CONFIG_KEY, checkLayout, FIRST_LEDGER, type LakeLayout, parseConfig } from "./layout.ts";
import { type LookAhead, openLookAhead } from "./lookAhead.ts";
import { type LakeObject, type LakeObjects, openObjects } from "./objects.ts";
import { type S3Options, s3Storage } from "./s3Storage.ts";
import { folderStorage, type LakeStorage, TooLargeError } from "./storage.ts";

export interface DataLakeOptions {
  readonly network: NetworkOption;
  /** A folder (a path, or `file://`), `http://` or `https://`, or `s3://bucket/prefix`. */
  readonly url: string | undefined;
  /** For `s3://`: the service and the key. AWS, us-east-1 and a public bucket unless given. */
  readonly s3?: S3Options;
  /** For a lake without `.config.json`; nothing then tells which network it is of. */
  readonly layout?: LakeLayout;
  /** The first ledger of the lake, where it is not 2 and its server lists nothing (`http://`, `https://`). */
  readonly oldestLedger?: number;
  /** Objects fetched at the same time; 8 unless given. Together they are held to 128 MiB, unpacked. */
  readonly ahead?: number;
  /** Total time for one object, in milliseconds; 30,000 unless given. */
  readonly timeoutMs?: number;
  /** How long to wait when nothing is new, in milliseconds; 5,000 unless given. */
  readonly pollMs?: number;
}

/** A window of the lake also tells its ledgers: their hashes and close times. */
export type LakeWindow =
  | (Extract<SourceWindow, { kind: "window" }> & { readonly ledgers: readonly LedgerFacts[] })
  | Exclude<SourceWindow, { kind: "window" }>;

export interface DataLake extends Source {
  /**
   * As of every source; where something is wrong after some ledgers of the window, these are given, and the next
   * question throws. Throws `SourceUnavailableError`, `WrongNetworkError`, {@link LakeConfigError},
   * `LakeObjectError` and {@link LedgerChainError}.
   */
  window(request: WindowRequest, signal: AbortSignal): Promise<LakeWindow>;
}

/** A window is cut at a ledger once it has this many events, or ledgers. */
const WINDOW_EVENTS = 4_000;
const WINDOW_LEDGERS = 512;
const MAX_AHEAD_BYTES = 128 * 1024 * 1024;
const MAX_CONFIG_BYTES = 64 * 1024;
/** How long the lake's newest ledger is not looked for again, while none is missing; in milliseconds. */
const HEAD_AGE_MS = 60_000;
/** Hashes of last ledgers that are kept, to compare with what follows them. */
const MAX_ENDS = 64;

/**
 * A data lake of ledgers (SEP-54, as Galexie writes it) as a source: for all of history, for a backfill, or to fill
 * gaps. From protocol 24 on it gives the same events as a node does; older ledgers in a lake may hold events that a
 * node of their time did not give. Throws a `TypeError` for options that cannot be used.
 */
export function dataLake(options: DataLakeOptions): DataLake {
  return dataLakeWith(options, () => performance.now());
}

/** The source with its clock (milliseconds, never going back) passed in. */
export function dataLakeWith(options: DataLakeOptions, now: () => number): DataLake {
  const { chain, passphrase } = resolveNetwork(options.network);
  const { ahead = 8, pollMs = 5_000, oldestLedger = FIRST_LEDGER } = options;
  if (!Number.isSafeInteger(ahead) || ahead < 1)
    throw new TypeError("source.ahead is not a number from 1 on.");
  const storage = openStorage(options);
  const { where } = storage;

  let opening: Promise<OpenLake> | undefined;
  let head: SourceHead | undefined;
  let foundAt = 0;
  let prepared: { readonly key: string; readonly readBatch: ReadBatch } | undefined;
  /** The batch in which the last window was cut. */
  let cut: { readonly batch: LedgerBatch; readonly readBatch: ReadBatch } | undefined;
  /** Hash of the last ledger of each of the latest objects read, by its sequence. */
  const ends = new Map<number, string>();

  async function open(signal: AbortSignal): Promise<OpenLake> {
    const config = await storage.get(CONFIG_KEY, MAX_CONFIG_BYTES, signal).catch((error) => {
      if (!(error instanceof TooLargeError)) throw error;
      throw new LakeConfigError(where, `its ${CONFIG_KEY} has more than ${MAX_CONFIG_BYTES} bytes.`);
    });
    if (!config && !options.layout) throw new LakeConfigError(where, `it has no ${CONFIG_KEY}.`);
    const found = config && parseConfig(config.toString("utf8"), where);
    if (found && found.passphrase !== passphrase) {
      throw new WrongNetworkError(where, passphrase, found.passphrase);
    }
    const layout = found?.layout ?? checkLayout({ ...options.layout }, where);
    const objects = openObjects(storage, layout);
    const size = layout.ledgersPerBatch;
    return {
      size,
      objects,
      edges: storage.list
        ? listedEdges(storage.list, where, layout, objects)
        : probedEdges(where, layout, objects, oldestLedger),
      lookAhead: openLookAhead({
        fetch: (index, fetchSignal) => objects.get(index * size, fetchSignal),
        sizeOf: ({ xdr }) => xdr.length,
        items: ahead,
        bytes: MAX_AHEAD_BYTES,
      }),
      reader: await loadLedgerReader(),
    };
  }

  /** Opened once; what went wrong is tried again. */
  async function lake(signal: AbortSignal): Promise<OpenLake> {
    opening ??= open(signal);
    try {
      return await opening;
    } catch (error) {
      opening = undefined;
      throw error;
    }
  }

  async function findHead({ edges }: OpenLake, wanted: number, signal: AbortSignal): Promise<SourceHead> {
    const oldest = head?.oldestLedger ?? (await edges.oldest(signal));
    const latest = await edges.newest(head?.latestLedger ?? oldest, wanted, signal);
    foundAt = now();
    return saw({ oldestLedger: oldest, latestLedger: latest });
  }

  /** Ledgers do not go away at the end: what was seen once is there. */
  function saw(found: SourceHead): SourceHead {
    head = { ...found, latestLedger: Math.max(found.latestLedger, head?.latestLedger ?? 0) };
    return head;
  }

  /** The batch of a ledger; what follows it, up to `last`, is fetched ahead. null where it is not there. */
  async function readBatchOf(
    ledger: number,
    last: number,
    { size, lookAhead, objects }: OpenLake,
    readBatch: ReadBatch,
    signal: AbortSignal,
  ): Promise<LedgerBatch | null> {
    const had = cut?.readBatch === readBatch ? cut.batch : undefined;
    if (had && had.startSequence <= ledger && ledger <= had.endSequence) return had;
    const object = await lookAhead.take(Math.floor(ledger / size), Math.floor(last / size), signal);
    if (!object) return null;
    // On this thread: reading takes a few milliseconds of a ledger, less than to hand it to another and back.
    const batch = objects.read(ledger, object, readBatch);
    checkChain(batch.ledgers);
    return batch;
  }

  /**
   * Reads ledgers `first` to `through`, where `last` is the last one known to be there. Gives what was read before
   * something went wrong, if anything was.
   */
  async function readLedgers(
    opened: OpenLake,
    readBatch: ReadBatch,
    { first, through, last }: { readonly first: number; readonly through: number; readonly last: number },
    signal: AbortSignal,
  ): Promise<{ readonly next: number; readonly ledgers: LedgerFacts[]; readonly events: SourceEvent[] }> {
    const ledgers: LedgerFacts[] = [];
    const events: SourceEvent[] = [];
    let next = first;
    const isFull = (): boolean => events.length >= WINDOW_EVENTS || ledgers.length >= WINDOW_LEDGERS;
    try {
      while (next <= last && !isFull()) {
        const batch = await readBatchOf(next, last, opened, readBatch, signal);
        if (!batch) break;
        for (const { events: own, ...facts } of batch.ledgers) {
          if (facts.sequence < next) continue;
          if (facts.sequence > through || isFull()) break;
          ledgers.push(facts);
          for (const event of own) events.push(event);
          next = facts.sequence + 1;
        }
        cut = next <= batch.endSequence ? { batch, readBatch } : undefined;
      }
    } catch (error) {
      signal.throwIfAborted();
      if (next === first) throw error;
    }
    return { next, ledgers, events };
  }

  function prepare(reader: LedgerReader, contractIds: readonly string[]): ReadBatch {
    if (contractIds.length === 0) throw new TypeError("A window needs at least one contract.");
    const key = contractIds.join();
    if (prepared?.key !== key) prepared = { key, readBatch: reader.forContracts(contractIds) };
    return prepared.readBatch;
  }

  function checkChain(ledgers: readonly LedgerFacts[]): void {
    let previous = ends.get((ledgers[0]?.sequence ?? 0) - 1);
    for (const { sequence, previousHash, hash } of ledgers) {
      if (previous !== undefined && previous !== previousHash) {
        throw new LedgerChainError(where, sequence, previousHash, previous);
      }
      previous = hash;
    }
    const last = ledgers.at(-1);
    if (last) ends.set(last.sequence, last.hash);
    for (const old of ends.keys()) if (ends.size > MAX_ENDS) ends.delete(old);
  }

  return {
    chain,
    passphrase,
    pollMs,
    async check(signal) {
      const opened = await lake(signal);
      head = undefined; // the oldest ledger is looked for anew, too
      return findHead(opened, 0, signal);
    },
    async window(request, signal) {
      const opened = await lake(signal);
      const readBatch = prepare(opened.reader, request.contractIds);
      const { fromLedger, throughLedger: through = Number.POSITIVE_INFINITY } = request;
      // Ledger 1 was made, not closed: no lake has it, and nothing happened in it.
      const first = Math.max(fromLedger, FIRST_LEDGER);
      const fresh = head && now() - foundAt < HEAD_AGE_MS;
      const known = fresh && head ? head : await findHead(opened, first, signal);

      const last = Math.min(through, Math.max(known.latestLedger, first));
      const range = { first, through, last };
      const { next, ledgers, events } = await readLedgers(opened, readBatch, range, signal);
      if (next > first || first > through) {
        const throughLedger = Math.min(next - 1, through);
        return {
          kind: "window",
          fromLedger,
          throughLedger,
          events,
          ledgers,
          ...saw({ ...known, latestLedger: throughLedger }),
        };
      }
      // Whether the lake goes on was known before the ledger was found missing: one that is just being written at
      // the end of the lake is no hole.
      if (first > known.latestLedger)
        return { kind: first === known.latestLedger + 1 ? "idle" : "behind", ...known };
      const end = await opened.edges.endOfHole(first, signal);
      return { kind: "gap", fromLedger, throughLedger: Math.min(end, through), ...known };
    },
  };
}

interface OpenLake {
  readonly size: number;
  readonly objects: LakeObjects;
  readonly edges: LakeEdges;
  readonly lookAhead: LookAhead<LakeObject>;
  readonly reader: LedgerReader;
}

function openStorage({ url, s3 = {}, timeoutMs = 30_000 }: DataLakeOptions): LakeStorage {
  if (!url) throw new TypeError("source.url is empty: give the folder or the url of the lake.");
  const scheme = /^([a-z][a-z0-9+.-]+):\/\//i.exec(url)?.[1]?.toLowerCase();
  if (scheme === undefined) return folderStorage(resolve(url));
  if (!URL.canParse(url)) throw new TypeError("source.url is not a url.");
  const parsed = new URL(url);
  switch (scheme) {
    case "file":
      return folderStorage(fileURLToPath(parsed));
    case "http":
    case "https":
      return httpStorage(parsed, timeoutMs);
    case "s3":
      return s3Storage(parsed, s3, timeoutMs);
    default:
      throw new TypeError(
        `source.url begins with ${scheme}://: use a folder, file://, http://, https:// or s3://.`,
      );
  }
}
