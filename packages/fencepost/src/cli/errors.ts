import { fileURLToPath } from "node:url";

/** There is no config file where one was looked for. */
export class ConfigNotFoundError extends Error {
  override readonly name = "ConfigNotFoundError";

  constructor(path: string) {
    super(
      `There is no config at ${path}. Make a project with "fencepost init", or name the file with --config.`,
    );
  }
}

/** The config file does not export what `defineConfig()` returns. */
export class InvalidConfigError extends Error {
  override readonly name = "InvalidConfigError";

  constructor(path: string, found: unknown) {
    const what = found === undefined || found === null ? String(found) : `a value of type ${typeof found}`;
    super(
      `The default export of ${path} is ${what}, and not a config. Write: export default defineConfig({ … }).`,
    );
  }
}

/** The config file, or a module that it imports, threw. The message ends with the user's own stack frames. */
export class ConfigFailedError extends Error {
  override readonly name = "ConfigFailedError";

  constructor(path: string, cause: unknown) {
    const { name = "Error", message = String(cause), stack } = (cause ?? {}) as Partial<Error>;
    super([`${path} threw ${name}: ${message}`, ...userFrames(stack)].join("\n"), { cause });
  }
}

/** It is not clear which database is meant, so none is used. */
export class DatabaseNotChosenError extends Error {
  override readonly name = "DatabaseNotChosenError";
}

/** The database belongs to an older version of Fencepost, and `start` changes no schema in silence. */
export class PendingMigrationsError extends Error {
  override readonly name = "PendingMigrationsError";

  constructor(pending: readonly string[]) {
    super(
      `The database lacks the migrations ${pending.join(", ")}. Run "fencepost migrate" with this version.`,
    );
  }
}

/** The database has no schema of Fencepost yet. */
export class NotMigratedError extends Error {
  override readonly name = "NotMigratedError";

  constructor(where: string) {
    super(
      `${where} has no Fencepost schema yet. Run "fencepost migrate", or "fencepost dev" for development.`,
    );
  }
}

/** What was given to `init` is not the address of a contract. Nothing was written. */
export class InvalidContractIdError extends Error {
  override readonly name = "InvalidContractIdError";

  constructor(id: string) {
    super(`A contract id is C and 55 of A-Z 2-7, but this is ${JSON.stringify(id)}.`);
  }
}

/** `init` never overwrites a file. Nothing was written. */
export class FilesExistError extends Error {
  override readonly name = "FilesExistError";

  constructor(folder: string, files: readonly string[]) {
    super(
      `${folder} has ${files.join(", ")} already, and init overwrites nothing. Choose an empty folder with --dir.`,
    );
  }
}

/** There is no room for a file that a command writes. Nothing of it is left. */
export class DiskFullError extends Error {
  override readonly name = "DiskFullError";

  constructor(path: string, cause: Error) {
    super(
      `${path} cannot be written: ${cause.message}. Nothing of it is left. Free some space, or name another place, ` +
        "and run the command again.",
      { cause },
    );
  }
}

/** What a command writes cannot be written where it was told to. Nothing of it is left. */
class CannotWriteError extends Error {
  override readonly name = "CannotWriteError";

  constructor(path: string, code: string, cause: Error) {
    super(`${path} cannot be written (${code}): ${WHY_NOT[code] ?? cause.message}`, { cause });
  }
}

const NOT_ALLOWED = "this user may not. Name another place, or change who may write there.";
const WHY_NOT: Readonly<Record<string, string>> = {
  EEXIST: "it is there already, and nothing is overwritten. Name another file.",
  EISDIR: "it is a folder. Name a file.",
  ENOENT: "its folder is not there. Make it, or name another place.",
  ENOTDIR: "a part of the path is a file. Name another place.",
  EACCES: NOT_ALLOWED,
  EPERM: NOT_ALLOWED,
  EROFS: "the disk is read-only. Name another place.",
};

/**
 * Runs what writes `path`, and names the path where the file system refuses. Throws {@link DiskFullError} or
 * {@link CannotWriteError}, and what else `write` throws as it is.
 */
export async function namingPath<T>(path: string, write: () => Promise<T>): Promise<T> {
  try {
    return await write();
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (code === "ENOSPC" || code === "EDQUOT") throw new DiskFullError(path, error as Error);
    if (Object.hasOwn(WHY_NOT, code)) throw new CannotWriteError(path, code, error as Error);
    throw error;
  }
}

/** Nothing is on record under this token, event id or delivery id. */
export class NotOnRecordError extends Error {
  override readonly name = "NotOnRecordError";
}

/** The config names no source like this. */
export class UnknownSourceError extends Error {
  override readonly name = "UnknownSourceError";

  constructor(name: string, known: readonly string[]) {
    super(
      `There is no source ${name} in the config. ` +
        (known.length === 0
          ? `Write: sources: { ${/^[a-z]\w*$/i.test(name) ? name : "lake"}: dataLake({ … }) }.`
          : `There ${known.length === 1 ? "is" : "are"}: ${known.join(", ")}.`),
    );
  }
}

/** The command is about ledgers, and the config follows producers only. */
export class NoSourceError extends Error {
  override readonly name = "NoSourceError";

  constructor() {
    super(
      "The config has no source: it follows producers only. This command is about the ledgers of a chain.",
    );
  }
}

/** There is no projection of this name in the database. */
export class UnknownProjectionError extends Error {
  override readonly name = "UnknownProjectionError";

  constructor(name: string, known: readonly string[]) {
    super(
      `There is no projection ${name}. There ${known.length === 0 ? "is none yet" : `are: ${known.join(", ")}`}.`,
    );
  }
}

/** `webhooks update` was given nothing to change. */
export class NothingToChangeError extends Error {
  override readonly name = "NothingToChangeError";

  constructor() {
    super('Nothing is named that could change. See "fencepost webhooks update --help".');
  }
}

/** Only what is in doubt or failed is resolved. The delivery was left as it is. */
export class NotResolvedError extends Error {
  override readonly name = "NotResolvedError";
  readonly deliveryId: string;

  constructor(id: string, state: string) {
    super(
      `The delivery ${id} is ${state}, and only what is in doubt or failed is resolved. Nothing was changed.`,
    );
    this.deliveryId = id;
  }
}

/** What is printed for an error: its name and message, and with `verbose` its stack and causes. */
export function describeError(error: unknown, verbose: boolean): string {
  if (!(error instanceof Error)) return `error: ${String(error)}`;
  const name = error.name === "error" ? error.constructor.name : error.name; // as the driver of PostgreSQL has it
  const line = `error: ${name}: ${error.message}`;
  if (!verbose) return line;
  const causes: string[] = [];
  for (let cause = error.cause, n = 0; cause !== undefined && n < 10; n++) {
    causes.push(`caused by ${cause instanceof Error ? cause.stack : String(cause)}`);
    cause = (cause as Error).cause;
  }
  return [line, framesOf(error.stack).join("\n"), ...causes].join("\n");
}

/** The frames of a stack that are in the user's own files. */
export function userFrames(stack: string | undefined): readonly string[] {
  const own = fileURLToPath(new URL("..", import.meta.url));
  return framesOf(stack).filter((frame) => !/node:|node_modules/.test(frame) && !frame.includes(own));
}

function framesOf(stack = ""): readonly string[] {
  return stack.split("\n").filter((line) => /^\s+at /.test(line));
}
