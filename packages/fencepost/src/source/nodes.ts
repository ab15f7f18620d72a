import {
  RpcResponseError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./errors.ts";
import { callJsonRpc, originOf } from "./jsonRpc.ts";
import type { SourceHead } from "./source.ts";

/** Calls a method of the node that is asked. */
export type Call = (method: string, params?: object) => Promise<unknown>;

/** The nodes of one network, asked in turn. */
export interface Nodes {
  readonly urls: readonly string[];
  /**
   * Asks one node after the other until one gives a usable answer; waits longer, with jitter, after each failure,
   * and as long as a node wished. With `only`, that node alone. `attempt` counts from 0.
   */
  ask<T>(
    question: (call: Call, attempt: number) => Promise<T>,
    signal: AbortSignal,
    only?: string,
  ): Promise<T>;
  /** The next question goes to the next node. */
  turn(): void;
}

export interface NodesOptions {
  readonly urls: readonly string[];
  readonly passphrase: string;
  readonly timeoutMs: number;
  readonly wait: (ms: number, signal: AbortSignal) => Promise<unknown>;
}

/** How often a question is asked before it is given up, and the runner backs off. */
const TRIES = 5;
const FIRST_RETRY_MS = 250;

/** Each node is checked before its first question: the right network, and v23 or later. */
export function openNodes({ urls, passphrase, timeoutMs, wait }: NodesOptions): Nodes {
  const checked = new Set<string>();
  /** When a node that wished to be left alone may be asked again, on the clock of `performance`. */
  const readyAt = new Map<string, number>();
  let turn = 0;

  async function check(url: string, call: Call): Promise<void> {
    if (checked.has(url)) return;
    const network = (await call("getNetwork")) as { passphrase?: unknown };
    if (network.passphrase !== passphrase) {
      throw new WrongNetworkError(originOf(url), passphrase, String(network.passphrase));
    }
    const version = await readVersion(call);
    if (!isSupportedVersion(version)) throw new UnsupportedRpcVersionError(originOf(url), version);
    checked.add(url);
  }

  return {
    urls,
    turn() {
      turn++;
    },
    async ask(question, signal, only) {
      for (let attempt = 0; ; attempt++) {
        const url = only ?? urls[turn % urls.length] ?? "";
        const ready = (readyAt.get(url) ?? 0) - performance.now();
        if (ready > 0) await wait(ready, signal);
        readyAt.delete(url);
        const call: Call = (method, params) =>
          callJsonRpc({ url, method, timeoutMs, signal, ...(params && { params }) });
        try {
          await check(url, call);
          return await question(call, attempt);
        } catch (error) {
          signal.throwIfAborted();
          if (refusedRange(error)) throw error;
          turn++;
          const wish = error instanceof SourceUnavailableError ? error.retryAfterMs : undefined;
          if (wish !== undefined) readyAt.set(url, performance.now() + wish);
          if (!isPassing(error) || attempt + 1 >= TRIES) throw error;
          await wait(FIRST_RETRY_MS * 2 ** attempt * (0.5 + Math.random() / 2), signal);
        }
      }
    },
  };
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
