import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";

export interface TestServer {
  readonly url: string;
  readonly port: number;
  close(): Promise<void>;
}

/** Serves with `listener` over real HTTP. */
export function serve(listener: http.RequestListener): Promise<TestServer> {
  return listen(http.createServer(listener));
}

/** Has a server listen on loopback, on a port that the system picks. */
export async function listen(server: http.Server): Promise<TestServer> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/webhooks`,
    port,
    close: async () => {
      server.close();
      server.closeAllConnections();
      await once(server, "close");
    },
  };
}

/** Serves a Fetch route over real HTTP, as the Node servers of Hono and Next.js do. */
export function fetchListener(route: (request: Request) => Promise<Response>): http.RequestListener {
  return async (incoming, outgoing) => {
    const headers = Object.entries(incoming.headers).map(([k, v]): [string, string] => [k, String(v)]);
    const body = Readable.toWeb(incoming) as ReadableStream<Uint8Array>;
    const request = new Request("http://127.0.0.1/webhooks", {
      method: incoming.method ?? "POST",
      headers,
      body,
      duplex: "half",
    });
    const response = await route(request);
    if (!incoming.complete) outgoing.setHeader("connection", "close");
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.end(await response.text());
  };
}

/** Posts over HTTP and gives back the status and the JSON of the answer, and its `webhook-fenced` if it has one. */
export async function post(
  url: string,
  request: { readonly headers: Record<string, string>; readonly body: Uint8Array<ArrayBuffer> },
): Promise<{ status: number; json: unknown; fenced?: string }> {
  const response = await fetch(url, { method: "POST", ...request });
  const fenced = response.headers.get("webhook-fenced");
  return { status: response.status, json: await response.json(), ...(fenced !== null && { fenced }) };
}

/** Opens a request that promises a body of `length` bytes, sends `part` of it, and leaves the rest to the test. */
export function beginPost(
  { port }: TestServer,
  headers: Record<string, string>,
  part: Uint8Array,
  length: number,
) {
  const request = http.request({
    port,
    host: "127.0.0.1",
    method: "POST",
    path: "/webhooks",
    headers: { ...headers, "content-length": length },
  });
  request.on("error", () => {}); // the server may cut it off
  request.write(part);
  const status = new Promise<number | undefined>((resolve) => {
    request.on("response", (response) => resolve(response.resume().statusCode));
  });
  const closed = new Promise<void>((resolve) => {
    request.on("close", resolve);
  });
  return { status, closed, abort: () => request.destroy() };
}
