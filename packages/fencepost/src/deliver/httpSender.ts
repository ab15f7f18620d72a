import type { IncomingHttpHeaders } from "node:http";
import { type Dispatcher, Pool } from "undici";
import { type AddressRules, checkUrl } from "../address/addressRules.ts";
import type { AttemptResult } from "../store/deliveryStore.ts";
import { checkedLookup, type Resolve } from "./checkedLookup.ts";
import { remembering } from "./remembering.ts";

export interface SenderOptions {
  /** From the start of the connection to the end of the answer's headers, in milliseconds. */
  readonly timeoutMs: number;
  /** Connections to one origin, at the most. Never hand over more requests than this at once. */
  readonly connectionsPerOrigin: number;
  /** Checked for each connection; an address that they refuse is `not_sent`. */
  readonly addressRules: AddressRules;
  /** The resolver of the operating system unless given. */
  readonly resolve?: Resolve;
}

interface SendRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

interface Target {
  readonly origin: string;
  /** With its query. */
  readonly path: string;
}

interface SendResult extends AttemptResult {
  /** The receiver refused an old copy of this event. */
  readonly fenced: boolean;
}

/** The whole body of a 200, or why there is none. */
type QueryResult = { readonly body: Buffer } | { readonly error: string };

export interface Sender {
  /** One POST. Never throws: what is known about its bytes is in the result. */
  send(request: SendRequest): Promise<SendResult>;
  /** One POST whose answer is read, up to 256 kB. Never throws. */
  query(request: SendRequest): Promise<QueryResult>;
  close(): Promise<void>;
}

/** As much of a response body as is kept, in bytes. */
const KEPT_RESPONSE_BYTES = 1_024;
/** As much of one as is read so that its connection can be used again; a longer one costs the connection. */
const READ_RESPONSE_BYTES = 64 * 1_024;
/** As much of the answer to a query as is read. */
const QUERY_ANSWER_BYTES = 256 * 1_024;
/** The status decides an attempt; its body may take this much longer, in milliseconds. */
const BODY_TIMEOUT_MS = 2_000;
/** Origins with an open pool; the one used longest ago is closed beyond that. */
const MAX_POOLS = 256;
/** Urls that are known to be good. */
const MAX_TARGETS = 1_000;
/** Characters of an error that are kept. */
const MAX_ERROR_LENGTH = 500;

/** Sends through one undici pool an origin. No redirect is followed and nothing is retried here. */
export function createSender(options: SenderOptions): Sender {
  const { timeoutMs, connectionsPerOrigin, addressRules, resolve } = options;
  const lookup = checkedLookup(addressRules, resolve);
  const pools = new Map<string, Pool>();
  const retired = new Set<Pool>();

  /** What a url says does not change: it is read and checked once. What its name stands for is checked at each connection. */
  const targetOf = remembering(MAX_TARGETS, (url): Target => {
    const read = new URL(url);
    checkUrl(read, addressRules);
    return { origin: read.origin, path: `${read.pathname}${read.search}` };
  });

  /** The pools are in order of use: this one goes to the end. */
  function poolOf(origin: string): Pool {
    const pool =
      pools.get(origin) ??
      new Pool(origin, {
        connections: connectionsPerOrigin,
        pipelining: 1,
        connect: { timeout: timeoutMs, lookup, autoSelectFamily: true },
        // An exchange has its own time-outs, over all of it.
        headersTimeout: 0,
        bodyTimeout: 0,
      });
    pools.delete(origin);
    pools.set(origin, pool);
    return pool;
  }

  /** Closes the pool used longest ago, once what is under way on it has ended. */
  function retireOldest(): void {
    for (const [origin, pool] of pools) {
      pools.delete(origin);
      retired.add(pool);
      void pool.close().then(() => retired.delete(pool));
      return;
    }
  }

  async function post(request: SendRequest, limits: BodyLimits): Promise<Exchanged> {
    const { url, headers, body } = request;
    try {
      const { origin, path } = targetOf(url);
      const pool = poolOf(origin);
      if (pools.size > MAX_POOLS) retireOldest();
      return await exchange(pool, { path, headers, body, ...limits }, timeoutMs);
    } catch (error) {
      return { status: null, sent: false, error: describe(error) }; // a url or a header that is refused
    }
  }

  return {
    async send(request) {
      return resultOf(await post(request, { keep: KEPT_RESPONSE_BYTES, read: READ_RESPONSE_BYTES }));
    },
    async query(request) {
      const exchanged = await post(request, { keep: QUERY_ANSWER_BYTES, read: QUERY_ANSWER_BYTES });
      if (exchanged.status === null) return { error: exchanged.error };
      if (exchanged.status !== 200) return { error: `The endpoint answered ${exchanged.status}.` };
      return exchanged.cut === null ? { body: exchanged.body } : { error: exchanged.cut };
    },
    async close() {
      await Promise.all([...pools.values(), ...retired].map((pool) => pool.destroy()));
      pools.clear();
    },
  };
}

interface BodyLimits {
  /** Bytes of the response body that are kept. */
  readonly keep: number;
  /** Bytes of it that are read; a longer one is cut off. */
  readonly read: number;
}

interface Exchange extends BodyLimits {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

type Exchanged =
  | {
      readonly status: number;
      readonly headers: IncomingHttpHeaders;
      readonly body: Buffer;
      /** Why the body is not whole; null: it is. */
      readonly cut: string | null;
    }
  | {
      readonly status: null;
      /** False: no byte can have left. */
      readonly sent: boolean;
      readonly error: string;
    };

/**
 * The outcome turns on one fact: whether undici handed the request to a socket. Before that no byte can have
 * left (`not_sent`); after it, until the headers of an answer are here, nobody can know (`unknown`).
 */
function exchange(pool: Pool, request: Exchange, timeoutMs: number): Promise<Exchanged> {
  const { path, headers, body, keep, read } = request;
  return new Promise((resolve) => {
    let controller: Dispatcher.DispatchController | undefined; // there once the request is handed to a socket
    let answer: { readonly status: number; readonly headers: IncomingHttpHeaders } | undefined;
    const kept: Buffer[] = [];
    let readBytes = 0;
    let settled = false;

    const settle = (error?: Error): void => {
      if (settled) return;
      settled = true;
      clearTimeout(timer);
      if (answer) resolve({ ...answer, body: Buffer.concat(kept), cut: error ? describe(error) : null });
      else resolve({ status: null, sent: controller !== undefined, error: describe(error) });
    };
    const stop = (reason: string): void => {
      const error = new Error(reason);
      controller?.abort(error);
      settle(error);
    };
    let timer = setTimeout(
      () => stop(`No ${controller ? "answer" : "connection"} within ${timeoutMs} ms.`),
      timeoutMs,
    );

    const handler: Dispatcher.DispatchHandler = {
      onRequestStart(given) {
        // A request that waited in the pool beyond its time must not be written any more.
        if (settled) given.abort(new Error("Its time is over."));
        else controller = given;
      },
      onResponseStart(_given, status, responseHeaders) {
        if (status < 200) return; // informational
        answer = { status, headers: responseHeaders };
        clearTimeout(timer);
        timer = setTimeout(() => stop("The body took too long."), BODY_TIMEOUT_MS);
      },
      onResponseData(_given, chunk) {
        if (readBytes < keep) kept.push(Buffer.from(chunk.subarray(0, keep - readBytes)));
        readBytes += chunk.length;
        if (readBytes > read) stop("The body is too long.");
      },
      onResponseEnd: () => settle(),
      onResponseError: (_given, error) => settle(error),
    };
    pool.dispatch({ path, method: "POST", headers, body }, handler);
  });
}

function resultOf(exchanged: Exchanged): SendResult {
  if (exchanged.status === null) {
    const { sent, error } = exchanged;
    const outcome = sent ? "unknown" : "not_sent";
    return { outcome, status: null, error, response: null, retryAfterMs: null, fenced: false };
  }
  const { status, headers, body } = exchanged;
  const delivered = status >= 200 && status < 300;
  return {
    outcome: delivered ? "delivered" : "rejected",
    status,
    error: delivered ? null : `The endpoint answered ${status}.`,
    response: storable(body.toString("utf8")),
    retryAfterMs: retryAfter(headers["retry-after"]),
    fenced: status === 409 && headers["webhook-fenced"] === "true",
  };
}

/** The first line of what went wrong; of several addresses that were tried, the first. */
function describe(error: unknown): string {
  const { code, message, errors } = (error ?? {}) as { code?: string; message?: string; errors?: Error[] };
  const text = message || errors?.[0]?.message || "The connection ended.";
  return storable(code ? `${code}: ${text}` : text).slice(0, MAX_ERROR_LENGTH);
}

/** PostgreSQL holds any text but this character. */
function storable(text: string): string {
  return text.replaceAll("\0", "\ufffd");
}

function retryAfter(header: string | string[] | undefined): number | null {
  const text = Array.isArray(header) ? header[0] : header;
  if (text === undefined) return null;
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}
