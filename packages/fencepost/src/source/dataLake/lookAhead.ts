/** Fetches what will be asked for next while the asker is busy with what it has. */
export interface LookAhead<T> {
  /**
   * The item with this number; null where there is none. Also begins to fetch those after it, up to `last`, as far
   * as the limits allow. Throws what fetching it threw: it is fetched anew when it is asked for again.
   */
  take(index: number, last: number, signal: AbortSignal): Promise<T | null>;
}

export interface LookAheadOptions<T> {
  /** null: there is no such item yet. */
  readonly fetch: (index: number, signal: AbortSignal) => Promise<T | null>;
  readonly sizeOf: (item: T) => number;
  /** Items on their way or here, with the one that is asked for. */
  readonly items: number;
  /** Their bytes; what is on its way counts as much as the largest so far. One item is always fetched. */
  readonly bytes: number;
}

interface Entry<T> {
  readonly item: Promise<T | null>;
  /** 0 until it is here. */
  size: number;
  /** How many had been taken when it was begun. */
  readonly begunAt: number;
  readonly end: AbortController;
}

/** What was begun so many rounds of `items` takes ago is of a reader that went elsewhere. */
const STALE_ROUNDS = 4;

export function openLookAhead<T>({ fetch, sizeOf, items, bytes }: LookAheadOptions<T>): LookAhead<T> {
  const entries = new Map<number, Entry<T>>();
  let largest = 0;
  let taken = 0;

  function begin(index: number, signal: AbortSignal): Entry<T> {
    const end = new AbortController();
    const item = fetch(index, AbortSignal.any([signal, end.signal])).then((found) => {
      entry.size = found === null ? 0 : sizeOf(found);
      largest = Math.max(largest, entry.size);
      return found;
    });
    const entry = { item, size: 0, begunAt: taken, end };
    item.catch(() => {}); // whoever takes it is told
    entries.set(index, entry);
    return entry;
  }

  /** Nothing but one item is begun before the size of one is known. */
  function hasRoom(): boolean {
    if (entries.size === 0) return true;
    let held = 0;
    for (const { size } of entries.values()) held += size || largest;
    return largest > 0 && entries.size < items && held + largest <= bytes;
  }

  function dropStale(): void {
    for (const [index, { begunAt, end }] of entries) {
      if (taken - begunAt <= STALE_ROUNDS * items) continue;
      end.abort();
      entries.delete(index);
    }
  }

  return {
    async take(index, last, signal) {
      taken++;
      dropStale();
      const early = entries.get(index);
      const entry = early ?? begin(index, signal);
      for (let next = index + 1; next <= Math.min(last, index + items - 1); next++) {
        if (entries.has(next)) continue;
        if (!hasRoom()) break;
        begin(next, signal);
      }
      try {
        const item = await entry.item.catch((error) => {
          signal.throwIfAborted();
          if (!early) throw error;
          return null;
        });
        // What failed, or was not there, when it was fetched early may be there now.
        return item ?? (early ? await fetch(index, signal) : null);
      } finally {
        entries.delete(index);
      }
    },
  };
}
