import { type ReadAhead, readAhead } from "../source/readAhead.ts";
import type { SourceWindow, WindowReader, WindowRequest } from "../source/source.ts";
import type { IdentifiedEvent } from "./identify.ts";

/** Windows of events with their identities, each after the one before; a long way to go is read ahead, several windows at once. */
export interface Windows {
  /** `latestLedger`: the newest one that is known of, where the request has no end. */
  next(
    request: WindowRequest,
    latestLedger: number,
    signal: AbortSignal,
  ): Promise<SourceWindow<IdentifiedEvent>>;
}

/** Ledgers that must be left before it is worth reading ahead. */
const A_LONG_WAY = 200;

/**
 * Remembers what was read ahead. A request that does not go on where the last window ended, or is about other
 * contracts, begins anew: what was read ahead for another cursor is never given.
 */
export function openWindows(source: WindowReader<IdentifiedEvent>): Windows {
  let ahead: ReadAhead<IdentifiedEvent> | undefined;

  function stop(): void {
    ahead?.stop();
    ahead = undefined;
  }

  return {
    async next(request, latestLedger, signal) {
      if (!ahead || !continues(ahead, request)) {
        stop();
        const throughLedger = request.throughLedger ?? latestLedger;
        const isFar = throughLedger - request.fromLedger >= A_LONG_WAY;
        if (!isFar || (source.windowsAtOnce ?? 1) < 2) return source.window(request, signal);
        ahead = readAhead(source, { ...request, throughLedger }, signal);
      }
      try {
        const window = await ahead.next();
        if (window.kind !== "window") stop();
        return window;
      } catch (error) {
        stop();
        throw error;
      }
    },
  };
}

function continues(ahead: ReadAhead, { fromLedger, throughLedger, contractIds }: WindowRequest): boolean {
  return (
    ahead.hasNext &&
    ahead.position === fromLedger &&
    (throughLedger === undefined || throughLedger >= ahead.throughLedger) &&
    ahead.contractIds.length === contractIds.length &&
    ahead.contractIds.every((id, i) => id === contractIds[i])
  );
}
