import { contradiction, contradicts, differs, type Look, needsLook } from "./chainLife.ts";
import {
  NoClassicEventsError,
  RpcResponseError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./errors.ts";
import { callJsonRpc, originOf } from "./jsonRpc.ts";
import { type Clock, createLimiter, type Limiter } from "./limiter.ts";
import {
  type Call,
  type ClassicEvents,
  probeClassicEvents,
  readLedger,
  readNewestLedger,
} from "./nodeQuestions.ts";
import type { AsideReason, LedgerRef, NodeEvent, SourceHead } from "./source.ts";

/** A node, or what a provider has behind one url. */
export interface Provider {
  readonly url: string;
  /** Requests that may begin in a second; no limit unless given. */
  readonly requestsPerSecond?: number;
  /** Requests that may be under way at once; 4 unless given. Fewer while the provider says that it is too much. */
  readonly maxInFlight?: number;
  /** Whether it emits the events of classic operations; found out unless given. */
  readonly classicEvents?: boolean;
}

/** The node that a question is put to. */
export interface AskedNode {
  readonly call: Call;
  /** To be told what the node says it has, before its answer is used. Throws where it must not be believed. */
  believe(head: SourceHead): Promise<void>;
}

interface AskOptions {
  /** This node alone, by its url, also where it is set aside. */
  readonly only?: string | undefined;
  /** A ledger of the chain that the answer must be of. */
  readonly anchor?: LedgerRef | undefined;
}

/** The nodes of one network, asked in turn. */
export interface Nodes {
  readonly urls: readonly string[];
  /** Requests that all of them together may be asked at once. */
  readonly maxInFlight: number;
  /**
   * Asks one node after the other until one gives a usable answer; waits longer, with jitter, after each failure,
   * and as long as a node wished. `attempt` counts from 0. Throws {@link OtherChainError} where every node is of
   * another chain than the anchor.
   */
  ask<T>(
    question: (node: AskedNode, attempt: number) => Promise<T>,
    signal: AbortSignal,
    options?: AskOptions,
  ): Promise<T>;
  /** The next question goes to the next node. */
  turn(): void;
  /** The node that is asked first has had no news for long. If another one has, it is stale. */
  doubt(): void;
  states(): readonly NodeState[];
  observe(listener: (event: NodeEvent) => void): void;
}

/** What is known of a node. `node` is its origin: a url may hold an API key. */
export interface NodeState {
  readonly node: string;
  /** null until it was asked. */
  readonly version: string | null;
  readonly classicEvents: ClassicEvents;
  /** The newest ledger that it has shown; null until it was asked. */
  readonly latestLedger: number | null;
  /** Why it is not asked now; null while it is. */
  readonly aside: AsideReason | null;
}

export interface NodesOptions extends Clock {
  readonly providers: readonly Provider[];
  readonly passphrase: string;
  readonly timeoutMs: number;
  /** Only nodes that emit classic events answer. */
  readonly needsClassicEvents: boolean;
}

/** How often a question is asked before it is given up, and the runner backs off. */
const TRIES = 5;
const FIRST_RETRY_MS = 250;
const MAX_IN_FLIGHT = 4;
/** Network, version and profile of a node are looked at again after this long: what is behind a url changes. */
const CHECKED_FOR_MS = 600_000;
/** Failures in a row after which a node is set aside. */
const FAILURES = 3;
/** Ledgers by which a node may be behind the newest that any of them has shown. */
const LAG = 10;
const ASIDE_MS: Readonly<Record<AsideReason, number>> = {
  failing: 30_000,
  behind: 30_000,
  went_back: 60_000,
  stale: 60_000,
  other_chain: 60_000,
  refused: 600_000,
  no_classic_events: 600_000,
};

/** The chain of a node has another ledger in the place of the anchor. */
export class OtherChainError extends Error {
  override readonly name = "OtherChainError";
  readonly anchor: LedgerRef;
  readonly found: LedgerRef;

  constructor(anchor: LedgerRef, found: LedgerRef) {
    super(`ledger ${found.ledger} closed at ${found.closedAt} is not of the chain that was read before`);
    this.anchor = anchor;
    this.found = found;
  }
}

/** The node was set aside because of what it says; another one can be asked at once. */
class NotBelievedError extends SourceUnavailableError {}

interface Node extends Provider {
  readonly origin: string;
  readonly limiter: Limiter;
  checkedAt: number;
  version: string | null;
  profile: ClassicEvents;
  /** When a node that wished to be left alone may be asked again. */
  readyAt: number;
  failures: number;
  /** Questions that are put to it now: each has one call under way at the most. */
  asking: number;
  latestLedger: number;
  look: Look | undefined;
  aside: { readonly reason: AsideReason; readonly detail: string; readonly until: number } | undefined;
}

/** Each node is checked before its first question, and now and then: the right network, and v23 or later. */
export function openNodes(options: NodesOptions): Nodes {
  const { passphrase, timeoutMs, needsClassicEvents, now, wait } = options;
  const nodes = options.providers.map((provider): Node => {
    const { url, requestsPerSecond, maxInFlight = MAX_IN_FLIGHT, classicEvents } = provider;
    return {
      ...provider,
      origin: originOf(url),
      limiter: createLimiter({ maxInFlight, requestsPerSecond }, { now, wait }),
      checkedAt: Number.NEGATIVE_INFINITY,
      version: null,
      profile: classicEvents === undefined ? "unknown" : classicEvents ? "on" : "off",
      readyAt: Number.NEGATIVE_INFINITY,
      failures: 0,
      asking: 0,
      latestLedger: 0,
      look: undefined,
      aside: undefined,
    };
  });
  const listeners: ((event: NodeEvent) => void)[] = [];
  const alone = nodes.length === 1;
  let turn = 0;
  let doubted: Node | undefined;

  const first = (): Node | undefined => nodes[turn % nodes.length];
  const isAside = ({ aside }: Node): boolean => aside !== undefined && aside.until > now();
  const tell = (event: NodeEvent): void => {
    for (const listener of listeners) listener(event);
  };

  function putAside(node: Node, reason: AsideReason, detail: string): void {
    if (alone) return;
    const forMs = ASIDE_MS[reason];
    const known = isAside(node) && node.aside?.reason === reason;
    node.aside = { reason, detail, until: now() + forMs };
    if (!known) tell({ kind: "aside", node: node.origin, reason, detail, forMs });
  }

  /** The first in turn that can begin at once; otherwise one that must wait; otherwise one that is set aside. */
  function pick({ only }: AskOptions, refused: ReadonlyMap<Node, Error>): Node | undefined {
    if (only !== undefined) return nodes.find(({ url }) => url === only);
    const inTurn = nodes
      .map((_, i) => nodes[(turn + i) % nodes.length])
      .filter((node): node is Node => node !== undefined && !refused.has(node));
    const usable = inTurn.filter((node) => !isAside(node));
    const atOnce = usable.find(
      ({ asking, limiter, readyAt }) => asking < limiter.allowed && readyAt <= now(),
    );
    const soonest = inTurn.sort((a, b) => (a.aside?.until ?? 0) - (b.aside?.until ?? 0));
    return atOnce ?? usable[0] ?? soonest[0];
  }

  async function check(node: Node, call: Call): Promise<void> {
    if (now() - node.checkedAt < CHECKED_FOR_MS) return requireClassicEvents(node);
    const network = (await call("getNetwork")) as { passphrase?: unknown };
    if (network.passphrase !== passphrase) {
      throw new WrongNetworkError(node.origin, passphrase, String(network.passphrase));
    }
    node.version = await readVersion(call);
    if (!isSupportedVersion(node.version)) throw new UnsupportedRpcVersionError(node.origin, node.version);
    if (needsClassicEvents && node.classicEvents === undefined) node.profile = await probeClassicEvents(call);
    requireClassicEvents(node);
    node.checkedAt = now();
  }

  function requireClassicEvents(node: Node): void {
    if (!needsClassicEvents || node.profile === "on") return;
    if (node.profile === "off") throw new NoClassicEventsError([node.origin]);
    throw new SourceUnavailableError(
      `${node.origin} has no ledger yet that tells whether it emits classic events.`,
    );
  }

  /** Throws where the node's chain is another one than that of the anchor, or what it says cannot be. */
  async function checkChain(node: Node, call: Call, head: SourceHead, anchor: LedgerRef): Promise<void> {
    const odd = contradiction(anchor, head);
    if (odd || needsLook(node.look, head.latestLedger, now())) {
      const found = await readLedger(call, anchor.ledger);
      if (found && differs(anchor, found)) throw new OtherChainError(anchor, found);
      if (odd) {
        // One odd answer proves nothing: the newest ledger is asked for by itself.
        const newest = found ? anchor : ((await readNewestLedger(call)) ?? odd);
        if (contradicts(anchor, newest)) throw new OtherChainError(anchor, newest);
        throw new SourceUnavailableError(
          `${node.origin} gives ledger ${odd.ledger} a close time that cannot be.`,
        );
      }
      node.look = { lookedAt: now(), seenAt: now(), latestLedger: head.latestLedger };
    } else if (node.look) {
      node.look = { ...node.look, seenAt: now(), latestLedger: head.latestLedger };
    }
  }

  async function believe(
    node: Node,
    call: Call,
    head: SourceHead,
    { anchor, only }: AskOptions,
  ): Promise<void> {
    if (anchor) await checkChain(node, call, head, anchor);
    const { latestLedger } = head;
    const before = node.latestLedger;
    node.latestLedger = Math.max(before, latestLedger);
    const best = Math.max(...nodes.map((other) => other.latestLedger));
    if (doubted && doubted !== node && latestLedger > doubted.latestLedger + 1) {
      putAside(doubted, "stale", `ledger ${doubted.latestLedger}, while ${node.origin} has ${latestLedger}`);
      doubted = undefined;
    }
    if (alone || only !== undefined || latestLedger >= best - LAG) return;
    const wentBack = latestLedger < before - LAG;
    putAside(node, wentBack ? "went_back" : "behind", `ledger ${latestLedger}, where ${best} was seen`);
    if (nodes.some((other) => !isAside(other))) {
      throw new NotBelievedError(`${node.origin} is at ledger ${latestLedger}, where ${best} was seen.`);
    }
  }

  function succeeded(node: Node): void {
    node.failures = 0;
    if (node.aside && !isAside(node)) {
      node.aside = undefined;
      tell({ kind: "back", node: node.origin });
    }
  }

  function failed(node: Node, error: unknown): void {
    const reason = reasonOf(error);
    const detail = error instanceof Error ? error.message : String(error);
    if (reason) putAside(node, reason, detail);
    if (!isPassing(error) || error instanceof NotBelievedError) return;
    const wish = error instanceof SourceUnavailableError ? error.retryAfterMs : undefined;
    if (wish !== undefined) {
      node.readyAt = now() + wish;
      node.limiter.slower();
    }
    node.failures++;
    if (node.failures >= FAILURES) putAside(node, "failing", detail);
  }

  return {
    urls: nodes.map(({ url }) => url),
    maxInFlight: nodes.reduce((sum, { maxInFlight = MAX_IN_FLIGHT }) => sum + maxInFlight, 0),
    turn() {
      turn++;
    },
    doubt() {
      doubted = first();
      turn++;
    },
    async ask(question, signal, options = {}) {
      /** Those that cannot answer this question at all. */
      const refused = new Map<Node, Error>();
      const tries = Math.max(TRIES, nodes.length);
      for (let attempt = 0; ; attempt++) {
        const node = pick(options, refused);
        if (!node) throw new SourceUnavailableError("No node is left to be asked.");
        const ready = node.readyAt - now();
        if (ready > 0) await wait(ready, signal);
        node.readyAt = Number.NEGATIVE_INFINITY;
        const call: Call = (method, params) =>
          node.limiter.run(
            () => callJsonRpc({ url: node.url, method, timeoutMs, signal, ...(params && { params }) }),
            signal,
          );
        let pause = false;
        node.asking++;
        try {
          await check(node, call);
          const answer = await question(
            { call, believe: (head) => believe(node, call, head, options) },
            attempt,
          );
          succeeded(node);
          return answer;
        } catch (error) {
          signal.throwIfAborted();
          if (refusedRange(error)) throw error;
          if (options.only === undefined) turn = nodes.indexOf(node) + 1;
          failed(node, error);
          const isLast = attempt + 1 >= tries;
          if (error instanceof OtherChainError || error instanceof NoClassicEventsError) {
            refused.set(node, error);
            if (options.only !== undefined || refused.size === nodes.length) throw summary(refused, error);
            if (isLast)
              throw new SourceUnavailableError("No node that can answer can be reached.", { cause: error });
            continue;
          }
          if (!isPassing(error) || isLast) throw error;
          pause = !(error instanceof NotBelievedError);
        } finally {
          node.asking--;
        }
        if (pause) await wait(FIRST_RETRY_MS * 2 ** attempt * (0.5 + Math.random() / 2), signal);
      }
    },
    states: () =>
      nodes.map((node) => ({
        node: node.origin,
        version: node.version,
        classicEvents: node.profile,
        latestLedger: node.latestLedger || null,
        aside: isAside(node) ? (node.aside?.reason ?? null) : null,
      })),
    observe(listener) {
      listeners.push(listener);
      for (const node of nodes) {
        if (!node.aside || !isAside(node)) continue;
        const { reason, detail, until } = node.aside;
        listener({ kind: "aside", node: node.origin, reason, detail, forMs: until - now() });
      }
    },
  };
}

/** Why a node is set aside for an error, whatever its number. */
function reasonOf(error: unknown): AsideReason | undefined {
  if (error instanceof OtherChainError) return "other_chain";
  if (error instanceof NoClassicEventsError) return "no_classic_events";
  const refused = error instanceof WrongNetworkError || error instanceof UnsupportedRpcVersionError;
  return refused ? "refused" : undefined;
}

/** What is wrong where no node can answer: one of another chain says more than one without classic events. */
function summary(refused: ReadonlyMap<Node, Error>, last: Error): Error {
  const errors = [...refused.values()];
  if (errors.every((error) => error instanceof NoClassicEventsError)) {
    return new NoClassicEventsError([...refused.keys()].map(({ origin }) => origin));
  }
  return errors.find((error) => error instanceof OtherChainError) ?? last;
}

/** Whether asking again, or another node, may help. */
export function isPassing(error: unknown): boolean {
  if (error instanceof RpcResponseError) return refusedRange(error) === null && error.code !== -32602;
  return error instanceof SourceUnavailableError;
}

/** The range in "startLedger must be within the ledger range: A - B", or null for any other error. */
export function refusedRange(error: unknown): SourceHead | null {
  if (!(error instanceof RpcResponseError) || error.code !== -32600) return null;
  const match = /ledger range: (\d+) - (\d+)/.exec(error.message);
  return match ? { oldestLedger: Number(match[1]), latestLedger: Number(match[2]) } : null;
}

async function readVersion(call: Call): Promise<string> {
  try {
    const { version } = (await call("getVersionInfo")) as { version?: unknown };
    return String(version);
  } catch (error) {
    if (error instanceof RpcResponseError && error.code === -32601) return "without getVersionInfo";
    throw error;
  }
}

function isSupportedVersion(version: string): boolean {
  return Number(/^v?(\d+)\./.exec(version)?.[1] ?? 0) >= 23;
}
