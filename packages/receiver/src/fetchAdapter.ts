import { type AdapterOptions, answerWebhook } from "./answer.ts";
import { type BodyLimits, DEFAULT_LIMITS, readBody } from "./body.ts";
import { BodyAlreadyReadError } from "./errors.ts";
import { claimedEventId } from "./headers.ts";
import type { Receiver, WebhookHandler } from "./receiver.ts";
import type { WebhookRequest } from "./verify.ts";

/**
 * A route for whatever speaks Fetch: Next.js, Hono, workers. Answers 200 (applied and already, and receipt queries),
 * 400 (not a webhook), 401 (signature, age), 408 (slow body), 409 (fenced off), 413 (large body), 500 (handler or
 * inbox failed: sent again).
 */
export function fetchHandler<Tx extends Base, Base>(
  receiver: Receiver<Tx, Base>,
  handler: WebhookHandler<Tx>,
  options: AdapterOptions = {},
): (request: Request) => Promise<Response> {
  return async (request) => {
    const read = () => readFetchRequest(request, receiver.limits);
    const { status, headers, body } = await answerWebhook(receiver, read, handler, options);
    return new Response(body, { status, headers });
  };
}

/**
 * Reads a Fetch request within the limits (1 MiB, 10 s unless given), for `verify` and `once`. Throws
 * BodyAlreadyReadError, BodyTooLargeError, BodyTimeoutError, IncompleteBodyError.
 */
export async function readFetchRequest(
  request: Request,
  limits: BodyLimits = DEFAULT_LIMITS,
): Promise<WebhookRequest> {
  const { headers } = request;
  const eventId = claimedEventId(headers);
  if (request.bodyUsed) throw new BodyAlreadyReadError(eventId);
  if (request.body === null) return { headers, body: new Uint8Array() };
  const reader = request.body.getReader();
  try {
    return { headers, body: await readBody(() => reader.read(), limits, eventId) };
  } catch (error) {
    reader.cancel().catch(() => {}); // not awaited: it may wait for the sender
    throw error;
  }
}
