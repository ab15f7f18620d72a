import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { afterEach, describe, expect, test } from "vitest";
import { type Endpoint, EndpointFullError, startEndpoint } from "./index.ts";

const open: Endpoint[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((endpoint) => endpoint.close()));
});
async function start(options: Parameters<typeof startEndpoint>[0] = {}): Promise<Endpoint> {
  const endpoint = await startEndpoint(options);
  open.push(endpoint);
  return endpoint;
}
const post = (endpoint: Endpoint, body: RequestInit["body"] = "hello", more: RequestInit = {}) =>
  fetch(`${endpoint.url}/hook?a=1`, { method: "POST", body, redirect: "manual", ...more });

describe("an endpoint", () => {
  test("records a request byte for byte and answers 200", async () => {
    const endpoint = await start();
    const body = Buffer.from([0, 255, 10, 13, 0xc3, 0x28]);
    const request = httpRequest(`${endpoint.url}/hook%20?a=1&a=2`, {
      method: "PUT",
      headers: { "X-Mixed-Case": "One", "x-twice": ["1", "2"], "content-length": body.length },
    });
    request.end(body);
    const [response] = await once(request, "response");
    expect(response.statusCode).toBe(200);
    const [record] = endpoint.requests;
    expect(record).toMatchObject({ arrival: 1, method: "PUT", path: "/hook%20?a=1&a=2", complete: true });
    expect(record!.body.equals(body)).toBe(true);
    const names = record!.rawHeaders.filter((_, i) => i % 2 === 0);
    expect(names.slice(0, 4)).toEqual(["X-Mixed-Case", "x-twice", "x-twice", "content-length"]);
    expect(record!.headers).toMatchObject({ "x-mixed-case": "One", "x-twice": "1, 2" });
  });

  test("numbers requests in the order in which they arrive", async () => {
    const endpoint = await start();
    await Promise.all(Array.from({ length: 20 }, (_, i) => post(endpoint, `${i}`)));
    expect(endpoint.requests.map(({ arrival }) => arrival).sort((a, b) => a - b)).toEqual(
      Array.from({ length: 20 }, (_, i) => i + 1),
    );
  });

  test("answers by a script, one for each request, and then as before", async () => {
    const endpoint = await start({ answer: { status: 204 } });
    endpoint.next({ status: 500, body: "no" }, { status: 302, headers: { location: "http://elsewhere/" } });
    const [first, second, third] = [await post(endpoint), await post(endpoint), await post(endpoint)];
    expect([first.status, await first.text()]).toEqual([500, "no"]);
    expect([second.status, second.headers.get("location")]).toEqual([302, "http://elsewhere/"]);
    expect(third.status).toBe(204);
    endpoint.answerWith({ status: 410 });
    expect((await post(endpoint)).status).toBe(410);
  });

  test("answers by a function of the request, which may fail", async () => {
    const endpoint = await start({
      answer: async ({ body, headers, method, path }) => {
        if (body.length === 0) throw new Error("an empty body");
        return {
          status: 201,
          headers: { "x-type": headers["content-type"] ?? "" },
          body: `${method} ${path} ${body}`,
        };
      },
    });
    const response = await post(endpoint, "text");
    expect([response.status, await response.text()]).toEqual([201, "POST /hook?a=1 text"]);
    expect(response.headers.get("x-type")).toMatch("text/plain");
    const failed = await post(endpoint, "");
    expect([failed.status, await failed.text()]).toEqual([500, expect.stringContaining("an empty body")]);
  });

  test("answers late where asked, and not before", async () => {
    const endpoint = await start({ answer: { status: 200, delayMs: 60 } });
    let answered = false;
    const response = post(endpoint).then((r) => {
      answered = true;
      return r;
    });
    await endpoint.waitFor(1);
    expect(answered).toBe(false);
    expect((await response).status).toBe(200);
  });

  test("hangs until the client gives up", async () => {
    const endpoint = await start({ answer: { kind: "hang" } });
    const aborter = new AbortController();
    const response = post(endpoint, "x", { signal: aborter.signal });
    await endpoint.waitFor(1);
    aborter.abort();
    await expect(response).rejects.toMatchObject({ name: "AbortError" });
  });

  test("resets the connection after the body, which it has recorded, or before it", async () => {
    const endpoint = await start();
    endpoint.next({ kind: "resetAfterBody" }, { kind: "resetBeforeBody" });
    await expect(post(endpoint, "read")).rejects.toMatchObject({ cause: { code: "ECONNRESET" } });
    await expect(post(endpoint, "unread")).rejects.toThrow();
    expect(endpoint.requests.map(({ body, complete }) => [String(body), complete])).toEqual([
      ["read", true],
      ["", false],
    ]);
  });

  test("drips a body for ever after its status", async () => {
    const endpoint = await start({ answer: { kind: "drip", status: 202, everyMs: 1 } });
    const response = await post(endpoint);
    expect(response.status).toBe(202);
    const reader = response.body!.getReader();
    for (let i = 0; i < 3; i++) expect((await reader.read()).done).toBe(false);
    await reader.cancel();
  });

  test("answers in the middle of a body that never ends", async () => {
    const endpoint = await start({ answer: { kind: "early", status: 418 } });
    const request = httpRequest(endpoint.url, { method: "POST", headers: { "content-length": 1_000_000 } });
    request.on("error", () => {}); // the rest of the body has nowhere to go
    request.write("the beginning");
    const [response] = await once(request, "response");
    expect(response.statusCode).toBe(418);
    request.destroy();
    expect(endpoint.requests).toMatchObject([{ complete: false, body: Buffer.from("the beginning") }]);
  });

  test("records a request whose client went away in the middle of the body", async () => {
    const endpoint = await start();
    const request = httpRequest(endpoint.url, { method: "POST", headers: { "content-length": 100 } });
    request.on("error", () => {});
    request.write("half", () => request.destroy());
    await endpoint.waitFor(1);
    expect(endpoint.requests).toMatchObject([{ complete: false }]);
  });

  test.each([
    ["too many requests", { maxRequests: 1 }],
    ["a body that is too long", { maxBodyBytes: 4 }],
  ])("throws rather than keep half a record of %s", async (_, limits) => {
    const endpoint = await start(limits);
    await post(endpoint, "1234");
    expect(endpoint.requests).toHaveLength(1);
    const waiting = endpoint.waitFor(2);
    waiting.catch(() => {});
    expect((await post(endpoint, "12345")).status).toBe(507);
    await expect(waiting).rejects.toThrow(EndpointFullError);
    expect(() => endpoint.requests).toThrow(EndpointFullError);
  });

  test("waits for a condition on the requests, with a limit", async () => {
    const endpoint = await start();
    const wait = endpoint.waitFor((all) => all.some(({ body }) => String(body) === "b"));
    await Promise.all([post(endpoint, "a"), post(endpoint, "b")]);
    await wait;
    await expect(endpoint.waitFor(3, { timeoutMs: 1 })).rejects.toThrow(
      "Waited 1 ms for 3 requests; there are 2",
    );
  });

  test("closes although requests hang", async () => {
    const endpoint = await startEndpoint({ answer: { kind: "hang" } });
    const response = post(endpoint);
    response.catch(() => {});
    await endpoint.waitFor(1);
    await endpoint.close();
    await expect(response).rejects.toThrow();
  });
});
