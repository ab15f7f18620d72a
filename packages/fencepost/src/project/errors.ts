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

/** Tables or message shapes changed without a new version, or the version is not the one to run. */
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

/** One event emitted more messages than are allowed. */
export class TooManyMessagesError extends Error {
  override readonly name = "TooManyMessagesError";

  constructor(token: FencingToken, limit: number) {
    super(
      `The handler emitted more than ${limit} messages for ${token}. Emit one message with a list instead.`,
    );
  }
}

/** A handler emitted what its projection does not declare, or data that does not fit the declared shape. */
export class UndeclaredMessageError extends Error {
  override readonly name = "UndeclaredMessageError";

  constructor(type: string, token: FencingToken, why: string) {
    super(`The message ${JSON.stringify(type)} that was emitted for ${token} ${why}`);
  }
}

/** A handler tried to begin or end a transaction, which is the engine's alone. */
export class TransactionControlError extends Error {
  override readonly name = "TransactionControlError";

  constructor(statement: string) {
    super(
      `A handler must not run ${statement}: its statements, the messages and the cursor are one transaction. ` +
        "Throw an error to undo what the handler did.",
    );
  }
}

/** A handler caught an SQL error and went on, although PostgreSQL had given up the transaction. */
export class IgnoredQueryError extends Error {
  override readonly name = "IgnoredQueryError";

  constructor(cause: unknown) {
    super(
      `A handler caught the error of a statement and went on: ${describe(cause)} PostgreSQL gives up a ` +
        "transaction at its first error, so use onConflictDoNothing() or look before you write.",
      { cause },
    );
  }
}

/** A handler returned before its work was done, or went on after it returned: an `await` is missing. */
export class UnawaitedWorkError extends Error {
  override readonly name = "UnawaitedWorkError";

  constructor(what: string) {
    super(`A handler ${what}. Await every statement before the handler returns.`);
  }
}

const MAX_CAUSES = 5;
const MAX_LINE = 500;

/** The error and what it was caused by, outermost first; a driver's own reason is at the end. */
function causeChain(error: unknown): readonly unknown[] {
  const chain: unknown[] = [error];
  for (let last = error; chain.length < MAX_CAUSES && last instanceof Error && last.cause !== undefined; ) {
    last = last.cause;
    chain.push(last);
  }
  return chain;
}

/** One sentence on what went wrong: the outermost error, and the innermost that caused it. */
export function describe(error: unknown): string {
  const chain = causeChain(error);
  const line = (part: unknown): string =>
    (part instanceof Error ? `${part.name}: ${part.message}` : String(part)).slice(0, MAX_LINE);
  const text = [chain[0], ...(chain.length > 1 ? [chain.at(-1)] : [])].map(line).join(", because of ");
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** The stacks of an error and its causes, as `status` keeps them. */
export function stacksOf(error: unknown): string {
  return causeChain(error)
    .map((part) => (part instanceof Error ? (part.stack ?? part.message) : String(part)).slice(0, 3_000))
    .join("\ncaused by: ");
}
