// Where a lake begins and ends, and where it goes on after a hole.
import { SourceUnavailableError } from "../errors.ts";
import {
  batchOf,
  EXTENSIONS,
  FIRST_LEDGER,
  type LakeLayout,
  type LedgerSpan,
  MAX_LEDGER,
  partitionOf,
  startOfName,
} from "./layout.ts";
import type { LakeObjects } from "./objects.ts";
import type { LakeStorage } from "./storage.ts";

export interface LakeEdges {
  /** Throws {@link SourceUnavailableError} for a lake without ledgers. */
  oldest(signal: AbortSignal): Promise<number>;
  /**
   * The last ledger of the newest object. `known` is a ledger that the lake has; where one is wanted that it may not
   * have, what stands beyond it is looked for as well.
   */
  newest(known: number, wanted: number, signal: AbortSignal): Promise<number>;
  /**
   * The last ledger of the hole that begins at a missing ledger, of which the lake has later ones. Every ledger of
   * it is missing; the hole may be longer where nothing can be listed.
   */
  endOfHole(missing: number, signal: AbortSignal): Promise<number>;
}

/** Names asked for at once: one page of S3. */
const PAGE = 1_000;
/** The most names that are read of one folder. A partition of the public lake has 64,000. */
const MAX_NAMES = 200_000;
/** Objects looked for, one after the other, to find the end of a hole where nothing can be listed. */
const MAX_PROBES = 256;
const PROBES_AT_ONCE = 16;

/** The edges of a lake that can be listed: names sort newest first. */
export function listedEdges(
  list: NonNullable<LakeStorage["list"]>,
  where: string,
  layout: LakeLayout,
  objects: LakeObjects,
): LakeEdges {
  /** First ledgers of the batches in a folder, newest first. */
  async function batchesIn({ name }: LedgerSpan, most: number, signal: AbortSignal): Promise<number[]> {
    const names = await list(name, most, signal);
    return startsIn(names, (ledger) => batchOf(ledger, layout), EXTENSIONS);
  }

  /** The folders with batches, newest first. */
  async function partitions(most: number, signal: AbortSignal): Promise<LedgerSpan[]> {
    if (layout.batchesPerPartition === 1) return [{ name: "", start: 0, end: MAX_LEDGER }];
    const starts = startsIn(await list("", most, signal), (ledger) => partitionOf(ledger, layout), [""]);
    return starts.map((start) => partitionOf(start, layout)).filter((partition) => partition !== null);
  }

  async function firstWithBatches(folders: readonly LedgerSpan[], most: number, signal: AbortSignal) {
    for (const folder of folders) {
      const batches = await batchesIn(folder, most, signal);
      if (batches.length > 0) return batches;
    }
    throw new SourceUnavailableError(`The lake ${where} has no ledgers. Check source.url.`);
  }

  return {
    async oldest(signal) {
      if (await objects.exists(FIRST_LEDGER, signal)) return FIRST_LEDGER;
      const folders = await partitions(MAX_NAMES, signal);
      const batches = await firstWithBatches(folders.reverse(), MAX_NAMES, signal);
      return Math.max(batches.at(-1) ?? 0, FIRST_LEDGER);
    },
    async newest(_known, _wanted, signal) {
      const [newest = 0] = await firstWithBatches(await partitions(PAGE, signal), PAGE, signal);
      return batchOf(newest, layout).end;
    },
    async endOfHole(missing, signal) {
      for (const folder of (await partitions(MAX_NAMES, signal)).reverse()) {
        if (folder.end < missing) continue;
        const next = (await batchesIn(folder, MAX_NAMES, signal)).findLast((start) => start > missing);
        if (next !== undefined) return next - 1;
      }
      throw new SourceUnavailableError(`The lake ${where} changed while it was listed.`);
    },
  };
}

function startsIn(
  names: readonly string[],
  spanOf: Parameters<typeof startOfName>[1],
  extensions: readonly string[],
): number[] {
  // Names that are not read are older ones: without them, what is there would be taken for missing.
  if (names.length >= MAX_NAMES) {
    throw new SourceUnavailableError(`A folder of the lake has ${MAX_NAMES} names or more: use partitions.`);
  }
  return names.map((name) => startOfName(name, spanOf, extensions)).filter((start) => start !== null);
}

/**
 * The edges of a lake of which only single objects can be asked for: it is taken to begin at `oldestLedger`, and its
 * end is searched for.
 */
export function probedEdges(
  where: string,
  layout: LakeLayout,
  objects: LakeObjects,
  oldestLedger: number,
): LakeEdges {
  const size = layout.ledgersPerBatch;

  /** The first ledger, at growing distances from this one, that is there. */
  async function existingBeyond(ledger: number, signal: AbortSignal): Promise<number | undefined> {
    for (let distance = size; ledger + distance <= MAX_LEDGER; distance *= 2) {
      if (await objects.exists(ledger + distance, signal)) return ledger + distance;
    }
    return undefined;
  }

  return {
    async oldest(signal) {
      if (await objects.exists(oldestLedger, signal)) return oldestLedger;
      throw new SourceUnavailableError(
        `The lake ${where} has no ledger ${oldestLedger}. Check source.url; where the lake begins later and its ` +
          "server lists nothing, give source.oldestLedger.",
      );
    },
    async newest(known, wanted, signal) {
      let there = (wanted > known ? await existingBeyond(wanted, signal) : undefined) ?? known;
      let step = size;
      while (there + step <= MAX_LEDGER && (await objects.exists(there + step, signal))) {
        there += step;
        step *= 2;
      }
      // Between the two: the one is there, the other is not.
      let notThere = there + step;
      while (notThere - there > size) {
        const middle = there + Math.floor((notThere - there) / size / 2) * size;
        if (await objects.exists(middle, signal)) there = middle;
        else notThere = middle;
      }
      return batchOf(there, layout).end;
    },
    async endOfHole(missing, signal) {
      if (missing < oldestLedger) return oldestLedger - 1;
      const { start } = batchOf(missing, layout);
      for (let probed = 0; probed < MAX_PROBES; probed += PROBES_AT_ONCE) {
        const probes = Array.from({ length: PROBES_AT_ONCE }, (_, i) => start + (probed + i + 1) * size);
        const found = await Promise.all(probes.map((ledger) => objects.exists(ledger, signal)));
        const next = probes[found.indexOf(true)];
        if (next !== undefined) return next - 1;
      }
      return start + (MAX_PROBES + 1) * size - 1;
    },
  };
}
