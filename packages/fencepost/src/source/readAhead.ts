import type { Source, SourceWindow, WindowRequest } from "./source.ts";

/** Windows of a range in order, while those after them are read already. */
export interface ReadAhead {
  readonly contractIds: readonly string[];
  /** The last ledger of the range. */
  readonly throughLedger: number;
  /** The first ledger of the window that `next()` gives. */
  readonly position: number;
  /** Whether there is a window left in the range. */
  readonly hasNext: boolean;
  /**
   * The next window: it begins at `position`, and may end anywhere in the range. Throws what the source throws; then,
   * and after an answer that is no window, begin anew.
   */
  next(): Promise<SourceWindow>;
  /** Ends what is under way. */
  stop(): void;
}

/** Ledgers of a part, to begin with: few, until it is known how many events they have. */
const FIRST_SPAN = 64;
/** The most that one request scans. */
const MAX_SPAN = 10_000;
/** Parts grow until one holds about this many events, which is what one window holds at the most. */
const FULL = 2_000;

interface Part {
  readonly throughLedger: number;
  /** Its first window, which is asked for already. */
  readonly window: Promise<SourceWindow>;
}

/**
 * Reads a range in parts, as many at once as the source allows. Each part has read its first window at the most, so
 * what is held is bounded by that number.
 */
export function readAhead(
  source: Source,
  request: Required<Omit<WindowRequest, "anchor">> & Pick<WindowRequest, "anchor">,
  signal: AbortSignal,
): ReadAhead {
  const { throughLedger, contractIds } = request;
  const atOnce = source.windowsAtOnce ?? 1;
  const stopping = new AbortController();
  const either = AbortSignal.any([signal, stopping.signal]);
  const parts: Part[] = [];
  let span = FIRST_SPAN;
  let position = request.fromLedger;
  /** The first ledger that is in no part yet. */
  let unread = request.fromLedger;

  function read(fromLedger: number, through: number): Part {
    const window = source.window({ ...request, fromLedger, throughLedger: through }, either);
    window.catch(() => {}); // it is thrown to whoever comes to this part
    return { throughLedger: through, window };
  }

  function fill(): void {
    while (parts.length < atOnce && unread <= throughLedger) {
      const through = Math.min(unread + span - 1, throughLedger);
      parts.push(read(unread, through));
      unread = through + 1;
    }
  }

  return {
    contractIds,
    throughLedger,
    get position() {
      return position;
    },
    get hasNext() {
      return position <= throughLedger;
    },
    async next() {
      fill();
      const part = parts.shift();
      if (!part) throw new RangeError(`Nothing is left to read after ledger ${throughLedger}.`);
      const window = await part.window;
      if (window.kind !== "window") return window;
      const through = window.throughLedger;
      const isCut = through < part.throughLedger;
      if (isCut) parts.unshift(read(through + 1, part.throughLedger));
      span = nextSpan(span, { ledgers: through - position + 1, events: window.events.length, isCut });
      position = through + 1;
      fill();
      return window;
    },
    stop: () => stopping.abort(),
  };
}

/** How many ledgers the next part has, after a window of so many ledgers and events. */
export function nextSpan(
  span: number,
  { ledgers, events, isCut }: { readonly ledgers: number; readonly events: number; readonly isCut: boolean },
): number {
  if (isCut) return Math.max(1, Math.min(span, ledgers));
  return events < FULL / 2 ? Math.min(span * 2, MAX_SPAN) : span;
}
