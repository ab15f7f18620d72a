import type { FencingToken } from "@fencepost/token";

/** A handler, or a message of its, failed. The events before it are committed; the projection stands still here. */
export class ProjectionStoppedError extends Error {
  override readonly name = "ProjectionStoppedError";
  readonly projection: string;
  readonly token: FencingToken;
  readonly event: string;

  constructor(projection: string, token: FencingToken, event: string, cause: unknown) {
    super(
      `The projection ${projection} stopped at ${event} (${token}): ${describe(cause)} It is tried again with ` +
        `backoff. Mend the handler, or pass over the event: fencepost skip ${projection} ${token} --reason "…".`,
      { cause },
    );
    this.projection = projection;
    this.token = token;
    this.event = event;
  }
}

/** Tables or message shapes changed without a new version. */
export class ProjectionChangedError extends Error {
  override readonly name = "ProjectionChangedError";

  constructor(name: string, version: number, what: string) {
    super(`The projection ${name} v${version} ${what}`);
  }
}

/** One event emitted one message type twice without a key: both would have one id. */
export class DuplicateMessageError extends Error {
  override readonly name = "DuplicateMessageError";

  constructor(type: string, token: FencingToken) {
    super(`The handler emitted ${JSON.stringify(type)} twice for ${token}. Give each its own { key }.`);
  }
}

/** A handler emitted what its projection does not declare, or data that does not fit the declared shape. */
export class UndeclaredMessageError extends Error {
  override readonly name = "UndeclaredMessageError";
}

/** A handler ended the transaction it was given, so nothing of the batch can be trusted. */
export class TransactionEndedError extends Error {
  override readonly name = "TransactionEndedError";

  constructor(projection: string) {
    super(
      `A handler of ${projection} ended its transaction (COMMIT or ROLLBACK through db.execute). The rest of the ` +
        "batch was rolled back. Handlers must not control transactions.",
    );
  }
}

function describe(cause: unknown): string {
  const text = cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
