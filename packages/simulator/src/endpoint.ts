import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { readAtLeast } from "./body.ts";
import { listen } from "./listen.ts";
import { type Recorder, startRecorder } from "./recorder.ts";

/** A request as it arrived, byte for byte. */
export interface EndpointRequest {
  /** Order of arrival of the request line, from 1. `requests` lists them in the order in which they were read. */
  readonly arrival: number;
  readonly method: string;
  /** Path and query, as sent. */
  readonly path: string;
  /** Names and values as sent, in order: name, value, name, value. */
  readonly rawHeaders: readonly string[];
  /** By lower-case name; repeated ones joined with ", ". */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
  /** False when the connection ended, or the endpoint answered, before the whole body was read. */
  readonly complete: boolean;
}

/** An ordinary answer. A redirect is a 3xx with a `location` header. */
export interface Reply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
  /** Milliseconds between the end of the request and the answer. */
  readonly delayMs?: number;
}

/**
 * What an endpoint does other than to answer:
 * - `hang`: it reads the request and never answers;
 * - `resetAfterBody`: it reads the whole request and resets the connection; `resetBeforeBody`: it reads none of it;
 * - `drip`: it answers with this status at once, and then sends a byte of body each `everyMs` for ever;
 * - `early`: it answers in the middle of the request body, which it does not read to its end.
 */
export type Misbehaviour =
  | { readonly kind: "hang" | "resetAfterBody" | "resetBeforeBody" }
  | { readonly kind: "drip"; readonly status: number; readonly everyMs: number }
  | { readonly kind: "early"; readonly status: number };

/** Answers requests, in the test's own way; may wait as long as it likes. What it throws is a 500 with its text. */
export type EndpointHandler = (request: EndpointRequest) => Reply | Promise<Reply>;

export interface Endpoint {
  /** `http://127.0.0.1:port` */
  readonly url: string;
  /** In the order in which they were read. Throws {@link EndpointFullError} when some were not recorded. */
  readonly requests: readonly EndpointRequest[];
  /** Waits for so many requests, or for a condition on them. */
  readonly waitFor: Recorder<EndpointRequest>["waitFor"];
  /** Scripts what the next requests meet, one each, in order of arrival. After them the handler answers again. */
  next(...replies: readonly (Reply | Misbehaviour)[]): void;
  /** Changes what answers when nothing is scripted. */
  answerWith(answer: Reply | Misbehaviour | EndpointHandler): void;
  /** Ends open connections too. */
  close(): Promise<void>;
}

/** Thrown when an endpoint got more than it may record: its record is no longer the truth. */
export class EndpointFullError extends Error {
  override readonly name = "EndpointFullError";
}

const MAX_BYTES = 512 * 1024 * 1024;

/**
 * Starts a webhook endpoint on a free port of the loopback interface. `answer` (default: 200 without a body) meets
 * every request for which nothing is scripted. It records up to `maxRequests` (100,000) requests with bodies of up
 * to `maxBodyBytes` (16 MiB), 512 MiB together; the first that does not fit gets 507 and makes the record invalid.
 */
export async function startEndpoint(
  options: {
    readonly answer?: Reply | Misbehaviour | EndpointHandler;
    readonly maxRequests?: number;
    readonly maxBodyBytes?: number;
  } = {},
): Promise<Endpoint> {
  const { maxRequests = 100_000, maxBodyBytes = 16 * 1024 * 1024 } = options;
  let answer = options.answer ?? { status: 200 };
  let arrivals = 0;
  let bytes = 0;
  const scripted: (Reply | Misbehaviour)[] = [];
  const recorder = startRecorder<EndpointRequest>();

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const arrival = ++arrivals;
    const next = scripted.shift() ?? answer;
    const kind = typeof next === "object" && "kind" in next ? next.kind : "reply";
    const limit = kind === "resetBeforeBody" ? 0 : kind === "early" ? 1 : maxBodyBytes + 1;
    const body = await readAtLeast(request, limit);
    bytes += body.length;
    if (arrival > maxRequests || body.length > maxBodyBytes || bytes > MAX_BYTES) {
      recorder.fail(
        new EndpointFullError(
          `Request ${arrival} of ${body.length} bytes or more is not recorded: an endpoint holds ${maxRequests} ` +
            `requests of ${maxBodyBytes} bytes, ${MAX_BYTES} bytes together.`,
        ),
      );
      return reply(response, { status: 507, headers: { connection: "close" } });
    }
    const record = recordOf(request, arrival, body);
    recorder.add(record);
    if (typeof next === "function") reply(response, await handled(next, record));
    else if ("kind" in next) misbehave(response, next);
    else reply(response, next);
  }

  const server = createServer((request, response) => {
    serve(request, response).catch((error: Error) => response.destroy(error));
  });
  const { port, close } = await listen(server);
  return {
    url: `http://127.0.0.1:${port}`,
    get requests() {
      return recorder.items;
    },
    waitFor: recorder.waitFor,
    next: (...replies) => {
      scripted.push(...replies);
    },
    answerWith: (other) => {
      answer = other;
    },
    close,
  };
}

function recordOf(request: IncomingMessage, arrival: number, body: Buffer): EndpointRequest {
  const headers: Record<string, string> = {};
  for (const [name, values = []] of Object.entries(request.headersDistinct))
    headers[name] = values.join(", ");
  return {
    arrival,
    method: request.method ?? "",
    path: request.url ?? "",
    rawHeaders: request.rawHeaders,
    headers,
    body,
    complete: request.complete,
  };
}

async function handled(handler: EndpointHandler, request: EndpointRequest): Promise<Reply> {
  try {
    return await handler(request);
  } catch (error) {
    return { status: 500, body: error instanceof Error ? (error.stack ?? error.message) : String(error) };
  }
}

function reply(response: ServerResponse, { status, headers = {}, body, delayMs }: Reply): void {
  if (delayMs !== undefined) {
    const timer = setTimeout(() => reply(response, { status, headers, ...(body && { body }) }), delayMs);
    response.on("close", () => clearTimeout(timer));
    return;
  }
  response.writeHead(status, headers);
  response.end(body);
}

function misbehave(response: ServerResponse, how: Misbehaviour): void {
  switch (how.kind) {
    case "hang":
      return; // until the client gives up or the endpoint closes
    case "resetBeforeBody":
    case "resetAfterBody":
      response.socket?.resetAndDestroy();
      return;
    case "early":
      reply(response, { status: how.status, headers: { connection: "close" } });
      return;
    case "drip": {
      response.writeHead(how.status);
      response.flushHeaders();
      const timer = setInterval(() => response.writableNeedDrain || response.write("."), how.everyMs);
      response.on("close", () => clearInterval(timer));
    }
  }
}
