import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { getRequestListener } from "@hono/node-server";
import type { Log } from "../observe/log.ts";
import { problemResponse } from "./problem.ts";

export interface ServeOptions {
  readonly fetch: (request: Request) => Response | Promise<Response>;
  readonly host: string;
  /** 0: one that is free. */
  readonly port: number;
  readonly log: Log;
}

export interface HttpServer {
  readonly url: string;
  /** Takes no new request, and waits up to 10 s for the answers to those under way. */
  close(): Promise<void>;
}

/** Headers and body of a request must be here within so long, in milliseconds. */
const HEADERS_TIMEOUT_MS = 10_000;
const REQUEST_TIMEOUT_MS = 30_000;
const CHECK_TIMEOUTS_MS = 5_000;
const KEEP_ALIVE_MS = 5_000;
const MAX_HEADER_BYTES = 16 * 1_024;
const MAX_CONNECTIONS = 1_000;
const CLOSE_WITHIN_MS = 10_000;

/** The address cannot be listened on: its port is taken, or it is not of this machine. */
class CannotListenError extends Error {
  override readonly name = "CannotListenError";

  constructor(host: string, port: number, cause: Error) {
    super(
      `The HTTP interface cannot be served on ${host}:${port}: ${cause.message}. Choose another --port or --host.`,
      { cause },
    );
  }
}

/** Serves over plain HTTP/1.1: TLS is for the proxy in front. Throws `CannotListenError`. */
export async function serve({ fetch, host, port, log }: ServeOptions): Promise<HttpServer> {
  const listener = getRequestListener(fetch, {
    overrideGlobalObjects: false,
    errorHandler(error) {
      // Only what is no request at all comes here, as a target that is no path.
      log.debug({ err: error }, "a request could not be read");
      return problemResponse("malformed-request", (error as Error).message, "/");
    },
  });
  const server = createServer(
    {
      headersTimeout: HEADERS_TIMEOUT_MS,
      requestTimeout: REQUEST_TIMEOUT_MS,
      connectionsCheckingInterval: CHECK_TIMEOUTS_MS,
      keepAliveTimeout: KEEP_ALIVE_MS,
      maxHeaderSize: MAX_HEADER_BYTES,
    },
    (request, response) => void listener(request, response),
  );
  server.maxConnections = MAX_CONNECTIONS;
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => reject(new CannotListenError(host, port, error)));
    server.listen(port, host, resolve);
  });
  const address = server.address() as AddressInfo;
  const shownHost = address.family === "IPv6" ? `[${address.address}]` : address.address;
  return {
    url: `http://${shownHost}:${address.port}`,
    close: () =>
      new Promise((resolve) => {
        const timer = setTimeout(() => server.closeAllConnections(), CLOSE_WITHIN_MS);
        server.close(() => {
          clearTimeout(timer);
          resolve();
        });
      }),
  };
}
