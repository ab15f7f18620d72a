import { AttemptFencedError, WebhookRefusedError } from "./errors.ts";
import type { WebhookMessage } from "./message.ts";
import { isReceiptQuery, type ReceiptQuery } from "./receiptQuery.ts";
import type { Receiver, WebhookHandler } from "./receiver.ts";
import type { WebhookRequest } from "./verify.ts";

/** What to send back. */
export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** JSON. */
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
 * Takes a request through the receiver. 200 when the event is handled, now or before, and for a receipt query; the
 * status of the refusal when it is refused; 500 for all that the handler or the inbox throws, so that the sender
 * tries again.
 */
export async function answerWebhook<Tx extends Base, Base>(
  receiver: Receiver<Tx, Base>,
  read: () => Promise<WebhookRequest>,
  handler: WebhookHandler<Tx>,
  { onError = logFailure }: AdapterOptions,
): Promise<Answer> {
  function failure(error: unknown, answer: Answer): Answer {
    onError(error, answer.status);
    return answer;
  }
  let received: WebhookMessage | ReceiptQuery;
  try {
    received = receiver.open(await read());
  } catch (error) {
    return failure(error, answerError(error));
  }
  try {
    if (isReceiptQuery(received)) return json(200, await receiver.answerQuery(received));
    const { outcome } = await receiver.handle(received, handler);
    return json(200, { outcome, event_id: received.eventId });
  } catch (error) {
    // Never the status of what a handler throws: its own 404 would end the sender's retries.
    const refused = isReceiptQuery(received) || error instanceof AttemptFencedError;
    return failure(error, refused ? answerError(error) : NOT_HANDLED);
  }
}

/**
 * What to answer for an error of `open`, `verify`, `answerQuery`, or of `once` and the handler in it: the status of
 * a refusal, and 500 for anything else. The 409 for a fenced-off attempt has the header `webhook-fenced: true` and
 * the body `{"error":"fenced",…}`, by which the sender knows that a later attempt is taken.
 */
export function answerError(error: unknown): Answer {
  if (error instanceof AttemptFencedError) {
    const { eventId, message } = error;
    return json(409, { error: "fenced", event_id: eventId, message }, { "webhook-fenced": "true" });
  }
  // What went wrong inside is for this side's log, not for the sender's.
  if (!(error instanceof WebhookRefusedError) || error.status === 500) return NOT_HANDLED;
  return json(error.status, { error: error.name, message: error.message });
}

const NOT_HANDLED = json(500, {
  error: "NotHandledError",
  message: "The request was not handled; send it again.",
});

function json(status: number, body: unknown, headers: Record<string, string> = {}): Answer {
  return {
    status,
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  };
}

function logFailure(error: unknown, status: number): void {
  if (status === 500) console.error(error);
}
