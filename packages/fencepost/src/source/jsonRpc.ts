import { request } from "undici";
import { RpcResponseError, SourceUnavailableError } from "./errors.ts";

/** The largest answer that is read, in bytes: a full page of 10,000 events is about 6 MB. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
/** A wish to wait longer than this is cut to it, in milliseconds. */
const MAX_RETRY_AFTER_MS = 60_000;
/** What a node says of an error is cut to this many characters. */
const MAX_ERROR_TEXT = 500;

export interface JsonRpcCall {
  readonly url: string;
  readonly method: string;
  readonly params?: object;
  /** From the first byte of the connection to the last of the answer, in milliseconds. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * One JSON-RPC 2.0 call over HTTP. Returns `result`. Throws {@link RpcResponseError} for an error of the node
 * and {@link SourceUnavailableError} for everything that is not an answer. Retries nothing.
 */
export async function callJsonRpc({ url, method, params, timeoutMs, signal }: JsonRpcCall): Promise<unknown> {
  const where = `${originOf(url)} (${method})`;
  const total = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
  let text: string;
  try {
    const response = await request(url, {
      method: "POST",
      headers: { "content-type": "application/json", accept: "application/json" },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, ...(params && { params }) }),
      signal: total,
    });
    if (response.statusCode !== 200) {
      await response.body.dump({ limit: 64 * 1024 });
      throw new SourceUnavailableError(`${where} answered HTTP ${response.statusCode}.`, {
        status: response.statusCode,
        retryAfterMs: retryAfter(response.headers["retry-after"]),
      });
    }
    text = await readBounded(response.body, where);
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof SourceUnavailableError) throw error;
    const why = total.aborted ? `no answer within ${timeoutMs} ms` : describe(error);
    throw new SourceUnavailableError(`${where} cannot be reached: ${why}.`, { cause: error });
  }
  return parseAnswer(text, where);
}

function parseAnswer(text: string, where: string): unknown {
  let answer: { result?: unknown; error?: { code?: unknown; message?: unknown } } | null;
  try {
    answer = JSON.parse(text);
  } catch (error) {
    throw new SourceUnavailableError(`${where} answered with something that is not JSON.`, { cause: error });
  }
  if (answer?.error) {
    const text = String(answer.error.message).slice(0, MAX_ERROR_TEXT);
    throw new RpcResponseError(where, Number(answer.error.code), text);
  }
  if (answer?.result === undefined || answer.result === null) {
    throw new SourceUnavailableError(`${where} answered without a result.`);
  }
  return answer.result;
}

async function readBounded(body: AsyncIterable<Uint8Array>, where: string): Promise<string> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > MAX_ANSWER_BYTES) {
      throw new SourceUnavailableError(`${where} answered with more than ${MAX_ANSWER_BYTES} bytes.`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function retryAfter(header: string | string[] | undefined): number | undefined {
  const text = Array.isArray(header) ? header[0] : header;
  if (text === undefined) return undefined;
  const seconds = /^\d+$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isNaN(seconds) ? undefined : Math.min(Math.max(seconds * 1000, 0), MAX_RETRY_AFTER_MS);
}

function describe(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  return code ? `${code}${message ? ` (${message})` : ""}` : String(message ?? error);
}

/** API keys of providers stand in the path or query: messages name the host only. */
export function originOf(url: string): string {
  return new URL(url).origin;
}
