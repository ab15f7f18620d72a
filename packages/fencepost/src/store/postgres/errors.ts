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
      `PostgreSQL at ${withoutPassword(url)} cannot be used: ${(cause as Error).message || (cause as { code?: string }).code}. ` +
        "Check DATABASE_URL and that the server runs.",
      { cause },
    );
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
