import { WebhookRefusedError } from "./errors.ts";
import type { WebhookMessage } from "./message.ts";
import type { Receiver, WebhookHandler } from "./receiver.ts";
import type { WebhookRequest } from "./verify.ts";

/** What to send back: the status and a body of JSON. */
export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** Options of the adapters. */
export interface AdapterOptions {
  /**
   * Told of each error that made the adapter answer with something else than 200. Unless given, what was answered
   * with 500 goes to `console.error`: nothing else would show that a handler fails.
   */
  readonly onError?: (error: unknown, status: number) => void;
}

/**
 * Takes a request through the receiver. 200 when the event is handled, now or before; the status of the refusal
 * when it is refused; 500 for all that the handler or the inbox throws, so that the sender tries again.
 */
export async function answerWebhook<Tx>(
  receiver: Receiver<Tx>,
  read: () => Promise<WebhookRequest>,
  handler: WebhookHandler<Tx>,
  options: AdapterOptions,
): Promise<Answer> {
  let message: WebhookMessage;
  try {
    message = receiver.verify(await read());
  } catch (error) {
    return failure(error, error instanceof WebhookRefusedError ? error.status : 500, options);
  }
  try {
    const { outcome } = await receiver.handle(message, handler);
    return { status: 200, body: JSON.stringify({ outcome, event_id: message.eventId }) };
  } catch (error) {
    // Never the status of the error itself: a handler's own 404 would end the sender's retries.
    return failure(error, 500, options);
  }
}

function failure(error: unknown, status: number, { onError = logFailure }: AdapterOptions): Answer {
  onError(error, status);
  // What went wrong inside is for this side's log, not for the sender's.
  const { name, message } =
    error instanceof WebhookRefusedError && status !== 500
      ? error
      : { name: "NotHandledError", message: "The event was not handled; send it again." };
  return { status, body: JSON.stringify({ error: name, message }) };
}

function logFailure(error: unknown, status: number): void {
  if (status === 500) console.error(error);
}
