import type { IncomingMessage } from "node:http";
import { type AdapterOptions, answerWebhook } from "./answer.ts";
import { readNodeRequest } from "./nodeAdapter.ts";
import type { Receiver, WebhookHandler } from "./receiver.ts";

/** What this package needs of a Fastify instance. */
export interface FastifyScope {
  removeAllContentTypeParsers(): unknown;
  addContentTypeParser(
    contentType: string,
    parser: (request: unknown, payload: unknown, done: (error: null) => void) => void,
  ): unknown;
  post(
    path: string,
    handler: (request: { readonly raw: IncomingMessage }, reply: FastifyReply) => Promise<unknown>,
  ): unknown;
}

/** What this package needs of a reply of Fastify. */
interface FastifyReply {
  code(status: number): unknown;
  headers(headers: Record<string, string>): unknown;
  send(body: string): unknown;
}

/**
 * A plugin for Fastify with one route: `app.register(fastifyWebhook("/webhooks", receiver, handler))`. In the scope of
 * the plugin Fastify parses no bodies, as a signature needs the bytes; your other routes are as they were. The limits
 * for bodies are the receiver's. Answers as `fetchHandler` does.
 */
export function fastifyWebhook<Tx extends Base, Base>(
  path: string,
  receiver: Receiver<Tx, Base>,
  handler: WebhookHandler<Tx>,
  options: AdapterOptions = {},
): (scope: FastifyScope) => Promise<void> {
  return async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser("*", (_request, _payload, done) => done(null));
    scope.post(path, async ({ raw }, reply) => {
      const read = () => readNodeRequest(raw, receiver.limits);
      const { status, headers, body } = await answerWebhook(receiver, read, handler, options);
      reply.code(status);
      // The rest of a body that was given up is not read for the sake of the connection.
      reply.headers({ ...headers, ...(!raw.complete && { connection: "close" }) });
      return reply.send(body);
    });
  };
}
