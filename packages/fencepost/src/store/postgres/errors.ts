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
        "Check DATABASE_URL and that the server runs.",
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

/** Several addresses that all refused have no message of their own. */
function reasonOf(cause: unknown): string {
  const { message, code } = cause as { message?: string; code?: string };
  return message || code || String(cause);
}
