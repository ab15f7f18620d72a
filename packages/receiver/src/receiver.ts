import { type BodyLimits, DEFAULT_LIMITS } from "./body.ts";
import { decideReceipt } from "./decide.ts";
import { InvalidOptionError } from "./errors.ts";
import type { Inbox } from "./inbox.ts";
import type { WebhookMessage } from "./message.ts";
import { positiveInteger } from "./options.ts";
import { decodeSecrets } from "./secret.ts";
import { DEFAULT_TOLERANCE_SECONDS, verifyWithKeys, type WebhookRequest } from "./verify.ts";

/** Handles one event. Effects written with `tx` happen once; what it does elsewhere may happen again. */
export type WebhookHandler<Tx> = (message: WebhookMessage, tx: Tx) => unknown;

/** What became of a verified event. */
export interface Receipt {
  /** `applied`: the handler ran, now. `already`: it had run before, and was not run again. */
  readonly outcome: "applied" | "already";
  readonly message: WebhookMessage;
}

/** Verifies webhooks and has each event handled once. */
export interface Receiver<Tx> {
  readonly limits: BodyLimits;

  /** Verifies a request. Throws a WebhookRefusedError, as `verifyWebhook` does, and BodyTooLargeError. */
  verify(request: WebhookRequest): WebhookMessage;

  /**
   * Has an event handled once, in the caller's own open transaction: records it in the inbox and, if it is new,
   * runs the handler. Never begins, commits or rolls back: the caller does, and the effects and the inbox row
   * become one. A duplicate waits for a transaction that is handling the event to end.
   *
   * Throws what `verify` throws for a request, what the handler throws, and what the inbox throws; the event is
   * then not recorded. Answer with 2xx only after your COMMIT.
   */
  once(tx: Tx, received: WebhookRequest | WebhookMessage, handler: WebhookHandler<Tx>): Promise<Receipt>;

  /** {@link Receiver.once} in a transaction that the inbox opens and commits. */
  handle(received: WebhookRequest | WebhookMessage, handler: WebhookHandler<Tx>): Promise<Receipt>;
}

/** The options of {@link createReceiver}. */
export interface ReceiverOptions<Tx> extends Partial<BodyLimits> {
  /** The secret of the webhook, or all that are live while it is rotated. */
  readonly secrets: string | readonly string[];
  readonly inbox: Inbox<Tx>;
  /** Whose inbox this is: two webhooks with effects of their own may share one table. `default` unless given. */
  readonly consumer?: string;
  /** Seconds that an attempt may be old, or ahead of the clock. 300 unless given. */
  readonly toleranceSeconds?: number;
  /** The clock. */
  readonly now?: () => Date;
}

/**
 * Makes a receiver. `maxBodyBytes` is 1 MiB and `bodyTimeoutMs` 10 000 unless given.
 * Throws InvalidSecretError, InvalidOptionError.
 */
export function createReceiver<Tx>(options: ReceiverOptions<Tx>): Receiver<Tx> {
  const { inbox, consumer = "default", now = () => new Date() } = options;
  const keys = decodeSecrets(options.secrets);
  const toleranceSeconds = positiveInteger(
    "toleranceSeconds",
    options.toleranceSeconds ?? DEFAULT_TOLERANCE_SECONDS,
  );
  const limits: BodyLimits = {
    maxBodyBytes: positiveInteger("maxBodyBytes", options.maxBodyBytes ?? DEFAULT_LIMITS.maxBodyBytes),
    bodyTimeoutMs: positiveInteger("bodyTimeoutMs", options.bodyTimeoutMs ?? DEFAULT_LIMITS.bodyTimeoutMs),
  };
  if (typeof consumer !== "string" || consumer.length < 1 || consumer.length > 256) {
    throw new InvalidOptionError("consumer", "a name of 1 to 256 characters", consumer);
  }

  function verify(request: WebhookRequest): WebhookMessage {
    const { maxBodyBytes } = limits;
    return verifyWithKeys(request, { keys, now: now(), toleranceSeconds, maxBodyBytes });
  }

  async function once(
    tx: Tx,
    received: WebhookRequest | WebhookMessage,
    handler: WebhookHandler<Tx>,
  ): Promise<Receipt> {
    const message = asMessage(received);
    return inbox.record(tx, { ...message, consumer }, async (found) => {
      if (decideReceipt(found) === "already") return { outcome: "already", message };
      await handler(message, tx);
      return { outcome: "applied", message };
    });
  }

  function asMessage(received: WebhookRequest | WebhookMessage): WebhookMessage {
    return "eventId" in received ? received : verify(received);
  }

  return {
    limits,
    verify,
    once,
    async handle(received, handler) {
      const message = asMessage(received); // before a transaction is opened for it
      return inbox.transaction((tx) => once(tx, message, handler));
    },
  };
}
