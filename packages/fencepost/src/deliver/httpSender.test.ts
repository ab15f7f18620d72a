import { createHook } from "node:async_hooks";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { type Endpoint, type Reply, startEndpoint, startProxy } from "@fencepost/simulator";
import { afterEach, describe, expect, it, test } from "vitest";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { readAddressRules } from "../address/addressRules.ts";
import { createSender, type Sender, type SenderOptions } from "./httpSender.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function openSender(options: Partial<SenderOptions> = {}): Sender {
  const sender = createSender({
    timeoutMs: 10_000,
    connectionsPerOrigin: 2,
    addressRules: readAddressRules({ allowInsecure: true }),
    ...options,
  });
  closing.push(sender.close);
  return sender;
}

async function openEndpoint(answer?: Parameters<Endpoint["answerWith"]>[0]): Promise<Endpoint> {
  const endpoint = await startEndpoint(answer ? { answer } : {});
  closing.push(endpoint.close);
  return endpoint;
}

/** A server that is told by hand what to do with the bytes of each connection. */
async function openTcpServer(serve: (socket: Socket) => void): Promise<{ port: number; sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.on("error", () => {});
    serve(socket);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  closing.push(async () => {
    for (const socket of sockets) socket.destroy();
    server.close();
    await once(server, "close");
  });
  return { port: (server.address() as AddressInfo).port, sockets };
}

const post = (url: string, body: Uint8Array = Buffer.from('{"n":1}')) => ({
  url,
  headers: { "content-type": "application/json", "webhook-id": "evt" },
  body,
});

describe("an answer", () => {
  test.each([200, 201, 202, 204, 299])("with status %d is delivered", async (status) => {
    const endpoint = await openEndpoint({ status });
    expect(await openSender().send(post(endpoint.url))).toEqual({
      outcome: "delivered",
      status,
      error: null,
      response: "",
      retryAfterMs: null,
      fenced: false,
    });
  });

  test.each([400, 404, 410, 429, 500, 503])("with status %d is rejected", async (status) => {
    const endpoint = await openEndpoint({ status, body: "no" });
    expect(await openSender().send(post(endpoint.url))).toEqual({
      outcome: "rejected",
      status,
      error: `The endpoint answered ${status}.`,
      response: "no",
      retryAfterMs: null,
      fenced: false,
    });
  });

  it("of a receiver that fenced an old copy off is told from any other 409", async () => {
    const endpoint = await openEndpoint();
    const sender = openSender();
    const fenced = async (status: number, headers: Record<string, string>) => {
      endpoint.next({ status, headers });
      return (await sender.send(post(endpoint.url))).fenced;
    };
    expect(await fenced(409, { "webhook-fenced": "true" })).toBe(true);
    expect(await fenced(409, {})).toBe(false);
    expect(await fenced(409, { "webhook-fenced": "false" })).toBe(false);
    expect(await fenced(400, { "webhook-fenced": "true" })).toBe(false);
  });

  test.each([301, 302, 303, 307, 308])("with status %d is rejected and not followed", async (status) => {
    const other = await openEndpoint();
    const endpoint = await openEndpoint({ status, headers: { location: other.url } });
    expect(await openSender().send(post(endpoint.url))).toMatchObject({ outcome: "rejected", status });
    expect(endpoint.requests.length).toBe(1);
    expect(other.requests.length).toBe(0);
  });

  it("has its retry-after read, in seconds or as a date", async () => {
    const endpoint = await openEndpoint();
    const sender = openSender();
    const retryAfter = async (text: string) => {
      endpoint.next({ status: 503, headers: { "retry-after": text } });
      return (await sender.send(post(endpoint.url))).retryAfterMs;
    };
    expect(await retryAfter("120")).toBe(120_000);
    expect(await retryAfter("0")).toBe(0);
    expect(await retryAfter("soon")).toBe(null);
    expect(await retryAfter("Wed, 21 Oct 2015 07:28:00 GMT")).toBe(0);
    const inAnHour = await retryAfter(new Date(Date.now() + 3_600_000).toUTCString());
    expect(Math.round((inAnHour ?? 0) / 60_000)).toBe(60);
  });

  it("that comes after others which only inform is the one that counts", async () => {
    const { port } = await openTcpServer((socket) => {
      socket.once("data", () => {
        socket.write("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        socket.write("HTTP/1.1 204 No Content\r\n\r\n");
      });
    });
    expect(await openSender().send(post(`http://127.0.0.1:${port}/`))).toMatchObject({
      outcome: "delivered",
      status: 204,
    });
  });

  it("in the middle of a large request body counts", async () => {
    let received = 0;
    const { port } = await openTcpServer((socket) => {
      // It reads on after its answer: a reset could overtake the answer itself.
      socket.on("data", (chunk) => {
        if (received === 0)
          socket.write("HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        received += chunk.length;
      });
    });
    const body = Buffer.alloc(16 * 1024 * 1024);
    expect(await openSender().send(post(`http://127.0.0.1:${port}/`, body))).toMatchObject({
      outcome: "rejected",
      status: 413,
    });
    expect(received).toBeLessThan(body.length);
  });

  it("in the middle of a large request body, with a reset behind it, is rejected or unknown", async () => {
    const endpoint = await openEndpoint();
    endpoint.next({ kind: "early", status: 503 });
    const result = await openSender().send(post(endpoint.url, Buffer.alloc(8 * 1024 * 1024)));
    expect(["rejected 503", "unknown null"]).toContain(`${result.outcome} ${result.status}`);
  });
});

describe("a 2xx is delivered, decided at its headers, though its body", () => {
  const delivered = { outcome: "delivered", status: 200, error: null };

  it("drips for ever", async () => {
    const endpoint = await openEndpoint({ kind: "drip", status: 200, everyMs: 5 });
    const result = await openSender().send(post(endpoint.url));
    expect(result).toMatchObject(delivered);
    expect(result.response).toMatch(/^\.+$/);
  });

  it("has no end: it is read up to a limit and cut off", async () => {
    const { port, sockets } = await openTcpServer((socket) => {
      socket.once("data", () => {
        socket.write("HTTP/1.1 200 OK\r\n\r\n");
        const more = (): void => {
          while (!socket.destroyed && socket.write(Buffer.alloc(16_384, "x"))) {}
        };
        socket.on("drain", more);
        more();
      });
    });
    const result = await openSender().send(post(`http://127.0.0.1:${port}/`));
    expect(result).toMatchObject({ ...delivered, response: "x".repeat(1_024) });
    await waitUntil(() => sockets[0]!.closed, { what: "the connection is closed" });
    expect(sockets[0]!.bytesWritten).toBeLessThan(16 * 1024 * 1024); // what the kernel holds, at the most
  });

  it("never comes because the connection is reset", async () => {
    const { port } = await openTcpServer((socket) => {
      socket.once("data", () => {
        socket.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello", () => {
          setImmediate(() => socket.resetAndDestroy());
        });
      });
    });
    expect(await openSender().send(post(`http://127.0.0.1:${port}/`))).toMatchObject(delivered);
  });

  it("is not text: what PostgreSQL cannot hold is replaced", async () => {
    const endpoint = await openEndpoint({ status: 200, body: Buffer.from([0x61, 0x00, 0xff, 0x62]) });
    expect(await openSender().send(post(endpoint.url))).toMatchObject({
      ...delivered,
      response: "a\ufffd\ufffdb",
    });
  });
});

describe("no byte left, so nothing was sent,", () => {
  it("where the connection is refused", async () => {
    const endpoint = await startEndpoint();
    await endpoint.close();
    const result = await openSender().send(post(endpoint.url));
    expect(result).toMatchObject({ outcome: "not_sent", status: null, response: null });
    expect(result.error).toMatch(/^ECONNREFUSED: connect ECONNREFUSED 127\.0\.0\.1/);
  });

  it("where every address of a name refuses", async () => {
    const endpoint = await startEndpoint();
    await endpoint.close();
    const result = await openSender().send(post(endpoint.url.replace("127.0.0.1", "localhost")));
    expect(result).toMatchObject({ outcome: "not_sent" });
    expect(result.error).toMatch(/^ECONNREFUSED: connect ECONNREFUSED .+/);
  });

  it("where the name is not found", async () => {
    // A label of more than 63 characters: no resolver is asked.
    const result = await openSender().send(post(`http://${"a".repeat(64)}.localhost/`));
    expect(result).toMatchObject({ outcome: "not_sent" });
    expect(result.error).toMatch(/^ENOTFOUND: /);
  });

  it("where TLS meets a port that speaks plain HTTP", async () => {
    const endpoint = await openEndpoint();
    const result = await openSender().send(post(endpoint.url.replace("http:", "https:")));
    expect(result).toMatchObject({ outcome: "not_sent" });
    expect(endpoint.requests.length).toBe(0);
  });

  it("where no connection is made in time", async () => {
    const { port, sockets } = await openTcpServer(() => {}); // accepts, and never answers the TLS greeting
    const result = await openSender({ timeoutMs: 200 }).send(post(`https://127.0.0.1:${port}/`));
    expect(result).toMatchObject({ outcome: "not_sent", error: "No connection within 200 ms." });
    expect(sockets.length).toBe(1);
  });

  it("where the url is none", async () => {
    const result = await openSender().send(post("nowhere"));
    expect(result).toMatchObject({ outcome: "not_sent" });
    expect(result.error).toContain("Invalid URL");
  });

  it("where it waited behind others beyond its time, and none leaves later", async () => {
    const endpoint = await openEndpoint();
    endpoint.next({ kind: "drip", status: 200, everyMs: 5 }); // takes the only connection for longer than that
    const sender = openSender({ timeoutMs: 1_000, connectionsPerOrigin: 1 });
    const results = await Promise.all([1, 2, 3].map((n) => sender.send(post(`${endpoint.url}/${n}`))));
    expect(results.map(({ outcome }) => outcome)).toEqual(["delivered", "not_sent", "not_sent"]);
    // The pool works on, so its queue has been gone through.
    expect(await sender.send(post(`${endpoint.url}/4`))).toMatchObject({ outcome: "delivered" });
    expect(endpoint.requests.map(({ path }) => path)).toEqual(["/1", "/4"]);
  });
});

describe("bytes left and no answer came, so nobody knows,", () => {
  it("where the endpoint hangs", async () => {
    const endpoint = await openEndpoint({ kind: "hang" });
    const result = await openSender({ timeoutMs: 1_000 }).send(post(endpoint.url));
    expect(result).toEqual({
      outcome: "unknown",
      status: null,
      error: "No answer within 1000 ms.",
      response: null,
      retryAfterMs: null,
      fenced: false,
    });
    expect(endpoint.requests.map(({ complete }) => complete)).toEqual([true]);
  });

  test.each(["resetAfterBody", "resetBeforeBody"] as const)(
    "where the connection is reset: %s",
    async (kind) => {
      const endpoint = await openEndpoint({ kind });
      const result = await openSender().send(post(endpoint.url));
      expect(result).toMatchObject({ outcome: "unknown", status: null });
      expect(endpoint.requests.length).toBe(1);
    },
  );

  test.each([
    ["something that is not HTTP", "SSH-2.0-OpenSSH_9.9\r\n"],
    ["an answer that ends in its headers", "HTTP/1.1 200 OK\r\ncontent-"],
    ["headers without end", `HTTP/1.1 200 OK\r\nx: ${"y".repeat(64 * 1_024)}`],
    [
      "an upgrade that nobody asked for",
      "HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
    // undici takes nothing more from a connection that says this unasked.
    ["100 Continue before its answer", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"],
    ["nothing", ""],
  ])("where the endpoint says %s and closes", async (_what, text) => {
    const { port } = await openTcpServer((socket) => {
      socket.once("data", () => socket.end(text));
    });
    expect(await openSender().send(post(`http://127.0.0.1:${port}/`))).toMatchObject({ outcome: "unknown" });
  });

  it("where an answer only ever informs, or its headers drip, beyond the time", async () => {
    for (const chunk of ["HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nx-a: b\r\nx-c: "]) {
      const { port } = await openTcpServer((socket) => {
        const timer = setInterval(() => socket.write(chunk.startsWith("HTTP/1.1 103") ? chunk : "."), 20);
        socket.once("data", () => socket.write(chunk));
        socket.on("close", () => clearInterval(timer));
      });
      const result = await openSender({ timeoutMs: 1_000 }).send(post(`http://127.0.0.1:${port}/`));
      expect(result).toMatchObject({ outcome: "unknown" });
    }
  });
});

describe("the answer to a query", () => {
  const error = (text: string | RegExp) => ({ error: expect.stringMatching(text) });

  it("is the whole body of a 200, up to 256 kB", async () => {
    const body = Buffer.alloc(256 * 1_024, "x");
    const endpoint = await openEndpoint({ status: 200, body });
    expect(await openSender().query(post(endpoint.url))).toEqual({ body });
    expect(endpoint.requests[0]!.body.toString()).toBe('{"n":1}');
  });

  it("is none where its body is longer", async () => {
    const endpoint = await openEndpoint({ status: 200, body: "x".repeat(256 * 1_024 + 1) });
    expect(await openSender().query(post(endpoint.url))).toEqual(error("The body is too long."));
  });

  test.each([201, 204, 302, 404, 500])("is none with status %d", async (status) => {
    const endpoint = await openEndpoint({ status });
    expect(await openSender().query(post(endpoint.url))).toEqual(error(`The endpoint answered ${status}.`));
  });

  it("is none where it drips, hangs, is cut off, or goes to nobody", async () => {
    const endpoint = await openEndpoint();
    const sender = openSender({ timeoutMs: 500 });
    const query = () => sender.query(post(endpoint.url));
    endpoint.next(
      { kind: "drip", status: 200, everyMs: 5 },
      { kind: "hang" },
      { kind: "resetAfterBody" },
      { status: 200, headers: { "content-length": "100" }, body: "short" },
    );
    expect(await query()).toEqual(error("The body took too long."));
    expect(await query()).toEqual(error("No answer within 500 ms."));
    expect(await query()).toEqual(error("ECONNRESET"));
    expect(await query()).toEqual(error(/./));
    const away = await startEndpoint();
    await away.close();
    expect(await sender.query(post(away.url))).toEqual(error("ECONNREFUSED"));
    expect(await sender.query(post("nowhere"))).toEqual(error("Invalid URL"));
  });

  it("never comes from an address that is refused", async () => {
    const endpoint = await openEndpoint();
    const sender = openSender({ addressRules: readAddressRules({}) });
    expect(await sender.query(post(endpoint.url))).toEqual(error('refused by the rule "https"'));
    expect(endpoint.requests.length).toBe(0);
  });
});

describe("connections", () => {
  it("are used again after an answer with a body of some kilobytes", async () => {
    const { port, sockets } = await openTcpServer((socket) => {
      socket.on("data", () => {
        socket.write(`HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\n${"x".repeat(20_000)}`);
      });
    });
    const sender = openSender({ connectionsPerOrigin: 1 });
    for (let i = 0; i < 5; i++) {
      const result = await sender.send(post(`http://127.0.0.1:${port}/`));
      expect(result).toMatchObject({ outcome: "delivered", response: "x".repeat(1_024) });
    }
    expect(sockets.length).toBe(1);
  });

  it("that the endpoint closed between two requests cost nothing", async () => {
    const { port, sockets } = await openTcpServer((socket) => {
      socket.once("data", () => {
        socket.end("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n");
      });
    });
    const sender = openSender({ connectionsPerOrigin: 1 });
    for (let sent = 1; sent <= 3; sent++) {
      expect(await sender.send(post(`http://127.0.0.1:${port}/`))).toMatchObject({ outcome: "delivered" });
      expect(sockets.length).toBe(sent);
      await waitUntil(() => sockets.every((socket) => socket.closed), { what: "the endpoint has closed" });
    }
  });

  it("are all closed by close(), which ends what is under way", async () => {
    const endpoint = await openEndpoint();
    const proxy = await startProxy({ targetPort: Number(new URL(endpoint.url).port) });
    closing.push(proxy.close);
    const url = `http://127.0.0.1:${proxy.port}/`;
    const sender = openSender({ connectionsPerOrigin: 2 });
    await Promise.all([sender.send(post(url)), sender.send(post(url))]);
    endpoint.next({ kind: "hang" });
    const hanging = sender.send(post(url));
    await endpoint.waitFor(3);
    expect(proxy.connections).toBe(2);
    await sender.close();
    expect(await hanging).toMatchObject({ outcome: "unknown" });
    await waitUntil(() => proxy.connections === 0, { what: "no connection is open" });
  });

  it("to the origin used longest ago are closed beyond 256 origins, after what is under way", async () => {
    const answers: (() => void)[] = [];
    const slow = await openEndpoint(
      () => new Promise<Reply>((resolve) => answers.push(() => resolve({ status: 200 }))),
    );
    const proxy = await startProxy({ targetPort: Number(new URL(slow.url).port) });
    closing.push(proxy.close);
    const sender = openSender({ connectionsPerOrigin: 1 });
    const waiting = sender.send(post(`http://127.0.0.1:${proxy.port}/`));
    await slow.waitFor(1);
    for (let i = 0; i < 256; i++) {
      const other = await openEndpoint();
      expect(await sender.send(post(other.url))).toMatchObject({ outcome: "delivered" });
    }
    expect(proxy.connections).toBe(1);
    for (const answer of answers) answer();
    expect(await waiting).toMatchObject({ outcome: "delivered" });
    await waitUntil(() => proxy.connections === 0, { what: "its connection is closed" });
  });
});

it("leaves no timer behind, whatever the outcome", async () => {
  const timers = new Map<number, string>();
  const hook = createHook({
    init(id, type) {
      const { stack = "" } = new Error();
      if (type === "Timeout" && stack.includes("httpSender.ts")) timers.set(id, stack);
    },
    destroy: (id) => timers.delete(id),
  }).enable();
  closing.push(async () => hook.disable());
  const endpoint = await openEndpoint();
  const sender = openSender();
  endpoint.next({ status: 200, body: "x".repeat(100_000) }, { status: 503 }, { kind: "resetAfterBody" });
  for (let i = 0; i < 4; i++) await sender.send(post(endpoint.url));
  await endpoint.close();
  await sender.send(post(endpoint.url));
  await sender.close();
  await waitUntil(() => timers.size === 0, { what: "the timers are gone", timeoutMs: 1_000 });
});
