import { setTimeout as sleep } from "node:timers/promises";
import { parseRpcId, rpcCursorAfterLedger } from "@fencepost/token";
import { decideEpoch } from "./chainLife.ts";
import {
  ChainResetError,
  EpochMismatchError,
  NoClassicEventsError,
  RpcResponseError,
  SourceUnavailableError,
} from "./errors.ts";
import { type EventsPage, parseEventsPage, parseHead } from "./eventsPage.ts";
import { originOf } from "./jsonRpc.ts";
import type { Clock } from "./limiter.ts";
import { hasKnownPace, type NetworkOption, resolveNetwork } from "./networks.ts";
import { readHeadAt, readLedger } from "./nodeQuestions.ts";
import {
  type AskedNode,
  isPassing,
  type NodeState,
  type Nodes,
  OtherChainError,
  openNodes,
  type Provider,
  refusedRange,
} from "./nodes.ts";
import type { LedgerRef, Source, SourceEvent, SourceHead, SourceWindow, WindowRequest } from "./source.ts";

export interface StellarRpcOptions {
  readonly network: NetworkOption;
  /**
   * One url, or several (a list, or one text with commas): the next is asked when one fails. In a list a provider
   * may stand with its limits.
   */
  readonly urls: string | readonly (string | Provider)[] | undefined;
  /** Watched contracts are asset contracts, whose classic events are wanted: only nodes that emit them answer. */
  readonly classicEvents?: boolean;
  /** Total time for one call, in milliseconds; 15,000 unless given. */
  readonly timeoutMs?: number;
  /** How long to wait when nothing is new, in milliseconds; 1,000 unless given. */
  readonly pollMs?: number;
  /** Events asked for in one page; 1,000 unless given. A node may allow up to 10,000. */
  readonly pageLimit?: number;
}

/** Contracts one `getEvents` call can name: 5 filters of 5. */
const CONTRACTS_PER_CALL = 25;
/** Ledgers one `getEvents` call scans at the most. */
const LEDGERS_PER_CALL = 10_000;
/** Retries ask for fewer rows, but not for fewer than this. */
const FEWEST_ROWS = 100;
/** A window is cut at a ledger once it holds this many events. */
const WINDOW_EVENTS = 4_000;
/** One ledger with more events than this for the watched contracts is refused: far beyond what a ledger holds. */
const LEDGER_EVENTS_LIMIT = 200_000;
/** A node without news this many times in a row may be stale: another one is asked. */
const PATIENCE = 10;

/**
 * A Stellar RPC node, or several of one network, as a source. Throws a `TypeError` for options that cannot be
 * used. Whether a node can be used is checked by `check()` and before the first question to each.
 */
export function stellarRpc(options: StellarRpcOptions): StellarRpcSource {
  return stellarRpcWith(options, (ms, signal) => sleep(ms, undefined, { signal }));
}

/** A source that also tells what it knows of its nodes. */
export interface StellarRpcSource extends Source {
  readonly providers: readonly Source[];
  observe: NonNullable<Source["observe"]>;
  nodes(): readonly NodeState[];
}

/** The source with the clock passed in, and the waits between its retries. */
export function stellarRpcWith(
  options: StellarRpcOptions,
  wait: Clock["wait"],
  now: Clock["now"] = () => performance.now(),
): StellarRpcSource {
  const { chain, passphrase } = resolveNetwork(options.network);
  const { timeoutMs = 15_000, pollMs = 1_000, classicEvents: needsClassicEvents = false } = options;
  const providers = readProviders(options.urls);
  const nodes = openNodes({ providers, passphrase, timeoutMs, needsClassicEvents, wait, now });
  const asked = { chain, passphrase, pollMs, nodes, rowLimit: options.pageLimit ?? 1_000 };
  return {
    ...openSource(asked, undefined),
    providers: nodes.urls.length > 1 ? nodes.urls.map((url) => openSource(asked, url)) : [],
    observe: nodes.observe,
    nodes: nodes.states,
  };
}

interface Asked extends Pick<Source, "chain" | "passphrase" | "pollMs"> {
  readonly nodes: Nodes;
  readonly rowLimit: number;
}

/** All nodes as one source, or the one with this url alone. */
function openSource(
  { chain, passphrase, pollMs, nodes, ...limits }: Asked,
  alone: string | undefined,
): Source {
  /** What the nodes allow, as far as they said: rows of a page, and ledgers scanned for one. */
  let rowLimit = limits.rowLimit;
  let span = LEDGERS_PER_CALL;
  /** Ledgers that a window of several groups may have. */
  let reach = LEDGERS_PER_CALL;
  let quiet = 0;
  /** The anchor of the last window: what else is asked for is of that chain too. */
  let anchor: LedgerRef | undefined;
  const urls = alone === undefined ? nodes.urls : [alone];

  function readPage(
    start: PageStart,
    { contractIds, throughLedger }: ReadRequest,
    signal: AbortSignal,
    only: string | undefined,
  ): Promise<EventsPage> {
    const known = new Set(contractIds);
    const filters = symmetricFilters(contractIds);
    const after = "cursor" in start ? start.cursor : rpcCursorAfterLedger(start.startLedger - 1);
    return nodes.ask(
      async (node, attempt) => {
        const limit = Math.max(Math.min(rowLimit, FEWEST_ROWS), Math.floor(rowLimit / 2 ** attempt));
        try {
          const params = { ...positionParams(start, span, throughLedger, limit), filters };
          const page = parseEventsPage(await node.call("getEvents", params), known, after);
          await node.believe(page);
          span = Math.min(span * 2, LEDGERS_PER_CALL);
          return page;
        } catch (error) {
          const range = refusedRange(error);
          if (range) await node.believe(anchor ? await readHeadAt(node.call, range) : range);
          if (isOverLimit(error)) span = Math.max(1, Math.floor(span / 10));
          const most = allowedRows(error);
          if (most === null || most >= rowLimit) throw error;
          rowLimit = most;
          throw new SourceUnavailableError(`The node gives pages of ${most} events only.`, { cause: error });
        }
      },
      signal,
      { only, anchor },
    );
  }

  /** Reads one group of contracts, up to a ledger's end. */
  async function readGroup(
    request: ReadRequest,
    maxEvents: number,
    signal: AbortSignal,
    only: string | undefined,
  ): Promise<SourceWindow> {
    const { fromLedger, throughLedger } = request;
    const events: SourceEvent[] = [];
    let completeThrough = fromLedger - 1;
    // A cursor at the end of the ledger before may stand at the newest ledger; a startLedger beyond it may not.
    let start: PageStart =
      fromLedger > 1 ? { cursor: rpcCursorAfterLedger(fromLedger - 1) } : { startLedger: 1 };
    let head: SourceHead = { latestLedger: 0, oldestLedger: 0 };
    /** What has been read completely, and without any of it the answer `otherwise`. */
    const answer = (otherwise: () => SourceWindow): SourceWindow => {
      if (completeThrough < fromLedger) return otherwise();
      const through = Math.min(completeThrough, throughLedger);
      const complete = events.filter((event) => event.ledger <= through);
      return { kind: "window", fromLedger, throughLedger: through, events: complete, ...head };
    };

    // Bounded: every turn but a refused start moves the cursor on, and events and ledgers have limits.
    for (;;) {
      const needed = neededLedger(start);
      let page: EventsPage | undefined;
      let range: SourceHead;
      try {
        page = await readPage(start, request, signal, only);
        range = page;
      } catch (error) {
        const refused = refusedRange(error);
        if (!refused) {
          if (!isPassing(error)) throw error;
          return answer(() => {
            throw error;
          });
        }
        range = refused;
      }
      if (isEdge(start, range)) {
        start = { startLedger: needed };
        continue;
      }
      // Some providers answer an expired cursor with 200 and an empty page: believe the oldest ledger instead.
      if (!page || needed < range.oldestLedger) return answer(() => outside(needed, range));
      head = headOf(page);
      events.push(...page.events);
      completeThrough = Math.max(completeThrough, page.completeThrough);
      start = { cursor: page.cursor };
      const caughtUp = completeThrough >= Math.min(throughLedger, page.latestLedger);
      const full = events.length >= maxEvents && completeThrough >= fromLedger;
      if (caughtUp || full) return answer(() => ({ kind: "idle", ...head }));
      if (events.length > LEDGER_EVENTS_LIMIT) {
        throw new SourceUnavailableError(`Ledger ${fromLedger} has more than ${LEDGER_EVENTS_LIMIT} events.`);
      }
    }
  }

  /** Reads every group of contracts up to one common end. */
  async function readWindow(
    { fromLedger, throughLedger, contractIds }: WindowRequest,
    signal: AbortSignal,
    only: string | undefined,
  ): Promise<SourceWindow> {
    const groups = inGroups([...contractIds].sort(), CONTRACTS_PER_CALL);
    const share = Math.ceil(WINDOW_EVENTS / groups.length);
    const events: SourceEvent[] = [];
    // A group with few events must not read, in each window, far beyond the ledger where a busy group cuts it.
    const furthest = groups.length > 1 ? fromLedger + reach - 1 : Number.POSITIVE_INFINITY;
    let end = Math.min(throughLedger ?? Number.POSITIVE_INFINITY, furthest);
    let last: SourceWindow | undefined;
    for (const group of groups) {
      // Each group reads no further than the one before it: the window has one common end.
      last = await readGroup({ fromLedger, throughLedger: end, contractIds: group }, share, signal, only);
      if (last.kind !== "window") return last;
      end = last.throughLedger;
      events.push(...last.events);
    }
    if (last?.kind !== "window") throw new TypeError("A window needs at least one contract.");
    if (end === furthest) reach = Math.min(reach * 2, LEDGERS_PER_CALL);
    else if (end < last.latestLedger) reach = Math.min((end - fromLedger + 1) * 2, LEDGERS_PER_CALL);
    const common = events.filter((event) => event.ledger <= last.throughLedger);
    return { ...last, events: common.sort((a, b) => (a.id < b.id ? -1 : 1)) };
  }

  /** Asks every node for its range, and the newest ledger of the one that is furthest. */
  async function checkNodes(signal: AbortSignal): Promise<SourceHead> {
    const heads: SourceHead[] = [];
    let newest: LedgerRef | null = null;
    const failures: unknown[] = [];
    for (const only of urls) {
      try {
        const head = await nodes.ask(readHead, signal, { only, anchor });
        heads.push(head);
        if (head.latestLedger > (newest?.ledger ?? 0)) {
          const ask = ({ call }: AskedNode) => readLedger(call, head.latestLedger);
          newest = (await nodes.ask(ask, signal, { only })) ?? newest;
        }
      } catch (error) {
        signal.throwIfAborted();
        if (!isPassing(error) && !isOfNode(error)) throw error;
        failures.push(error);
      }
    }
    if (heads.length === 0) throw failures.find(isOfNode) ?? failures[0];
    const misfit = newest && decideEpoch(chain.epoch, newest, hasKnownPace(passphrase));
    if (newest && misfit && misfit !== "plausible") throw new EpochMismatchError(chain, newest, misfit);
    return {
      latestLedger: Math.max(...heads.map((head) => head.latestLedger)),
      oldestLedger: Math.min(...heads.map((head) => head.oldestLedger)),
    };
  }

  async function readOrReset(request: WindowRequest, signal: AbortSignal): Promise<SourceWindow> {
    const answer = await readWindow(request, signal, alone);
    quiet = answer.kind === "idle" ? quiet + 1 : 0;
    if (answer.kind === "behind" || answer.kind === "gap") nodes.turn();
    if (quiet >= PATIENCE) {
      nodes.doubt();
      quiet = 0;
    }
    if (answer.kind !== "gap") return answer;
    // Nodes keep different ranges, also those behind one url: a hole is one when none of them has the ledger,
    // and while one cannot be reached nobody knows.
    let smallest = answer;
    for (const url of urls) {
      try {
        const other = await readWindow(request, signal, url);
        if (other.kind === "window") return other;
        if (other.kind === "gap" && other.throughLedger < smallest.throughLedger) smallest = other;
      } catch (error) {
        if (!isOfNode(error)) throw error; // such a node has none of our ledgers
      }
    }
    return smallest;
  }

  return {
    chain,
    passphrase,
    pollMs,
    name: alone === undefined ? urls.map(originOf).join(", ") : originOf(alone),
    windowsAtOnce: nodes.maxInFlight,
    eventsAtOnce: limits.rowLimit,
    async check(signal, given) {
      anchor = given;
      try {
        return await checkNodes(signal);
      } catch (error) {
        throw error instanceof OtherChainError
          ? new ChainResetError(chain, error.anchor, error.found)
          : error;
      }
    },
    async window(request, signal) {
      anchor = request.anchor;
      try {
        return await readOrReset(request, signal);
      } catch (error) {
        if (!(error instanceof OtherChainError)) throw error;
        return { kind: "reset", anchor: error.anchor, found: error.found };
      }
    },
    async ledger(sequence, signal) {
      return await nodes.ask(
        async (node) => {
          if (anchor) await readHead(node);
          return readLedger(node.call, sequence);
        },
        signal,
        { only: alone, anchor },
      );
    },
  };
}

type ReadRequest = Required<Omit<WindowRequest, "anchor" | "startLedgers">>;

type PageStart = { readonly cursor: string } | { readonly startLedger: number };

function headOf({ events: _, cursor: __, completeThrough: ___, ...head }: EventsPage): SourceHead {
  return head;
}

async function readHead({ call, believe }: AskedNode): Promise<SourceHead> {
  const health = (await call("getHealth")) as Partial<SourceHead>;
  if (!Number.isSafeInteger(health.latestLedger) || !Number.isSafeInteger(health.oldestLedger)) {
    throw new SourceUnavailableError("The node does not say in getHealth which ledgers it has.");
  }
  const head = parseHead(health);
  await believe(head);
  return head;
}

/** An error that says that this node cannot be used; another one may do. */
function isOfNode(error: unknown): boolean {
  return error instanceof OtherChainError || error instanceof NoClassicEventsError;
}

/** The first ledger that the next page must still be able to give. */
function neededLedger(start: PageStart): number {
  if ("startLedger" in start) return start.startLedger;
  const { ledger } = parseRpcId(start.cursor);
  return start.cursor === rpcCursorAfterLedger(ledger) ? ledger + 1 : ledger;
}

/** A cursor may be read on for any number of ledgers; only a range of ledgers can be made smaller. */
function positionParams(start: PageStart, span: number, throughLedger: number, limit: number): object {
  const pagination = { limit };
  const needed = neededLedger(start);
  const isBounded = span < LEDGERS_PER_CALL || throughLedger < needed + LEDGERS_PER_CALL;
  if ("cursor" in start && !(isBounded && start.cursor === rpcCursorAfterLedger(needed - 1))) {
    return { pagination: { ...pagination, cursor: start.cursor } };
  }
  return { startLedger: needed, endLedger: Math.min(needed + span, throughLedger + 1), pagination };
}

/** Only the ledger of the cursor itself has gone, and it was read to its end: nothing is lost. */
function isEdge(start: PageStart, { oldestLedger, latestLedger }: SourceHead): boolean {
  const needed = neededLedger(start);
  return (
    "cursor" in start &&
    needed === oldestLedger &&
    parseRpcId(start.cursor).ledger < needed &&
    needed <= latestLedger
  );
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

/** What a ledger outside of a node's range means: too old (a gap), not closed yet, or a node that is behind. */
function outside(needed: number, { oldestLedger, latestLedger }: SourceHead): SourceWindow {
  if (needed < oldestLedger) {
    return { kind: "gap", fromLedger: needed, throughLedger: oldestLedger - 1, oldestLedger, latestLedger };
  }
  return { kind: needed === latestLedger + 1 ? "idle" : "behind", oldestLedger, latestLedger };
}

/** The node took too long over a range: a smaller one may do. */
function isOverLimit(error: unknown): boolean {
  return error instanceof RpcResponseError && error.code === -32001;
}

/** The number in "limit must not exceed N", a setting of each node; null for any other error. */
function allowedRows(error: unknown): number | null {
  const match =
    error instanceof RpcResponseError && /limit must not exceed ([1-9]\d{0,4})\b/.exec(error.message);
  return match ? Number(match[1]) : null;
}

/** The urls of nodes, as they may be given. Throws a `TypeError` for none, and for what is no http url. */
function readProviders(urls: StellarRpcOptions["urls"]): readonly Provider[] {
  const list = typeof urls === "string" ? urls.split(",") : (urls ?? []);
  const given = list
    .map((item): Provider => (typeof item === "string" ? { url: item.trim() } : item))
    .filter(({ url }) => url !== "");
  if (given.length === 0) throw new TypeError("source.urls is empty: set STELLAR_RPC_URL.");
  for (const [i, { url, requestsPerSecond = 1, maxInFlight = 1 }] of given.entries()) {
    // Not the text itself: an API key may stand in it.
    if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
      throw new TypeError(`source.urls: number ${i + 1} is not an http or https url.`);
    }
    if (!(requestsPerSecond > 0 && Number.isInteger(maxInFlight) && maxInFlight >= 1)) {
      throw new TypeError(
        `source.urls: number ${i + 1} has limits that cannot be: requestsPerSecond is above 0, maxInFlight 1 or more.`,
      );
    }
  }
  const unique = new Map(given.map((provider) => [provider.url, provider]));
  return [...unique.values()];
}
