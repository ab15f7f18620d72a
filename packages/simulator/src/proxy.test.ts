import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { listen } from "./listen.ts";
import { startProxy, type TcpProxy } from "./proxy.ts";

/** A target that keeps what it reads and answers each chunk with its length. */
let target: Server;
let closeTarget: () => Promise<void>;
let proxy: TcpProxy;
let received: Buffer[];
const sockets = new Set<Socket>();

beforeEach(async () => {
  received = [];
  target = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      received.push(chunk);
      socket.write(`got ${chunk.length}`);
    });
  });
  const { port, close } = await listen(target);
  closeTarget = close;
  proxy = await startProxy({ targetPort: port });
});
afterEach(async () => {
  await proxy.close();
  for (const socket of sockets) socket.destroy();
  sockets.clear();
  await closeTarget();
});

async function client(): Promise<Socket> {
  const accepted = once(target, "connection");
  const socket = connect(proxy.port, "127.0.0.1");
  socket.on("error", () => {});
  await Promise.all([once(socket, "connect"), accepted]);
  return socket;
}
async function ask(socket: Socket, text: string): Promise<string> {
  socket.write(text);
  const [answer] = await once(socket, "data");
  return String(answer);
}
async function targetEnd(): Promise<string> {
  await Promise.all([...sockets].map((socket) => socket.readableEnded || once(socket, "end")));
  return Buffer.concat(received).toString();
}
/** The code of the error that the client sees. */
const errorOf = async (socket: Socket): Promise<string> => {
  const [error] = await once(socket, "error");
  return (error as NodeJS.ErrnoException).code ?? "";
};

describe("a proxy", () => {
  test("passes bytes both ways", async () => {
    const socket = await client();
    expect(await ask(socket, "hello")).toBe("got 5");
    expect(proxy.connections).toBe(1);
    socket.end();
    expect(await targetEnd()).toBe("hello");
  });

  test("passes more than its buffers hold", async () => {
    const socket = await client();
    const big = Buffer.alloc(8_000_000, "x");
    socket.resume();
    socket.end(big);
    expect((await targetEnd()).length).toBe(big.length);
  });

  test("cuts all connections, and accepts new ones", async () => {
    const [a, b] = [await client(), await client()];
    await Promise.all([ask(a, "1"), ask(b, "2")]);
    const errors = Promise.all([errorOf(a), errorOf(b)]);
    proxy.cut();
    expect(await errors).toEqual(["ECONNRESET", "ECONNRESET"]);
    expect(proxy.connections).toBe(0);
    expect(await ask(await client(), "again")).toBe("got 5");
  });

  test("cuts at the bytes that a test names, before or after they arrive", async () => {
    const isCommit = (chunk: Buffer, direction: string) => direction === "up" && chunk.includes("COMMIT");
    for (const deliver of [false, true]) {
      const socket = await client();
      await ask(socket, "BEGIN;");
      proxy.cutWhen(isCommit, { deliver });
      const error = errorOf(socket);
      const answers: string[] = [];
      socket.on("data", (chunk) => answers.push(String(chunk)));
      socket.write("COMMIT;");
      expect(await error).toBe("ECONNRESET");
      expect(await targetEnd()).toBe(deliver ? "BEGIN;COMMIT;" : "BEGIN;");
      expect(answers).toEqual([]);
      received = [];
      sockets.clear();
    }
  });

  test("cuts after so many bytes in one direction, and those arrive", async () => {
    const socket = await client();
    proxy.cutAfter(7, "up");
    await ask(socket, "12345");
    const error = errorOf(socket);
    socket.write("67890");
    await error;
    expect(await targetEnd()).toBe("1234567");

    const other = await client();
    proxy.cutAfter(6, "down");
    const chunks: string[] = [];
    other.on("data", (chunk) => chunks.push(String(chunk)));
    other.write("x".repeat(1234));
    await once(other, "close");
    expect(chunks.join("")).toBe("got 12");
  });

  test("lets nothing through while it is paused, and everything afterwards", async () => {
    const socket = await client();
    await ask(socket, "before");
    proxy.pause();
    const answer = ask(socket, "during");
    const late = await client();
    const lateAnswer = ask(late, "late");
    // a turn through the kernel for another connection shows that these bytes would have arrived by now
    const other = createServer((s) => s.pipe(s));
    const { port, close } = await listen(other);
    const probe = connect(port, "127.0.0.1");
    await ask(probe, "probe");
    expect(Buffer.concat(received).toString()).toBe("before");
    proxy.resume();
    expect([await answer, await lateAnswer]).toEqual(["got 6", "got 4"]);
    probe.destroy();
    await close();
  });

  test("ends the client's connection when the target's ends", async () => {
    const socket = await client();
    await ask(socket, "x");
    socket.resume();
    for (const each of sockets) each.end();
    await once(socket, "end");
  });

  test("resets a client when the target cannot be reached", async () => {
    await closeTarget();
    const socket = connect(proxy.port, "127.0.0.1");
    socket.on("error", () => {});
    await once(socket, "close");
    expect(proxy.connections).toBe(0);
    closeTarget = async () => {};
  });
});
