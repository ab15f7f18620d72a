const USE_A_SERVER = "Set DATABASE_URL to a PostgreSQL server (14 or later) instead.";

/** Thrown where no embedded PostgreSQL can run: no binary for this platform, or its package is not installed. */
export class EmbeddedPostgresUnavailableError extends Error {
  override readonly name = "EmbeddedPostgresUnavailableError";

  constructor(reason: string) {
    super(`There is no embedded PostgreSQL here: ${reason}. ${USE_A_SERVER}`);
  }
}

/** Thrown when a folder cannot hold the database or its binaries. Nothing of the user's was changed. */
export class EmbeddedPostgresFolderError extends Error {
  override readonly name = "EmbeddedPostgresFolderError";
  readonly folder: string;

  constructor(folder: string, what: string, next: string) {
    super(`The embedded PostgreSQL cannot use ${folder}: ${what}. ${next}`);
    this.folder = folder;
  }
}

/** Thrown when the data in the folder was made by another major version of PostgreSQL. The data is untouched. */
export class EmbeddedPostgresVersionError extends Error {
  override readonly name = "EmbeddedPostgresVersionError";
  readonly found: string;
  readonly needed: string;

  constructor(folder: string, found: string, needed: string) {
    super(
      `The data in ${folder} was made by PostgreSQL ${found}, and the embedded one is version ${needed}. ` +
        `Move the folder away to begin anew, or dump it with PostgreSQL ${found} and restore it. ${USE_A_SERVER}`,
    );
    this.found = found;
    this.needed = needed;
  }
}

/** Thrown when another process holds the folder's lock for longer than any start or stop takes. */
export class EmbeddedPostgresBusyError extends Error {
  override readonly name = "EmbeddedPostgresBusyError";
  readonly folder: string;

  constructor(folder: string, holder: string, waitedMs: number) {
    super(
      `Process ${holder} has been starting or stopping the embedded PostgreSQL in ${folder} for more than ` +
        `${Math.round(waitedMs / 1000)} s. See what that process waits for, end it if it hangs, and try again.`,
    );
    this.folder = folder;
  }
}

/** Thrown when the server did not come up. Carries the end of what initdb or the server wrote. */
export class EmbeddedPostgresStartError extends Error {
  override readonly name = "EmbeddedPostgresStartError";
  readonly output: string;

  constructor(what: string, output: string) {
    const next = /No space left on device/.test(output)
      ? "The disk is full: free some space and try again."
      : `Read the lines above for the cause and try again. ${USE_A_SERVER}`;
    super(
      `The embedded PostgreSQL did not start: ${what}.\n${output.trim() || "(it wrote nothing)"}\n${next}`,
    );
    this.output = output;
  }
}

/** Thrown when the server is still running after it was told to stop and waited for. */
export class EmbeddedPostgresStopError extends Error {
  override readonly name = "EmbeddedPostgresStopError";
  readonly pid: number;

  constructor(pid: number, waitedMs: number, output: string) {
    super(
      `The embedded PostgreSQL (process ${pid}) is still stopping after ${Math.round(waitedMs / 1000)} s. ` +
        `No data is lost: the next start waits for it or adopts it.\n${output.trim()}`,
    );
    this.pid = pid;
  }
}
