import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import {
  type LedgerBatch,
  type LedgerFacts,
  type LedgerReader,
  loadLedgerReader,
  type ReadBatch,
} from "../../xdr/ledger.ts";
import { contradicts, decideEpoch, differs } from "../chainLife.ts";
import { ChainResetError, EpochMismatchError, WrongNetworkError } from "../errors.ts";
import { hasKnownPace, type NetworkOption, resolveNetwork } from "../networks.ts";
import type { LedgerRef, Source, SourceEvent, SourceHead } from "../source.ts";
import { openChainCheck } from "./chainCheck.ts";
import { type LakeEdges, listedEdges, probedEdges } from "./edges.ts";
import { LakeConfigError } from "./errors.ts";
import { httpStorage } from "./httpStorage.ts";
import { CONFIG_KEY, checkLayout, FIRST_LEDGER, type LakeLayout, MAX_LEDGER, parseConfig } from "./layout.ts";
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

/** A window is cut at a ledger once it has this many events, or ledgers. */
const WINDOW_EVENTS = 4_000;
const WINDOW_LEDGERS = 512;
const MAX_AHEAD_BYTES = 128 * 1024 * 1024;
const MAX_CONFIG_BYTES = 64 * 1024;
/** How long the lake's newest ledger is not looked for again, while none is missing; in milliseconds. */
const HEAD_AGE_MS = 60_000;
/** How long an anchor that was found in the lake is not looked for again, in milliseconds. */
const ANCHOR_AGE_MS = 300_000;
/** Windows that may be asked for at once: while one is stored, the next is read. */
const WINDOWS_AT_ONCE = 2;
/** Sets of contracts that are kept ready: of the cursor, and of those that catch up. */
const MAX_READERS = 4;

/**
 * A data lake of ledgers (SEP-54, as Galexie writes it) as a source: for all of history, for a backfill, or to fill
 * gaps. From protocol 24 on it gives the same events as a node does; older ledgers in a lake may hold events that a
 * node of their time did not give. Throws a `TypeError` for options that cannot be used.
 *
 * Where something is wrong after some ledgers of a window, these are given, and the next question throws:
 * `SourceUnavailableError`, `WrongNetworkError`, `LakeConfigError`, `LakeObjectError` or `LedgerChainError`.
 */
export function dataLake(options: DataLakeOptions): Source {
  return dataLakeWith(options, () => performance.now());
}

/** The source with its clock (milliseconds, never going back) passed in. */
export function dataLakeWith(options: DataLakeOptions, now: () => number): Source {
  const { chain, passphrase } = resolveNetwork(options.network);
  const { ahead = 8, pollMs = 5_000, oldestLedger = FIRST_LEDGER } = options;
  if (!Number.isSafeInteger(ahead) || ahead < 1)
    throw new TypeError("source.ahead is not a number from 1 on.");
  const storage = openStorage(options);
  const { where } = storage;

  let opening: Promise<OpenLake> | undefined;
  let head: SourceHead | undefined;
  let foundAt = 0;
  /** By the contracts that they read. */
  const readers = new Map<string, BatchReader>();
  /** The anchor that was found in the lake last. */
  let agreed: { readonly anchor: LedgerRef; readonly at: number } | undefined;
  const checkChain = openChainCheck(where);

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
    { readBatch, cut }: BatchReader,
    signal: AbortSignal,
  ): Promise<LedgerBatch | null> {
    if (cut && cut.startSequence <= ledger && ledger <= cut.endSequence) return cut;
    const object = await lookAhead.take(Math.floor(ledger / size), Math.floor(last / size), signal);
    if (!object) return null;
    // On this thread: reading takes a few milliseconds of a ledger, less than to hand it to another and back.
    const batch = objects.read(ledger, object, readBatch);
    checkChain(batch.ledgers);
    return batch;
  }

  /**
   * Reads ledgers `first` to `through`, where `latest` is the last one known to be there. Gives what was read before
   * something went wrong, if anything was; `odd` is a ledger that cannot be on the chain of the anchor.
   */
  async function readLedgers(
    opened: OpenLake,
    reader: BatchReader,
    { first, through, latest, anchor }: LedgersWanted,
    signal: AbortSignal,
  ): Promise<{ readonly next: number; readonly events: SourceEvent[]; readonly odd?: LedgerRef }> {
    const events: SourceEvent[] = [];
    let next = first;
    const isFull = (): boolean => events.length >= WINDOW_EVENTS || next - first >= WINDOW_LEDGERS;
    try {
      while (next <= Math.min(through, latest) && !isFull()) {
        const batch = await readBatchOf(next, latest, opened, reader, signal);
        if (!batch) break;
        for (const { events: own, ...facts } of batch.ledgers) {
          if (facts.sequence < next) continue;
          if (facts.sequence > through || isFull()) break;
          const ref = refOf(facts);
          if (anchor && contradicts(anchor, ref)) return { next, events, odd: ref };
          for (const event of own) events.push(event);
          next = facts.sequence + 1;
        }
        reader.cut = next <= batch.endSequence ? batch : undefined;
      }
    } catch (error) {
      signal.throwIfAborted();
      if (next === first) throw error;
    }
    return { next, events };
  }

  function readerOf({ reader }: OpenLake, contractIds: readonly string[]): BatchReader {
    if (contractIds.length === 0) throw new TypeError("A window needs at least one contract.");
    const key = contractIds.join();
    const ready = readers.get(key) ?? { readBatch: reader.forContracts(contractIds), cut: undefined };
    readers.delete(key); // the one that is used goes to the end
    readers.set(key, ready);
    for (const old of readers.keys()) if (readers.size > MAX_READERS) readers.delete(old);
    return ready;
  }

  async function readRef(
    { objects, reader }: OpenLake,
    sequence: number,
    signal: AbortSignal,
  ): Promise<LedgerRef | null> {
    const object = await objects.get(sequence, signal);
    const { ledgers } = object ? objects.read(sequence, object, reader.forContracts([])) : { ledgers: [] };
    const found = ledgers.find((ledger) => ledger.sequence === sequence);
    return found ? refOf(found) : null;
  }

  /**
   * A ledger of the lake that cannot be on the chain of the anchor: its own, or where the lake does not have that,
   * one of its ends.
   */
  async function findOdd(
    opened: OpenLake,
    anchor: LedgerRef,
    { oldestLedger: oldest, latestLedger }: SourceHead,
    signal: AbortSignal,
  ): Promise<LedgerRef | undefined> {
    const isKnown = agreed && agreed.anchor.ledger === anchor.ledger && !differs(agreed.anchor, anchor);
    if (isKnown && agreed && now() - agreed.at < ANCHOR_AGE_MS) return undefined;
    const own = await readRef(opened, anchor.ledger, signal);
    const seen = own
      ? [own]
      : [await readRef(opened, latestLedger, signal), await readRef(opened, oldest, signal)];
    const odd = seen.find((ref) => ref !== null && contradicts(anchor, ref));
    if (!odd) agreed = { anchor, at: now() };
    return odd ?? undefined;
  }

  return {
    chain,
    passphrase,
    name: where,
    pollMs,
    windowsAtOnce: WINDOWS_AT_ONCE,
    eventsAtOnce: WINDOW_EVENTS,
    ledgersAtOnce: WINDOW_LEDGERS,
    async check(signal, anchor) {
      const opened = await lake(signal);
      head = undefined; // the oldest ledger is looked for anew, too
      agreed = undefined;
      const found = await findHead(opened, 0, signal);
      const odd = anchor && (await findOdd(opened, anchor, found, signal));
      if (anchor && odd) throw new ChainResetError(chain, anchor, odd);
      const newest = await readRef(opened, found.latestLedger, signal);
      const misfit = newest && decideEpoch(chain.epoch, newest, hasKnownPace(passphrase));
      if (newest && misfit && misfit !== "plausible") throw new EpochMismatchError(chain, newest, misfit);
      return found;
    },
    async window({ fromLedger, throughLedger: through = MAX_LEDGER, contractIds, anchor }, signal) {
      const opened = await lake(signal);
      const reader = readerOf(opened, contractIds);
      // Ledger 1 was made, not closed: no lake has it, and nothing happened in it.
      const first = Math.max(fromLedger, FIRST_LEDGER);
      const fresh = head && now() - foundAt < HEAD_AGE_MS;
      const known = fresh && head ? head : await findHead(opened, first, signal);
      const other = anchor && (await findOdd(opened, anchor, known, signal));
      if (anchor && other) return { kind: "reset", anchor, found: other };

      const wanted = { first, through, latest: Math.max(known.latestLedger, first), anchor };
      const { next, events, odd } = await readLedgers(opened, reader, wanted, signal);
      if (next > first || first > through) {
        const throughLedger = Math.min(next - 1, through);
        const seen = saw({ ...known, latestLedger: throughLedger });
        return { kind: "window", fromLedger, throughLedger, events, ...seen };
      }
      if (anchor && odd) return { kind: "reset", anchor, found: odd };
      // Whether the lake goes on was known before the ledger was found missing: one that is just being written at
      // the end of the lake is no hole.
      if (first > known.latestLedger) {
        return { kind: first === known.latestLedger + 1 ? "idle" : "behind", ...known };
      }
      const end = await opened.edges.endOfHole(first, signal);
      return { kind: "gap", fromLedger, throughLedger: Math.min(end, through), ...known };
    },
    async ledger(sequence, signal) {
      return readRef(await lake(signal), sequence, signal);
    },
  };
}

interface LedgersWanted {
  readonly first: number;
  readonly through: number;
  readonly latest: number;
  readonly anchor: LedgerRef | undefined;
}

/** Reads the events of some contracts. `cut`: the batch in which its last window ended before the end. */
interface BatchReader {
  readonly readBatch: ReadBatch;
  cut: LedgerBatch | undefined;
}

interface OpenLake {
  readonly size: number;
  readonly objects: LakeObjects;
  readonly edges: LakeEdges;
  readonly lookAhead: LookAhead<LakeObject>;
  readonly reader: LedgerReader;
}

function refOf({ sequence, hash, closedAt }: LedgerFacts): LedgerRef {
  return { ledger: sequence, hash, closedAt: Date.parse(closedAt) / 1000 };
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
