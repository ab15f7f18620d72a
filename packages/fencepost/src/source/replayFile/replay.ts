import { contradicts } from "../chainLife.ts";
import { ChainResetError, WrongNetworkError } from "../errors.ts";
import { type NetworkOption, resolveNetwork } from "../networks.ts";
import type { LedgerRef, Source, SourceEvent, SourceHead, SourceWindow, WindowRequest } from "../source.ts";
import { ContractNotRecordedError, type ReplayFault, ReplayFileError } from "./errors.ts";
import { chainOf, parseHeader, parseLine, type ReplayHeader } from "./fileFormat.ts";
import { type Line, readLines } from "./lines.ts";

export interface ReplayOptions {
  /** The file, as `fencepost export` writes it. */
  readonly path: string;
  /** The network that it must be of. */
  readonly network: NetworkOption;
}

/** Events of one window, beyond which it ends with the ledger. */
const WINDOW_EVENTS = 2_000;
/** A file does not grow: nothing new is to be expected soon. */
const POLL_MS = 60_000;
/** Places in the file that are remembered, at the most. */
const MAX_PLACES = 100_000;

/** Where in the file the first event of some ledger, or of a later one, is; and what comes before it. */
interface Place {
  readonly ledger: number;
  readonly offset: number;
  readonly before: string;
  readonly events: number;
}

/**
 * A source of recorded events: a file of NDJSON, read as a stream, one window in memory at a time. It is complete for
 * the contracts and ledgers that its header names, each contract from its start ledger on; ledgers before them, or in
 * a hole that was there when it was written, are a gap, those after them not closed yet. Throws a `TypeError` for an
 * unknown network; its methods throw {@link ReplayFileError} for a line that is garbled, out of order or of another
 * chain and for a file that is cut off, `ReplayFileUnreadableError`, {@link ContractNotRecordedError} and
 * `WrongNetworkError`.
 */
export function replay({ path, network }: ReplayOptions): Source {
  const { chain, passphrase } = resolveNetwork(network);
  const places: Place[] = [];
  let opened: Promise<ReplayHeader> | undefined;
  /** Where the last window ended: the next one mostly goes on there. */
  let cursor: Cursor | undefined;

  function fail(fault: ReplayFault, { offset }: Line, detail: string): never {
    throw new ReplayFileError(path, fault, offset, detail);
  }

  async function readHeader(signal: AbortSignal): Promise<ReplayHeader> {
    for await (const line of readLines(path, 0, signal)) {
      if (line.text === null) fail("cut off", line, "the header has no end");
      const header = parseHeader(line.text);
      if ("fault" in header) fail("garbled", line, `of the header, ${header.fault}`);
      if (header.passphrase !== passphrase) throw new WrongNetworkError(path, passphrase, header.passphrase);
      if (chainOf(header) !== chainOf(chain)) {
        fail("of another chain", line, `the header says ${chainOf(header)}, the config ${chainOf(chain)}`);
      }
      const offset = line.offset + Buffer.byteLength(line.text) + 1;
      places.push({ ledger: header.fromLedger, offset, before: "", events: 0 });
      return header;
    }
    return fail("cut off", { offset: 0, text: null }, "it is empty");
  }

  function header(signal: AbortSignal): Promise<ReplayHeader> {
    opened ??= readHeader(signal).catch((error: unknown) => {
      opened = undefined;
      places.length = 0;
      throw error;
    });
    return opened;
  }

  /** The events from some ledger on; the last row is how many there were. */
  async function* rows(from: Place, { fromLedger, throughLedger }: ReplayHeader, signal: AbortSignal) {
    let { before, events } = from;
    let last: Line = { offset: from.offset, text: null };
    for await (const line of readLines(path, from.offset, signal)) {
      last = line;
      if (line.text === null) fail("cut off", line, "its last line has no end");
      const row = parseLine(line.text);
      if ("fault" in row) fail("garbled", line, row.fault);
      if ("end" in row) {
        if (row.events !== events)
          fail("cut off", line, `it has ${events} events and should have ${row.events}`);
        yield { offset: line.offset, before, events, event: null };
        return;
      }
      if (row.id <= before) fail("out of order", line, `event ${row.id} comes after ${before}`);
      if (row.ledger < fromLedger || row.ledger > throughLedger) {
        fail("of another chain", line, `ledger ${row.ledger} is not in ${fromLedger} to ${throughLedger}`);
      }
      yield { offset: line.offset, before, events, event: row };
      before = row.id;
      events++;
    }
    fail("cut off", last, "the line that ends it is missing");
  }

  interface Cursor {
    /** No event of a ledger below it is still to come. */
    ledger: number;
    readonly reading: ReturnType<typeof rows>;
    row: Awaited<ReturnType<ReturnType<typeof rows>["next"]>>["value"] | undefined;
  }

  /** The reading that stands at a ledger: the one of the last window, or one from the nearest place before it. */
  async function seek(ledger: number, of: ReplayHeader): Promise<Cursor> {
    const known = cursor;
    cursor = undefined;
    if (known?.ledger === ledger) return known;
    await known?.reading.return(undefined);
    const place = places.findLast((each) => each.ledger <= ledger) ?? places[0];
    if (!place) throw new Error("A file that was opened has a place.");
    const reading = rows(place, of, new AbortController().signal);
    return { ledger, reading, row: undefined };
  }

  async function readWindow(
    of: ReplayHeader,
    {
      fromLedger,
      throughLedger: wanted,
      contractIds,
      anchor,
    }: Omit<WindowRequest, "anchor" | "throughLedger"> & {
      readonly throughLedger: number;
      readonly anchor?: LedgerRef | undefined;
    },
    signal: AbortSignal,
  ): Promise<SourceWindow> {
    const at = await seek(fromLedger, of);
    const ids = new Set(contractIds);
    const events: SourceEvent[] = [];
    let read = 0;
    let throughLedger = wanted;
    for (;;) {
      signal.throwIfAborted();
      at.row ??= (await at.reading.next()).value;
      const row = at.row;
      if (!row?.event || row.event.ledger > throughLedger) break;
      const { event } = row;
      at.row = undefined;
      if (event.ledger < fromLedger) continue;
      if (++read >= WINDOW_EVENTS) throughLedger = event.ledger;
      const ref = {
        ledger: event.ledger,
        hash: null,
        closedAt: Math.floor(Date.parse(event.closedAt) / 1_000),
      };
      if (anchor && contradicts(anchor, ref)) {
        await at.reading.return(undefined);
        return { kind: "reset", anchor, found: ref };
      }
      if (ids.has(event.contractId ?? "")) events.push(event);
    }
    at.ledger = throughLedger + 1;
    const { row } = at;
    const newest = places.at(-1)?.ledger ?? 0;
    if (row && at.ledger > newest && places.length < MAX_PLACES) {
      places.push({ ledger: at.ledger, offset: row.offset, before: row.before, events: row.events });
    }
    cursor = at;
    return { kind: "window", fromLedger, throughLedger, events, ...headOf(of) };
  }

  return {
    chain,
    passphrase,
    name: "recorded file",
    pollMs: POLL_MS,
    eventsAtOnce: WINDOW_EVENTS,
    async check(signal, anchor) {
      const of = await header(signal);
      if (!anchor || anchor.ledger < of.fromLedger || anchor.ledger > of.throughLedger) return headOf(of);
      const { ledger } = anchor;
      const contractIds = of.contracts.map(({ id }) => id);
      const window = await readWindow(
        of,
        { fromLedger: ledger, throughLedger: ledger, contractIds, anchor },
        signal,
      );
      if (window.kind === "reset") throw new ChainResetError(chain, window.anchor, window.found);
      return headOf(of);
    },
    async window(request, signal) {
      const of = await header(signal);
      const { fromLedger, contractIds, anchor } = request;
      const recorded = new Map(of.contracts.map(({ id, startLedger }) => [id, startLedger]));
      const missing = contractIds.find((id) => !recorded.has(id));
      if (missing !== undefined) throw new ContractNotRecordedError(path, missing);
      if (fromLedger === of.throughLedger + 1) return { kind: "idle", ...headOf(of) };
      if (fromLedger > of.throughLedger) return { kind: "behind", ...headOf(of) };

      const unrecorded = contractIds.flatMap((id) => {
        const from = Math.max(fromLedger, request.startLedgers?.get(id) ?? 0);
        return [{ fromLedger: from, throughLedger: Math.max(of.fromLedger, recorded.get(id) ?? 0) - 1 }];
      });
      const hole = firstHole([...of.gaps, ...unrecorded], fromLedger);
      const last = Math.min(request.throughLedger ?? of.throughLedger, of.throughLedger);
      if (hole?.fromLedger === fromLedger) {
        return { kind: "gap", ...hole, throughLedger: Math.min(hole.throughLedger, last), ...headOf(of) };
      }
      const throughLedger = hole ? Math.min(last, hole.fromLedger - 1) : last;
      return readWindow(of, { fromLedger, throughLedger, contractIds, anchor }, signal);
    },
  };
}

/** The first ledgers at or after `ledger` that are missing: where one hole ends in another, both of them. */
function firstHole(
  holes: ReplayHeader["gaps"],
  ledger: number,
): { readonly fromLedger: number; readonly throughLedger: number } | undefined {
  const left = holes
    .map((hole) => ({ ...hole, fromLedger: Math.max(hole.fromLedger, ledger) }))
    .filter((hole) => hole.fromLedger <= hole.throughLedger)
    .sort((a, b) => a.fromLedger - b.fromLedger);
  const [first] = left;
  if (!first) return undefined;
  let { throughLedger } = first;
  for (const hole of left) {
    if (hole.fromLedger <= throughLedger + 1) throughLedger = Math.max(throughLedger, hole.throughLedger);
  }
  return { fromLedger: first.fromLedger, throughLedger };
}

function headOf({ fromLedger, throughLedger }: ReplayHeader): SourceHead {
  return { latestLedger: throughLedger, oldestLedger: fromLedger };
}
