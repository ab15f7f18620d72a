import type { DatabaseClient } from "../store/postgres/database.ts";
import { moveEarlier, moveWatches, type Watch } from "../store/postgres/streams.ts";

/** A range of the past that some contracts read next, together. */
export interface Past {
  readonly watches: readonly Watch[];
  readonly fromLedger: number;
  /** Below `fromLedger` where there is nothing left to read, only to join. */
  readonly throughLedger: number;
  /** Moves those that were read as far as `to`. False: one of them is not where it was. */
  move(client: DatabaseClient, stream: string, to: number): Promise<boolean>;
}

/** Contracts whose places are no further apart than this are read together: one that is ahead reads some again. */
const TOGETHER_LEDGERS = 10_000;
/** Contracts that are read together, at the most: a few calls for each window. */
const TOGETHER = 100;

/**
 * Who reads its past next, and what of it: of the contracts that lag behind the stream's cursor at `joinAt`, and of
 * those whose start was set back, the ones furthest behind. undefined: nobody.
 */
export function decidePast(watches: readonly Watch[], joinAt: number): Past | undefined {
  const lagging = watches.flatMap((watch) =>
    watch.nextLedger === null ? [] : [{ watch, next: watch.nextLedger, end: joinAt, isEarlier: false }],
  );
  const earlier = watches.flatMap((watch) =>
    watch.earlier === null
      ? []
      : [{ watch, next: watch.earlier.nextLedger, end: watch.earlier.endLedger, isEarlier: true }],
  );
  const places = [...lagging, ...earlier].sort((a, b) => a.next - b.next);
  const first = places[0];
  if (!first) return undefined;
  const same = places.filter(({ isEarlier, end }) => isEarlier === first.isEarlier && end === first.end);
  const isNear = ({ next }: { readonly next: number }): boolean => next < first.next + TOGETHER_LEDGERS;
  const together = same.filter(isNear).slice(0, TOGETHER);
  // Up to where the next ones stand: then they are read together too, and what was read ahead is of use.
  const end = same.find((place) => !isNear(place))?.next ?? first.end;
  return {
    watches: together.map(({ watch }) => watch),
    fromLedger: first.next,
    throughLedger: end - 1,
    async move(client, stream, to) {
      const byPlace = new Map<number, string[]>();
      for (const { next, watch } of together.filter(
        (place) => place.next < to || place.next === first.next,
      )) {
        byPlace.set(next, [...(byPlace.get(next) ?? []), watch.contractId]);
      }
      for (const [next, ids] of byPlace) {
        const moved = first.isEarlier
          ? await moveEarlier(client, stream, ids, next, to)
          : await moveWatches(client, stream, ids, next, to, joinAt);
        if (!moved) return false;
      }
      return true;
    },
  };
}
