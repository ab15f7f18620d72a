import express from "express";
import { afterEach, describe, expect, test, vi } from "vitest";
import { adapterConformance } from "./__tests__/adapterConformance.ts";
import { post, serve } from "./__tests__/httpServer.ts";
import { NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { BodyAlreadyReadError, createReceiver, memoryInbox, nodeHandler, readNodeRequest } from "./index.ts";

describe("nodeHandler on node:http", () => {
  adapterConformance((receiver, handler, options) => nodeHandler(receiver, handler, options));
});

describe("nodeHandler on Express", () => {
  adapterConformance((receiver, handler, options) => {
    const app = express();
    app.post("/webhooks", nodeHandler(receiver, handler, options));
    return app;
  });
});

describe("nodeHandler behind a body parser of Express", () => {
  afterEach(() => vi.restoreAllMocks());

  async function postThrough(parser: express.RequestHandler, onError?: (error: unknown) => void) {
    const receiver = createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 9 }), now: () => NOW });
    const app = express();
    app.use(parser);
    app.post(
      "/webhooks",
      nodeHandler(receiver, () => {}, onError && { onError }),
    );
    const server = await serve(app);
    try {
      return await post(server.url, signedRequest({}));
    } finally {
      await server.close();
    }
  }

  test.each([
    ["express.raw()", express.raw({ type: "*/*" })],
    ["express.text()", express.text({ type: "*/*" })],
    ["a parser of another content type", express.urlencoded()],
  ])("that is %s verifies what the parser leaves", async (_, parser) => {
    expect((await postThrough(parser)).status).toBe(200);
  });

  test("that is express.json() says where to mount it, to the owner and not to the sender", async () => {
    const errors: unknown[] = [];
    const { status, json } = await postThrough(express.json(), (error) => errors.push(error));
    expect(status).toBe(500);
    expect(json).toEqual({ error: "NotHandledError", message: expect.any(String) });
    expect(errors).toEqual([expect.any(BodyAlreadyReadError)]);
    expect(errors[0]).toMatchObject({ eventId: "evt_1" });
    expect(String(errors[0])).toMatch(/before express\.json\(\).*express\.raw/);
  });

  test("writes an error that nobody is told of to the console", async () => {
    const log = vi.spyOn(console, "error").mockImplementation(() => {});
    await postThrough(express.json());
    expect(log).toHaveBeenCalledExactlyOnceWith(expect.any(BodyAlreadyReadError));
  });
});

test("readNodeRequest reads a request for verify, within 1 MiB unless told otherwise", async () => {
  const receiver = createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 9 }), now: () => NOW });
  const server = await serve(async (request, response) => {
    const result = await readNodeRequest(request).then(receiver.verify).catch(String);
    response.end(JSON.stringify(result));
  });
  try {
    const ok = await post(server.url, signedRequest({ id: "evt_1" }));
    expect(ok.json).toMatchObject({ eventId: "evt_1" });
    const big = { ...signedRequest({}), body: Buffer.alloc(1_048_577) };
    expect((await post(server.url, big)).json).toContain("BodyTooLargeError");
  } finally {
    await server.close();
  }
});
