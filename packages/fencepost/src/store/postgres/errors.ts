/** Causes of causes that are looked at, at the most. */
const MAX_CAUSES = 10;

/** PostgreSQL answered COMMIT with ROLLBACK: an SQL error inside the transaction was caught and ignored. */
export class CommitBecameRollbackError extends Error {
  override readonly name = "CommitBecameRollbackError";

  constructor() {
    super(
      "The database rolled the transaction back although COMMIT was sent: an SQL error inside it was caught " +
        "and ignored. Nothing was written. Let SQL errors reach the caller.",
    );
  }
}

/** The database cannot be reached, or refuses the login. */
export class DatabaseUnreachableError extends Error {
  override readonly name = "DatabaseUnreachableError";

  constructor(url: string, cause: unknown) {
    super(
      `PostgreSQL at ${withoutPassword(url)} cannot be used: ${reasonOf(cause)}. ` +
        "Check DATABASE_URL and that the server runs; where it ended, its own log says why (a full disk ends it).",
      { cause },
    );
  }
}

/** The disk of the database is full. What was not committed is rolled back, whole; it can be tried again. */
export class DatabaseFullError extends Error {
  override readonly name = "DatabaseFullError";

  constructor(url: string, reason: Error, cause: unknown) {
    super(
      `The disk of PostgreSQL at ${withoutPassword(url)} is full: ${reason.message}. Nothing is half-stored. Free ` +
        "some space there, or enlarge it: an engine that runs tries again and goes on by itself.",
      { cause },
    );
  }
}

/** The connection broke inside a transaction. What `work` threw, if anything, is its cause. */
export class ConnectionLostError extends Error {
  override readonly name = "ConnectionLostError";
  /** PostgreSQL's reason where it gave one: 25P03 for a transaction that was idle for too long. */
  readonly code: string | undefined;

  constructor(url: string, reason: Error & { code?: string }, cause: unknown) {
    super(
      `The connection to PostgreSQL at ${withoutPassword(url)} broke in a transaction: ${reason.message}. Nothing ` +
        "of it was written, unless it broke during the COMMIT itself: what is tried again finds out.",
      { cause },
    );
    this.code = reason.code;
  }
}

/** The database was migrated by a newer version of Fencepost, or its migrations were edited. */
export class MigrationError extends Error {
  override readonly name = "MigrationError";
}

function withoutPassword(url: string): string {
  try {
    const { hostname, port, pathname } = new URL(url);
    return `${hostname}:${port || "5432"}${pathname}`;
  } catch {
    return "the given DATABASE_URL (it is not a URL)";
  }
}

/** The server's word that its disk is full, where it is the cause of an error: of a handler, a query builder, a loss. */
export function diskFullCause(error: unknown): Error | undefined {
  for (
    let cause = error, depth = 0;
    cause instanceof Error && depth < MAX_CAUSES;
    cause = cause.cause, depth++
  ) {
    if ((cause as { code?: unknown }).code === "53100") return cause;
  }
  return undefined;
}

/** Several addresses that all refused have no message of their own. */
function reasonOf(cause: unknown): string {
  const { message, code } = cause as { message?: string; code?: string };
  return message || code || String(cause);
}
