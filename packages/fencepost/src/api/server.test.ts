import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, it } from "vitest";
import { createLog } from "../observe/log.ts";
import { type HttpServer, serve } from "./server.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const log = createLog("silent");

async function start(fetch: (request: Request) => Promise<Response>): Promise<HttpServer> {
  const server = await serve({ fetch, host: "127.0.0.1", port: 0, log });
  closing.push(server.close);
  return server;
}

it("a server that closes answers what is under way, and takes nothing new", async () => {
  let answer: (response: Response) => void = () => {};
  let arrived: () => void = () => {};
  const arrival = new Promise<void>((resolve) => {
    arrived = resolve;
  });
  const server = await start(() => {
    arrived();
    return new Promise((resolve) => {
      answer = resolve;
    });
  });
  const answered = fetch(server.url);
  await arrival;
  const closed = server.close();
  await expect(fetch(server.url)).rejects.toThrow("fetch failed");
  answer(new Response("done"));
  expect(await (await answered).text()).toBe("done");
  await closed;
});

it("a port that is taken is an error, and nothing is left open", async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
  closing.push(() => new Promise((resolve) => other.close(resolve)));
  const { port } = other.address() as AddressInfo;
  const fetch = async () => new Response("");
  await expect(serve({ fetch, host: "127.0.0.1", port, log })).rejects.toThrow(
    `The HTTP interface cannot be served on 127.0.0.1:${port}: listen EADDRINUSE`,
  );
});

it("headers beyond the limit are refused before anything reads them", async () => {
  let asked = 0;
  const server = await start(async () => {
    asked++;
    return new Response("");
  });
  expect((await fetch(server.url, { headers: { "x-long": "x".repeat(20_000) } })).status).toBe(431);
  expect(asked).toBe(0);
});
