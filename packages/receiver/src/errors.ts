/**
 * A request that is not handled because of what it is: it is refused before the inbox and the handler see it.
 * `status` is the HTTP status to answer with.
 */
export abstract class WebhookRefusedError extends Error {
  abstract readonly status: 400 | 401 | 408 | 409 | 413 | 500;
  /** The id that the request claims, where one could be read. It is not verified. */
  readonly eventId: string | undefined;

  constructor(message: string, eventId?: string) {
    super(message);
    this.eventId = eventId;
  }
}

/** A header of Standard Webhooks is missing. */
export class MissingHeaderError extends WebhookRefusedError {
  override readonly name = "MissingHeaderError";
  override readonly status = 400;

  constructor(header: string, eventId?: string) {
    super(`The header ${header} is missing: this is not a webhook, or a proxy dropped the header.`, eventId);
  }
}

/** A header of Standard Webhooks is there and cannot be read. */
export class MalformedHeaderError extends WebhookRefusedError {
  override readonly name = "MalformedHeaderError";
  override readonly status = 400;

  constructor(header: string, problem: string, eventId?: string) {
    super(`The header ${header} ${problem}.`, eventId);
  }
}

/** No signature of the request was made over these bytes with a secret, or for a public key, of this receiver. */
export class InvalidSignatureError extends WebhookRefusedError {
  override readonly name = "InvalidSignatureError";
  override readonly status = 401;

  constructor(eventId: string) {
    super(
      "No signature matches: the secret, or the public key, is not the one of this webhook, or the body is not byte for byte what was sent.",
      eventId,
    );
  }
}

/** The signature is right, and the attempt was made too long ago or in the future. */
export class StaleTimestampError extends WebhookRefusedError {
  override readonly name = "StaleTimestampError";
  override readonly status = 401;
  /** Seconds from the attempt to now; negative for an attempt in the future. */
  readonly ageSeconds: number;

  constructor(ageSeconds: number, toleranceSeconds: number, eventId: string) {
    super(
      `The attempt is ${ageSeconds} s old and the tolerance is ${toleranceSeconds} s: it is a replay, or one of the two clocks is wrong.`,
      eventId,
    );
    this.ageSeconds = ageSeconds;
  }
}

/** The signature is right, and the body is not a message. */
export class MalformedBodyError extends WebhookRefusedError {
  override readonly name = "MalformedBodyError";
  override readonly status = 400;

  constructor(problem: string, eventId: string) {
    super(`The body ${problem}.`, eventId);
  }
}

/** The signature is right, and `event_id` in the body is not the `webhook-id` of the header. */
export class EventIdMismatchError extends WebhookRefusedError {
  override readonly name = "EventIdMismatchError";
  override readonly status = 400;

  constructor(inBody: string, eventId: string) {
    super(`The body is of event ${inBody.slice(0, 256)} and the header webhook-id says ${eventId}.`, eventId);
  }
}

/** The body has more bytes than this receiver takes. */
export class BodyTooLargeError extends WebhookRefusedError {
  override readonly name = "BodyTooLargeError";
  override readonly status = 413;

  constructor(maxBodyBytes: number, eventId?: string) {
    super(`The body has more than ${maxBodyBytes} bytes, the maxBodyBytes of this receiver.`, eventId);
  }
}

/** The body did not arrive in time. */
export class BodyTimeoutError extends WebhookRefusedError {
  override readonly name = "BodyTimeoutError";
  override readonly status = 408;

  constructor(bodyTimeoutMs: number, eventId?: string) {
    super(`The body did not arrive within ${bodyTimeoutMs} ms; send it again.`, eventId);
  }
}

/** The connection broke before the whole body had arrived. */
export class IncompleteBodyError extends WebhookRefusedError {
  override readonly name = "IncompleteBodyError";
  override readonly status = 400;

  constructor(cause: unknown, eventId?: string) {
    super("The connection broke before the whole body had arrived; send it again.", eventId);
    this.cause = cause;
  }
}

/** Something read the body before this receiver, so the bytes that were signed are gone. A fault of the setup. */
export class BodyAlreadyReadError extends WebhookRefusedError {
  override readonly name = "BodyAlreadyReadError";
  override readonly status = 500;

  constructor(eventId?: string) {
    super(
      "The body was read before the receiver saw it, and a signature needs the bytes as they were sent. " +
        "Mount the receiver before express.json(), or put express.raw({ type: '*/*' }) on its route; with a Fetch Request, pass it on unread.",
      eventId,
    );
  }
}

/** The receipt query is for the inbox of another consumer. */
export class WrongConsumerError extends WebhookRefusedError {
  override readonly name = "WrongConsumerError";
  override readonly status = 400;

  constructor(asked: string, consumer: string, queryId: string) {
    super(
      `The query asks consumer ${asked.slice(0, 256)} and this is ${consumer}; leave it out, or correct the url.`,
      queryId,
    );
  }
}

/**
 * The attempt was fenced off: the sender asked for the event, was told that it is not here, and sends it again.
 * This is the older attempt, late. Answer with {@link answerError}, so that the sender knows the reason.
 */
export class AttemptFencedError extends WebhookRefusedError {
  override readonly name = "AttemptFencedError";
  override readonly status = 409;

  constructor(attemptTimestamp: number, fencedBefore: number, eventId: string) {
    super(
      `The attempt of ${attemptTimestamp} is fenced off: the receiver refuses those of ${fencedBefore} and earlier. A later attempt is taken.`,
      eventId,
    );
  }
}

/**
 * A secret is not `whsec_` and the base64 of 24 to 64 bytes, nor `whpk_` and that of a public key. The message does
 * not hold the secret.
 */
export class InvalidSecretError extends Error {
  override readonly name = "InvalidSecretError";

  constructor(problem: string) {
    super(
      `${problem}. A webhook secret is whsec_ and the base64 of 24 to 64 random bytes; a public key is whpk_ and the base64 of 32.`,
    );
  }
}

/** An option has a value that cannot work. */
export class InvalidOptionError extends Error {
  override readonly name = "InvalidOptionError";

  constructor(option: string, rule: string, value: unknown) {
    super(`${option} must be ${rule}; it is ${String(value).slice(0, 200)}.`);
  }
}

/**
 * Another request has been handling this event for as long as this one was ready to wait; or, in SQLite, where one
 * writes at a time, another one.
 */
export class InboxBusyError extends Error {
  override readonly name = "InboxBusyError";
  readonly eventId: string | undefined;

  constructor(eventId?: string) {
    const busy = eventId === undefined ? "The inbox is in use" : `Event ${eventId} is being handled`;
    super(`${busy} by another request. Answer with 500: the event will be sent again.`);
    this.eventId = eventId;
  }
}

/** More handlers are running, or more fences stand, than a memory inbox has room for. */
export class InboxFullError extends Error {
  override readonly name = "InboxFullError";
  readonly eventId: string;

  constructor(max: number, eventId: string) {
    super(
      `${max} events are being handled or fenced off, which is all the memory inbox may hold. Give it a larger max.`,
    );
    this.eventId = eventId;
  }
}

/** A table of the inbox does not exist. */
export class InboxTableMissingError extends Error {
  override readonly name = "InboxTableMissingError";
  readonly eventId: string | undefined;

  constructor(table: string, eventId?: string) {
    super(
      `The table ${table}, or one beside it, does not exist. Add inboxMigration() to your migrations, or call ensureInbox().`,
    );
    this.eventId = eventId;
  }
}

/** The inbox of this receiver cannot do this. */
export class UnsupportedByInboxError extends Error {
  override readonly name = "UnsupportedByInboxError";

  constructor(method: string, reason: string) {
    super(`${method} is not for this inbox: ${reason}.`);
  }
}

/** This Node has no SQLite. */
export class SqliteMissingError extends Error {
  override readonly name = "SqliteMissingError";

  constructor(cause: unknown) {
    super(
      "This Node has no node:sqlite: sqliteInbox needs Node 22.13 or later. Update Node, or use another inbox.",
    );
    this.cause = cause;
  }
}

/** `once` or `latest` was called outside a transaction, or the handler ended the transaction it was given. */
export class NotInTransactionError extends Error {
  override readonly name = "NotInTransactionError";
  readonly eventId: string | undefined;

  constructor(problem: string, eventId?: string) {
    const row = eventId === undefined ? "the token" : `the inbox row of event ${eventId}`;
    super(`${problem}: ${row} and the handler's effects would not be one.`);
    this.eventId = eventId;
  }
}

/**
 * A statement failed inside the transaction and its error was swallowed, so PostgreSQL would answer COMMIT with
 * ROLLBACK. Nothing was written.
 */
export class CommitBecameRollbackError extends Error {
  override readonly name = "CommitBecameRollbackError";
  readonly eventId: string | undefined;

  constructor(eventId?: string) {
    super(
      "A statement failed inside the transaction and its error was swallowed, so PostgreSQL turns COMMIT into ROLLBACK. " +
        "Let the error leave the handler, or put the statement that may fail into a SAVEPOINT.",
    );
    this.eventId = eventId;
  }
}
