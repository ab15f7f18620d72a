import { type Dispatcher, Pool } from "undici";
import type { AttemptResult } from "../store/deliveryStore.ts";

export interface SenderOptions {
  /** From the start of the connection to the end of the answer's headers, in milliseconds. */
  readonly timeoutMs: number;
  /** Connections to one origin, at the most. Never hand over more requests than this at once. */
  readonly connectionsPerOrigin: number;
}

export interface SendRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

export interface Sender {
  /** One POST. Never throws: what is known about its bytes is in the result. */
  send(request: SendRequest): Promise<AttemptResult>;
  close(): Promise<void>;
}

/** As much of a response body as is kept, in bytes; the rest is not read. */
const KEPT_RESPONSE_BYTES = 1_024;
/** The status decides an attempt; its body may take this much longer, in milliseconds. */
const BODY_TIMEOUT_MS = 2_000;
/** Origins with an open pool; the one used longest ago is closed beyond that. */
const MAX_POOLS = 256;

/** Sends through one undici pool an origin. No redirect is followed and nothing is retried here. */
export function createSender({ timeoutMs, connectionsPerOrigin }: SenderOptions): Sender {
  const pools = new Map<string, Pool>();

  function poolOf(origin: string): Pool {
    const known = pools.get(origin);
    pools.delete(origin);
    const pool =
      known ??
      new Pool(origin, {
        connections: connectionsPerOrigin,
        pipelining: 1,
        connect: { timeout: timeoutMs },
        headersTimeout: timeoutMs,
        bodyTimeout: BODY_TIMEOUT_MS,
        keepAliveTimeout: 10_000,
      });
    pools.set(origin, pool);
    if (pools.size > MAX_POOLS) closeOldest();
    return pool;
  }

  function closeOldest(): void {
    for (const [origin, pool] of pools) {
      pools.delete(origin);
      void pool.close();
      return;
    }
  }

  return {
    async send({ url, headers, body }) {
      const { origin, pathname, search } = new URL(url);
      return exchange(poolOf(origin), { path: `${pathname}${search}`, headers, body }, timeoutMs);
    },
    async close() {
      await Promise.all([...pools.values()].map((pool) => pool.destroy()));
      pools.clear();
    },
  };
}

interface Exchange {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

/**
 * The outcome turns on one fact: whether undici handed the request to a socket. Before that no byte can have
 * left (`not_sent`); after it, until the headers of an answer are here, nobody can know (`unknown`).
 */
function exchange(pool: Pool, { path, headers, body }: Exchange, timeoutMs: number): Promise<AttemptResult> {
  return new Promise((resolve) => {
    let started = false;
    let answer: { status: number; retryAfterMs: number | null } | undefined;
    let controller: Dispatcher.DispatchController | undefined;
    const kept: Buffer[] = [];
    let keptBytes = 0;
    let settled = false;

    const settle = (error: Error | undefined): void => {
      if (settled) return;
      settled = true;
      clearTimeout(total);
      if (answer) {
        const delivered = answer.status >= 200 && answer.status < 300;
        resolve({
          outcome: delivered ? "delivered" : "rejected",
          status: answer.status,
          error: delivered ? null : `The endpoint answered ${answer.status}.`,
          response: Buffer.concat(kept).toString("utf8").replaceAll("\0", "\ufffd"),
          retryAfterMs: answer.retryAfterMs,
        });
      } else {
        resolve({
          outcome: started ? "unknown" : "not_sent",
          status: null,
          error: describe(error, started, timeoutMs),
          response: null,
          retryAfterMs: null,
        });
      }
    };
    const stop = (reason: Error): void => {
      controller?.abort(reason);
      settle(reason);
    };
    const total = setTimeout(() => stop(new TotalTimeout()), timeoutMs);

    const handler: Dispatcher.DispatchHandler = {
      onRequestStart(given) {
        // A request that waited in the pool beyond its time must not be written any more.
        if (settled) return given.abort(new TotalTimeout());
        controller = given;
        started = true;
      },
      onResponseStart(_given, status, responseHeaders) {
        if (status < 200) return; // informational
        answer = { status, retryAfterMs: retryAfter(responseHeaders["retry-after"]) };
        clearTimeout(total);
        setTimeout(() => stop(new TotalTimeout()), BODY_TIMEOUT_MS).unref();
      },
      onResponseData(_given, chunk) {
        if (keptBytes < KEPT_RESPONSE_BYTES) {
          const part = chunk.subarray(0, KEPT_RESPONSE_BYTES - keptBytes);
          kept.push(Buffer.from(part));
          keptBytes += part.length;
        }
        if (keptBytes >= KEPT_RESPONSE_BYTES) stop(new Error("The rest of the response is not read."));
      },
      onResponseEnd: () => settle(undefined),
      onResponseError: (_given, error) => settle(error),
    };
    try {
      pool.dispatch({ path, method: "POST", headers: { ...headers }, body: Buffer.from(body) }, handler);
    } catch (error) {
      settle(error as Error);
    }
  });
}

class TotalTimeout extends Error {}

function describe(error: Error | undefined, started: boolean, timeoutMs: number): string {
  if (error instanceof TotalTimeout) {
    return started ? `No answer within ${timeoutMs} ms.` : `No connection within ${timeoutMs} ms.`;
  }
  const { code, message = "The connection ended." } = (error ?? {}) as { code?: string; message?: string };
  return (code ? `${code}: ${message}` : message).slice(0, 500);
}

function retryAfter(header: string | string[] | undefined): number | null {
  const text = Array.isArray(header) ? header[0] : header;
  if (text === undefined) return null;
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}
