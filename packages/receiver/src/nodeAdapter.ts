import type { IncomingMessage, ServerResponse } from "node:http";
import { type AdapterOptions, answerWebhook } from "./answer.ts";
import { type BodyLimits, DEFAULT_LIMITS, isBytes, readBody } from "./body.ts";
import { BodyAlreadyReadError } from "./errors.ts";
import { claimedEventId } from "./headers.ts";
import type { Receiver, WebhookHandler } from "./receiver.ts";
import type { WebhookRequest } from "./verify.ts";

/** A request of node:http, or of Express, which may have put a body on it. */
export type NodeRequest = IncomingMessage & { readonly body?: unknown };

/**
 * A route for node:http and for Express: `app.post("/webhooks", nodeHandler(receiver, handler))`. It reads the body
 * itself; mount it before `express.json()`, or behind `express.raw({ type: "*\/*" })`. Answers as `fetchHandler` does.
 */
export function nodeHandler<Tx extends Base, Base>(
  receiver: Receiver<Tx, Base>,
  handler: WebhookHandler<Tx>,
  options: AdapterOptions = {},
): (request: NodeRequest, response: ServerResponse) => Promise<void> {
  return async (request, response) => {
    const read = () => readNodeRequest(request, receiver.limits);
    const { status, headers, body } = await answerWebhook(receiver, read, handler, options);
    response.writeHead(status, {
      ...headers,
      "content-length": new TextEncoder().encode(body).length,
      // The rest of a body that was given up is not read for the sake of the connection.
      ...(!request.complete && { connection: "close" }),
    });
    response.end(body);
  };
}

/**
 * Reads a request of node:http or Express within the limits (1 MiB, 10 s unless given), for `verify` and `once`.
 * Throws BodyAlreadyReadError, BodyTooLargeError, BodyTimeoutError, IncompleteBodyError.
 */
export async function readNodeRequest(
  request: NodeRequest,
  limits: BodyLimits = DEFAULT_LIMITS,
): Promise<WebhookRequest> {
  const { headers, body } = request;
  if (isBytes(body) || typeof body === "string") return { headers, body };
  const eventId = claimedEventId(headers);
  if (request.readableDidRead) throw new BodyAlreadyReadError(eventId);
  // Not `for await`: leaving it early would destroy the connection before it can be answered.
  const chunks: AsyncIterator<Uint8Array> = request[Symbol.asyncIterator]();
  return { headers, body: await readBody(() => chunks.next(), limits, eventId) };
}
