import type { SourceEvent, SourceWindow, WindowReader, WindowRequest } from "./source.ts";

/** Windows of a range in order, while those after them are read already. */
export interface ReadAhead<Event extends SourceEvent = SourceEvent> {
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
  next(): Promise<SourceWindow<Event>>;
  /** Ends what is under way. */
  stop(): void;
}

/** Ledgers of a part, to begin with: few, until it is known how many events they have. */
const FIRST_SPAN = 64;
/** Ledgers of a part at the most, where the source does not say how many a window has. */
const LEDGERS = 10_000;
/** Events that a part is to have at the most, where the source does not say how many one answer holds. */
const EVENTS = 2_000;

interface Part<Event extends SourceEvent> {
  readonly throughLedger: number;
  /** Its first window, which is asked for already. */
  readonly window: Promise<SourceWindow<Event>>;
}

/**
 * Reads a range in parts, as many at once as the source allows. Each part has read its first window at the most, so
 * what is held is bounded by that number.
 */
export function readAhead<Event extends SourceEvent>(
  source: WindowReader<Event>,
  request: WindowRequest & { readonly throughLedger: number },
  signal: AbortSignal,
): ReadAhead<Event> {
  const { throughLedger, contractIds } = request;
  const { windowsAtOnce: atOnce = 1, eventsAtOnce = EVENTS, ledgersAtOnce = LEDGERS } = source;
  const stopping = new AbortController();
  const either = AbortSignal.any([signal, stopping.signal]);
  const parts: Part<Event>[] = [];
  let span = Math.min(FIRST_SPAN, ledgersAtOnce);
  let position = request.fromLedger;
  /** The first ledger that is in no part yet. */
  let unread = request.fromLedger;

  function begin(fromLedger: number, through: number): Part<Event> {
    const window = source.window({ ...request, fromLedger, throughLedger: through }, either);
    window.catch(() => {}); // it is thrown to whoever comes to this part
    return { throughLedger: through, window };
  }

  function fill(): void {
    while (parts.length < atOnce && unread <= throughLedger) {
      const through = Math.min(unread + span - 1, throughLedger);
      parts.push(begin(unread, through));
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
      if (through < part.throughLedger) parts.unshift(begin(through + 1, part.throughLedger));
      const read = { ledgers: through - position + 1, events: window.events.length };
      span = Math.min(nextSpan(span, read, eventsAtOnce), ledgersAtOnce);
      position = through + 1;
      fill();
      return window;
    },
    stop: () => stopping.abort(),
  };
}

/**
 * How many ledgers the next part has, after a window of so many ledgers and events: as many as one answer is likely
 * to hold, so that a part costs one call, and nothing is read beyond it.
 */
export function nextSpan(
  span: number,
  { ledgers, events }: { readonly ledgers: number; readonly events: number },
  eventsAtOnce: number,
): number {
  if (events > eventsAtOnce) return Math.max(1, Math.floor((ledgers * eventsAtOnce * 0.75) / events));
  return ledgers >= span && events < eventsAtOnce / 2 ? span * 2 : span;
}
