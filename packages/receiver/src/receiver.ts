import type { FencingToken } from "@fencepost/token";
import { type BodyLimits, DEFAULT_LIMITS } from "./body.ts";
import { decideReceipt, type TokenOrder } from "./decide.ts";
import {
  AttemptFencedError,
  InvalidOptionError,
  UnsupportedByInboxError,
  WrongConsumerError,
} from "./errors.ts";
import type { Inbox } from "./inbox.ts";
import type { WebhookMessage } from "./message.ts";
import { positiveInteger, retryHorizon } from "./options.ts";
import type { ReceiptAnswer, ReceiptQuery } from "./receiptQuery.ts";
import { decodeSecrets } from "./secret.ts";
import { DEFAULT_TOLERANCE_SECONDS, eventOnly, verifyWithKeys, type WebhookRequest } from "./verify.ts";

/** Handles one event. Effects written with `tx` happen once; what it does elsewhere may happen again. */
export type WebhookHandler<Tx> = (message: WebhookMessage, tx: Tx) => unknown;

/** What became of a verified event. */
export interface Receipt {
  /** `applied`: the handler ran, now. `already`: it had run before, and was not run again. */
  readonly outcome: "applied" | "already";
  readonly message: WebhookMessage;
}

/**
 * Verifies webhooks, has each event handled once, and answers the sender who asks which events are here. `Tx` is
 * what a handler writes with; `once` takes any `Base` that is in a transaction.
 */
export interface Receiver<Tx extends Base, Base = Tx> {
  readonly limits: BodyLimits;

  /**
   * Verifies a request, which is an event or a receipt query: `isReceiptQuery` tells. Throws a
   * WebhookRefusedError, as `verifyWebhook` does, and BodyTooLargeError.
   */
  open(request: WebhookRequest): WebhookMessage | ReceiptQuery;

  /** {@link Receiver.open} for an event. Throws MalformedBodyError for a query. */
  verify(request: WebhookRequest): WebhookMessage;

  /**
   * Has an event handled once, in the caller's own open transaction: records it in the inbox and, if it is new,
   * runs the handler. Never begins, commits or rolls back: the caller does, and the effects and the inbox row
   * become one. A duplicate waits for a transaction that is handling the event to end.
   *
   * Throws what `verify` throws for a request, AttemptFencedError, what the handler throws, and what the inbox
   * throws; the event is then not recorded. Answer with 2xx only after your COMMIT, and with `answerError`.
   */
  once<T extends Base>(
    tx: T,
    received: WebhookRequest | WebhookMessage,
    handler: WebhookHandler<T>,
  ): Promise<Receipt>;

  /** {@link Receiver.once} in a transaction that the inbox opens and commits. */
  handle(received: WebhookRequest | WebhookMessage, handler: WebhookHandler<Tx>): Promise<Receipt>;

  /**
   * Answers a receipt query: `received` for what the inbox has, `in_progress` while a handler may be running, and
   * otherwise `fenced`: from then on `once` refuses the attempts of that event up to `before`. Answer with 200 and
   * the JSON of it. Throws WrongConsumerError, and what the inbox throws; fences may then stand, which is harmless.
   */
  answerQuery(query: ReceiptQuery): Promise<ReceiptAnswer>;

  /**
   * For state that each event replaces: remembers, in the same transaction, `token` as the last one that was applied
   * to `key`. `stale`, and nothing is remembered, if that one is the same or a later one: leave the state as it is.
   * `key` is 1 to 512 characters, and belongs to the consumer.
   *
   * Throws IncomparableTokensError for tokens of two streams, NotInTransactionError, UnsupportedByInboxError for an
   * inbox that is not transactional, and the errors of the database.
   */
  latest(tx: Base, key: string, token: FencingToken): Promise<TokenOrder>;

  /**
   * Forgets the events of this consumer whose attempt was made before `olderThan`, in short transactions, up to a
   * million events a call. What is forgotten and sent again is applied again: so `olderThan` must be 7 days ago at
   * the least, or `retryHorizonMs`, the time in which the sender may still send an event, if that is given.
   *
   * Throws InvalidOptionError, UnsupportedByInboxError for an inbox whose events expire by themselves, and the errors
   * of the database; what was forgotten by then stays so.
   */
  pruneInbox(options: { readonly olderThan: Date; readonly retryHorizonMs?: number }): Promise<Pruned>;
}

/** What {@link Receiver.pruneInbox} did. */
export interface Pruned {
  /** Events that were forgotten. */
  readonly removed: number;
  /** False if there is more to do: call it again. */
  readonly complete: boolean;
}

const PRUNE_STEP = 1_000;
const MAX_PRUNE_STEPS = 1_000;

/** The options of {@link createReceiver}. */
export interface ReceiverOptions<Tx extends Base, Base = Tx> extends Partial<BodyLimits> {
  /** The secret of the webhook (`whsec_`) or its public key (`whpk_`), or all that are live while it is rotated. */
  readonly secrets: string | readonly string[];
  readonly inbox: Inbox<Tx, Base>;
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
export function createReceiver<Tx extends Base, Base = Tx>(
  options: ReceiverOptions<Tx, Base>,
): Receiver<Tx, Base> {
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

  function open(request: WebhookRequest): WebhookMessage | ReceiptQuery {
    const { maxBodyBytes } = limits;
    return verifyWithKeys(request, { keys, now: now(), toleranceSeconds, maxBodyBytes });
  }

  function verify(request: WebhookRequest): WebhookMessage {
    return eventOnly(open(request));
  }

  async function once<T extends Base>(
    tx: T,
    received: WebhookRequest | WebhookMessage,
    handler: WebhookHandler<T>,
  ): Promise<Receipt> {
    const message = asMessage(received);
    const { eventId, attemptTimestamp } = message;
    return inbox.record(tx, { ...message, consumer }, async ({ state, fencedBefore }) => {
      switch (decideReceipt(state, attemptTimestamp, fencedBefore)) {
        case "already":
          return { outcome: "already", message };
        case "fenced":
          throw new AttemptFencedError(attemptTimestamp, Number(fencedBefore), eventId);
        case "apply":
          await handler(message, tx);
          return { outcome: "applied", message };
      }
    });
  }

  function asMessage(received: WebhookRequest | WebhookMessage): WebhookMessage {
    return "eventId" in received ? received : verify(received);
  }

  return {
    limits,
    open,
    verify,
    once,

    async handle(received, handler) {
      const message = asMessage(received); // before a transaction is opened for it
      return inbox.transaction((tx) => once(tx, message, handler));
    },

    async answerQuery(query) {
      const { events, queryId } = query;
      if (query.consumer !== undefined && query.consumer !== consumer) {
        throw new WrongConsumerError(query.consumer, consumer, queryId);
      }
      const { statuses, retainedSince } = await inbox.ask({ consumer, events, now: now(), toleranceSeconds });
      return {
        consumer,
        retained_since: retainedSince?.toISOString() ?? null,
        events: events.map(({ eventId }) => ({
          event_id: eventId,
          status: statuses.get(eventId) ?? "in_progress",
        })),
      };
    },

    async latest(tx, key, token) {
      if (typeof key !== "string" || key.length < 1 || key.length > 512) {
        throw new InvalidOptionError("key", "a text of 1 to 512 characters", key);
      }
      if (inbox.latest === undefined) {
        throw new UnsupportedByInboxError("latest", "it would not be in one transaction with the effects");
      }
      return inbox.latest(tx, { consumer, key, token });
    },

    async pruneInbox({ olderThan, retryHorizonMs }) {
      // A request can be replayed for as long as its signature is accepted.
      const atLeast = Math.max(retryHorizon(retryHorizonMs), 2_000 * toleranceSeconds);
      if (!(now().getTime() - olderThan.getTime() >= atLeast)) {
        const rule = `${atLeast} ms ago or earlier, as the sender may send an event again for so long`;
        throw new InvalidOptionError("olderThan", rule, olderThan);
      }
      if (inbox.prune === undefined) {
        throw new UnsupportedByInboxError("pruneInbox", "its events expire by themselves");
      }
      let removed = 0;
      for (let step = 0; step < MAX_PRUNE_STEPS; step++) {
        const count = await inbox.prune(consumer, olderThan, PRUNE_STEP);
        removed += count;
        if (count < PRUNE_STEP) return { removed, complete: true };
      }
      return { removed, complete: false };
    },
  };
}
