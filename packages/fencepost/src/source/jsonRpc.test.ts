import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { inspect } from "node:util";
import { afterEach, describe, expect, test } from "vitest";
import { never } from "../__tests__/support/windows.ts";
import { RpcResponseError, SourceUnavailableError } from "./errors.ts";
import { callJsonRpc } from "./jsonRpc.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** A server whose answers are written by hand: what no simulated node does. */
async function serve(listener: RequestListener): Promise<string> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/secret-path?key=secret-key`;
}

const call = (url: string, options: { timeoutMs?: number; signal?: AbortSignal } = {}) =>
  callJsonRpc({ url, method: "getHealth", timeoutMs: 30_000, signal: never, ...options });

async function failure(promise: Promise<unknown>): Promise<Error & { retryAfterMs?: number; code?: number }> {
  return promise.then(
    (value) => Promise.reject(new Error(`It answered ${JSON.stringify(value)}.`)),
    (error) => error,
  );
}

test("a call is one JSON-RPC 2.0 POST, and returns the result", async () => {
  const seen: unknown[] = [];
  const url = await serve(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    seen.push(request.method, request.url, request.headers["content-type"], JSON.parse(body));
    response.end('{"jsonrpc":"2.0","id":1,"result":{"status":"healthy"}}');
  });
  expect(await call(url)).toEqual({ status: "healthy" });
  expect(seen).toEqual([
    "POST",
    "/v1/secret-path?key=secret-key",
    "application/json",
    { jsonrpc: "2.0", id: 1, method: "getHealth" },
  ]);
});

test("an error of the node keeps its code and its text, cut to 500 characters", async () => {
  const url = await serve((_, response) => {
    response.end(
      JSON.stringify({ jsonrpc: "2.0", id: 1, error: { code: -32603, message: "x".repeat(9_000) } }),
    );
  });
  const error = await failure(call(url));
  expect(error).toBeInstanceOf(RpcResponseError);
  expect(error.code).toBe(-32603);
  expect(error.message).toMatch(/\(getHealth\) answered with error -32603: x{500}$/);
});

describe("what is no answer is a SourceUnavailableError:", () => {
  test.each<[string, RequestListener, RegExp]>([
    ["an HTTP status", (_, response) => response.writeHead(403).end("no"), /answered HTTP 403/],
    ["a redirect", (_, response) => response.writeHead(302, { location: "/" }).end(), /answered HTTP 302/],
    ["HTML with 200", (_, response) => response.end("<html>"), /not JSON/],
    ["an empty body", (_, response) => response.end(), /not JSON/],
    ["null", (_, response) => response.end("null"), /without a result/],
    ["a text", (_, response) => response.end('"ok"'), /without a result/],
    ["no result", (_, response) => response.end('{"jsonrpc":"2.0","id":1}'), /without a result/],
    ["a null result", (_, response) => response.end('{"result":null}'), /without a result/],
    ["a connection that is reset", (request) => request.socket.resetAndDestroy(), /cannot be reached/],
    [
      "a body that is larger than 64 MiB",
      (_, response) => {
        const chunk = Buffer.alloc(1024 * 1024, 32);
        const write = () => {
          while (!response.destroyed && response.write(chunk));
        };
        response.on("drain", write);
        write();
      },
      /more than 67108864 bytes/,
    ],
  ])("%s", async (_, listener, reason) => {
    const error = await failure(call(await serve(listener)));
    expect(error).toBeInstanceOf(SourceUnavailableError);
    expect(error.message).toMatch(reason);
  });
});

describe("the total time-out", () => {
  test.each<[string, RequestListener, RegExp]>([
    ["a request that is never answered", () => {}, /no answer within 100 ms/],
    [
      "a body that never ends",
      (_, response) => {
        const drip = setInterval(() => response.write(" "), 5);
        response.on("close", () => clearInterval(drip));
      },
      /no answer within 100 ms/,
    ],
    [
      "the body of an error that never ends",
      (_, response) => {
        response.writeHead(503);
        const drip = setInterval(() => response.write(" "), 5);
        response.on("close", () => clearInterval(drip));
      },
      /answered HTTP 503/,
    ],
  ])("ends %s", async (_, listener, reason) => {
    const error = await failure(call(await serve(listener), { timeoutMs: 100 }));
    expect(error).toBeInstanceOf(SourceUnavailableError);
    expect(error.message).toMatch(reason);
  });
});

test("the signal ends a call at once, with its own reason, and the connection with it", async () => {
  const stop = new AbortController();
  const closed = new Promise<void>((resolve) => {
    void serve((request) => {
      request.socket.on("close", () => resolve());
      stop.abort(new Error("stopping"));
    }).then((url) => {
      outcome = failure(call(url, { signal: stop.signal, timeoutMs: 600_000 }));
    });
  });
  let outcome: Promise<Error> | undefined;
  await closed;
  expect((await outcome)?.message).toBe("stopping");
  await expect(call("http://127.0.0.1:1/", { signal: stop.signal })).rejects.toThrow("stopping");
});

test.each<[header: string, expected: (ms: number) => boolean]>([
  ["7", (ms) => ms === 7_000],
  ["0", (ms) => ms === 0],
  ["100000", (ms) => ms === 60_000], // no longer than a minute
  [new Date(Date.now() + 3_600_000).toUTCString(), (ms) => ms === 60_000],
  ["Fri, 01 Jan 2021 00:00:00 GMT", (ms) => ms === 0],
])("the wish retry-after: %s is kept in milliseconds", async (header, expected) => {
  const url = await serve((_, response) => response.writeHead(429, { "retry-after": header }).end());
  const error = await failure(call(url));
  expect(error.retryAfterMs).toSatisfy(expected);
});

test("a wish that cannot be read is none", async () => {
  const url = await serve((_, response) => response.writeHead(429, { "retry-after": "soon" }).end());
  expect((await failure(call(url))).retryAfterMs).toBeUndefined();
});

test("no error shows the path or the query of a url, where API keys stand", async () => {
  const answers = ["not json", '{"error":{"code":-32603,"message":"m"}}', "{}"];
  const url = await serve((request, response) => {
    const answer = answers.shift();
    if (answer === undefined) request.socket.resetAndDestroy();
    else response.end(answer);
  });
  const errors = [];
  for (let i = 0; i < 4; i++) errors.push(await failure(call(url)));
  const withUser = new URL(url);
  withUser.username = "secret-user";
  withUser.port = "1";
  errors.push(await failure(call(withUser.href)));
  errors.push(await failure(call("http://nowhere.invalid/secret-path?key=secret-key")));
  for (const error of errors) {
    expect(inspect(error, { depth: 10, showHidden: true })).not.toContain("secret");
    expect(error.message).toMatch(/^http:\/\/[^/ ]+ \(getHealth\) /);
  }
});
