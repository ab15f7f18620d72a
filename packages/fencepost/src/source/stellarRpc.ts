import { setTimeout as sleep } from "node:timers/promises";
import { parseRpcId, rpcCursorAfterLedger } from "@fencepost/token";
import {
  RpcResponseError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./errors.ts";
import { type EventsPage, parseEventsPage } from "./eventsPage.ts";
import { callJsonRpc } from "./jsonRpc.ts";
import { type NetworkOption, resolveNetwork } from "./networks.ts";
import type { Source, SourceEvent, SourceHead, SourceWindow, WindowRequest } from "./source.ts";

export interface StellarRpcOptions {
  readonly network: NetworkOption;
  /** One url, or several (a list, or one text with commas): the next is asked when one fails. */
  readonly urls: string | readonly string[] | undefined;
  /** Total time for one call, in milliseconds; 15,000 unless given. */
  readonly timeoutMs?: number;
  /** How long to wait when nothing is new, in milliseconds; 1,000 unless given. */
  readonly pollMs?: number;
  /** Events asked for in one page; 1,000 unless given. A node may allow up to 10,000. */
  readonly pageLimit?: number;
}

/** Contracts one `getEvents` call can name: 5 filters of 5. */
const CONTRACTS_PER_CALL = 25;
/** A window is cut at a ledger once it holds this many events. */
const WINDOW_EVENTS = 10_000;
/** One ledger with more events than this for the watched contracts is refused: far beyond what a ledger holds. */
const LEDGER_EVENTS_LIMIT = 200_000;
/** How often one page is asked for before the window is given up, and the runner backs off. */
const TRIES_PER_PAGE = 5;
const FIRST_RETRY_MS = 250;

/**
 * A Stellar RPC node, or several of one network, as a source. Throws a `TypeError` for options that cannot be
 * used; whether a node can be used is checked by `check()` and before the first call to each.
 */
export function stellarRpc(options: StellarRpcOptions): Source {
  const { chain, passphrase } = resolveNetwork(options.network);
  const urls = readUrls(options.urls);
  const { timeoutMs = 15_000, pollMs = 1_000, pageLimit = 1_000 } = options;
  const checked = new Set<string>();
  let preferred = 0;

  function call(url: string, method: string, signal: AbortSignal, params?: object): Promise<unknown> {
    return callJsonRpc({ url, method, timeoutMs, signal, ...(params && { params }) });
  }

  async function checkNode(url: string, signal: AbortSignal): Promise<void> {
    if (checked.has(url)) return;
    const network = (await call(url, "getNetwork", signal)) as { passphrase?: string };
    if (network.passphrase !== passphrase) {
      throw new WrongNetworkError(new URL(url).origin, passphrase, String(network.passphrase));
    }
    const { version = "" } = (await call(url, "getVersionInfo", signal)) as { version?: string };
    if (!isSupportedVersion(version)) throw new UnsupportedRpcVersionError(new URL(url).origin, version);
    checked.add(url);
  }

  /** Asks the nodes in turn until one gives a usable answer; waits longer, with jitter, after each failure. */
  async function ask<T>(
    signal: AbortSignal,
    question: (url: string, attempt: number) => Promise<T>,
  ): Promise<T> {
    for (let attempt = 0; ; attempt++) {
      const url = urls[preferred % urls.length] ?? "";
      try {
        await checkNode(url, signal);
        return await question(url, attempt);
      } catch (error) {
        signal.throwIfAborted();
        if (!isWorthAnotherTry(error) || attempt + 1 >= TRIES_PER_PAGE) throw error;
        preferred++;
        const wish = error instanceof SourceUnavailableError ? error.retryAfterMs : undefined;
        const backoff = FIRST_RETRY_MS * 2 ** attempt * (0.5 + Math.random() / 2);
        await sleep(wish ?? backoff, undefined, { signal });
      }
    }
  }

  function readPage(
    start: PageStart,
    contractIds: readonly string[],
    signal: AbortSignal,
  ): Promise<EventsPage> {
    const known = new Set(contractIds);
    const filters = symmetricFilters(contractIds);
    const after = "cursor" in start ? start.cursor : rpcCursorAfterLedger(Math.max(0, start.startLedger - 1));
    return ask(signal, async (url, attempt) => {
      // A node over its processing limit wants a smaller question.
      const limit = Math.max(100, Math.floor(pageLimit / 2 ** attempt));
      const params =
        "cursor" in start
          ? { filters, pagination: { cursor: start.cursor, limit } }
          : { startLedger: start.startLedger, filters, pagination: { limit } };
      return parseEventsPage(await call(url, "getEvents", signal, params), known, after);
    });
  }

  /** Reads one group of contracts, up to a ledger's end. */
  async function readGroup(
    contractIds: readonly string[],
    {
      fromLedger,
      throughLedger = Number.POSITIVE_INFINITY,
    }: Pick<WindowRequest, "fromLedger" | "throughLedger">,
    maxEvents: number,
    signal: AbortSignal,
  ): Promise<SourceWindow> {
    const events: SourceEvent[] = [];
    let completeThrough = fromLedger - 1;
    // A cursor at the end of the ledger before may stand at the newest ledger; a startLedger beyond it may not.
    let start: PageStart =
      fromLedger > 1 ? { cursor: rpcCursorAfterLedger(fromLedger - 1) } : { startLedger: fromLedger };
    let head: SourceHead = { latestLedger: 0, oldestLedger: 0 };
    const window = (): SourceWindow => ({
      kind: "window",
      fromLedger,
      throughLedger: Math.min(completeThrough, throughLedger),
      events: events.filter((event) => event.ledger <= Math.min(completeThrough, throughLedger)),
      ...head,
    });

    // Bounded: every turn but a refused start moves the cursor on, and events and ledgers have limits.
    for (;;) {
      const needed = neededLedger(start);
      let page: EventsPage;
      try {
        page = await readPage(start, contractIds, signal);
      } catch (error) {
        const range = outOfRange(error);
        if (!range) throw error;
        if (needed >= range.oldestLedger && needed <= range.latestLedger && "cursor" in start) {
          // Only the ledger of the cursor itself has gone: nothing is lost.
          start = { startLedger: needed };
          if (completeThrough >= fromLedger) return window();
          continue;
        }
        if (completeThrough >= fromLedger) return window();
        return refusedRange(needed, range);
      }
      head = { latestLedger: page.latestLedger, oldestLedger: page.oldestLedger };
      // Some providers answer an expired cursor with 200 and an empty page: believe the oldest ledger instead.
      if (needed < page.oldestLedger || page.latestLedger < needed - 1) {
        return completeThrough >= fromLedger ? window() : refusedRange(needed, head);
      }
      const moved = !("cursor" in start) || page.cursor > start.cursor;
      events.push(...page.events);
      completeThrough = Math.max(completeThrough, page.completeThrough);
      start = { cursor: page.cursor };
      const caughtUp = completeThrough >= Math.min(throughLedger, page.latestLedger);
      const full = events.length >= maxEvents && completeThrough >= fromLedger;
      if (caughtUp || full || !moved) {
        return completeThrough >= fromLedger ? window() : { kind: "idle", ...head };
      }
      if (events.length > LEDGER_EVENTS_LIMIT) {
        throw new SourceUnavailableError(`Ledger ${fromLedger} has more than ${LEDGER_EVENTS_LIMIT} events.`);
      }
    }
  }

  return {
    chain,
    passphrase,
    pollMs,
    check: (signal) =>
      ask(signal, async (url) => {
        const health = (await call(url, "getHealth", signal)) as Partial<SourceHead>;
        if (!Number.isSafeInteger(health.latestLedger) || !Number.isSafeInteger(health.oldestLedger)) {
          throw new SourceUnavailableError(`${new URL(url).origin} does not say which ledgers it has.`);
        }
        return { latestLedger: Number(health.latestLedger), oldestLedger: Number(health.oldestLedger) };
      }),
    async window({ fromLedger, throughLedger, contractIds }, signal) {
      const groups = inGroups([...contractIds].sort(), CONTRACTS_PER_CALL);
      const share = Math.ceil(WINDOW_EVENTS / groups.length);
      const events: SourceEvent[] = [];
      let end = throughLedger;
      let last: SourceWindow | undefined;
      for (const group of groups) {
        // Each group reads no further than the one before it: the window has one common end.
        const range = end === undefined ? { fromLedger } : { fromLedger, throughLedger: end };
        last = await readGroup(group, range, share, signal);
        if (last.kind !== "window") return last;
        end = last.throughLedger;
        events.push(...last.events);
      }
      if (last?.kind !== "window") throw new TypeError("A window needs at least one contract.");
      const common = events.filter((event) => event.ledger <= last.throughLedger);
      return { ...last, events: common.sort((a, b) => (a.id < b.id ? -1 : 1)) };
    },
  };
}

type PageStart = { readonly cursor: string } | { readonly startLedger: number };

/** The first ledger that the next page must still be able to give. */
function neededLedger(start: PageStart): number {
  if ("startLedger" in start) return start.startLedger;
  const { ledger } = parseRpcId(start.cursor);
  return start.cursor === rpcCursorAfterLedger(ledger) ? ledger + 1 : ledger;
}

/** Nodes before v27.1.1 missed events when the filters of one request set different keys: all set the same. */
function symmetricFilters(contractIds: readonly string[]): object[] {
  return inGroups(contractIds, 5).map((ids) => ({ type: "contract,system", contractIds: ids }));
}

function inGroups<T>(items: readonly T[], size: number): T[][] {
  const groups: T[][] = [];
  for (let i = 0; i < items.length; i += size) groups.push(items.slice(i, i + size));
  return groups;
}

/** The range in "startLedger must be within the ledger range: A - B", or null for any other error. */
function outOfRange(error: unknown): SourceHead | null {
  if (!(error instanceof RpcResponseError) || error.code !== -32600) return null;
  const match = /ledger range: (\d+) - (\d+)/.exec(error.message);
  return match ? { oldestLedger: Number(match[1]), latestLedger: Number(match[2]) } : null;
}

/** The same words mean too old (a gap) and ahead of a lagging node: the numbers tell which. */
function refusedRange(needed: number, { oldestLedger, latestLedger }: SourceHead): SourceWindow {
  if (needed < oldestLedger) {
    return { kind: "gap", fromLedger: needed, throughLedger: oldestLedger - 1, oldestLedger, latestLedger };
  }
  return { kind: needed === latestLedger + 1 ? "idle" : "behind", oldestLedger, latestLedger };
}

function isWorthAnotherTry(error: unknown): boolean {
  if (error instanceof RpcResponseError) return outOfRange(error) === null && error.code !== -32602;
  return error instanceof SourceUnavailableError;
}

function isSupportedVersion(version: string): boolean {
  const major = /^v?(\d+)\./.exec(version)?.[1];
  return major === undefined ? false : Number(major) >= 23;
}

function readUrls(urls: StellarRpcOptions["urls"]): readonly string[] {
  const list = (typeof urls === "string" ? urls.split(",") : (urls ?? [])).map((url) => url.trim());
  const given = list.filter((url) => url !== "");
  if (given.length === 0) throw new TypeError("source.urls is empty: set STELLAR_RPC_URL.");
  for (const url of given) {
    if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
      throw new TypeError(`source.urls has ${JSON.stringify(url)}, which is not an http or https url.`);
    }
  }
  return given;
}
