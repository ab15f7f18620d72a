import fastify from "fastify";
import { describe, expect, test } from "vitest";
import { adapterConformance } from "./__tests__/adapterConformance.ts";
import { post, serve } from "./__tests__/httpServer.ts";
import { NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { createReceiver, fastifyWebhook, memoryInbox } from "./index.ts";

describe("fastifyWebhook", () => {
  adapterConformance((receiver, handler, options) => {
    const app = fastify();
    app.register(fastifyWebhook("/webhooks", receiver, handler, options));
    const ready = app.ready();
    return async (request, response) => {
      await ready;
      app.routing(request, response);
    };
  });

  test("takes any content type, under a prefix, and leaves the other routes as they were", async () => {
    const receiver = createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 9 }), now: () => NOW });
    const app = fastify();
    app.register(
      fastifyWebhook("/fencepost", receiver, () => {}),
      { prefix: "/webhooks" },
    );
    app.post("/echo", async ({ body }) => ({ body }));
    await app.ready();
    const server = await serve((request, response) => app.routing(request, response));
    try {
      for (const type of ["application/json", "text/plain", "application/cloudevents+json"]) {
        const { headers, body } = signedRequest({ id: `evt_${type.length}` });
        const request = { headers: { ...headers, "content-type": type }, body };
        expect((await post(`${server.url}/fencepost`, request)).status).toBe(200);
      }
      const echo = { headers: { "content-type": "application/json" }, body: Buffer.from('{"a":1}') };
      expect(await post(new URL("/echo", server.url).href, echo)).toEqual({
        status: 200,
        json: { body: { a: 1 } },
      });
    } finally {
      await server.close();
    }
  });
});
