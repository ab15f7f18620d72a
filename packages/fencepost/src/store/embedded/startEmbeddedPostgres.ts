import { randomBytes, randomUUID } from "node:crypto";
import { chown, mkdir, open, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { cachedBinaries } from "./cachedBinaries.ts";
import { EmbeddedPostgresFolderError, EmbeddedPostgresVersionError } from "./errors.ts";
import { withFolderLock } from "./folderLock.ts";
import { currentPlatform, findPlatformPackage } from "./platformPackage.ts";
import { isRunning, ownIdentity } from "./processIdentity.ts";
import { adoptServer, initialiseData, type Server, spawnServer, stopServer } from "./server.ts";
import { firstClosedFolder, type ServerUser, serverUser } from "./serverUser.ts";

/** Longer than the longest start or stop that the holder of the lock may be in. */
const LOCK_WAIT_MS = 200_000;

export interface EmbeddedPostgresOptions {
  /** The folder that holds everything: `data`, `password`, `server.log`, `users`, `lock`. Made if missing. */
  readonly dataDir: string;
  /** Called with one line for each thing worth telling: copied, initialised, started, adopted, stopped. */
  readonly log?: (line: string) => void;
  /** Connections the server takes, 100 by default. A server that is adopted keeps its own limit. */
  readonly maxConnections?: number;
}

export interface EmbeddedPostgres {
  /** Connects to the database `fencepost` as its owner, over loopback. */
  readonly url: string;
  readonly dataDir: string;
  /** Whether the server was already running. */
  readonly adopted: boolean;
  /**
   * Ends this caller's use of the server, and the server itself unless another process or caller uses it. May be
   * called again. Throws {@link EmbeddedPostgresStopError} if the server is still there after a minute.
   */
  stop(): Promise<void>;
}

/**
 * Starts a PostgreSQL of our own on a folder, or adopts the one that runs there. It outlives this process if that
 * is killed, is not reached by Ctrl-C, listens on loopback only, under a random password, and never answers a
 * commit before it is on disk. Callers on one folder share one server; the last to `stop()` stops it.
 *
 * Throws {@link EmbeddedPostgresUnavailableError}, {@link EmbeddedPostgresFolderError},
 * {@link EmbeddedPostgresVersionError}, {@link EmbeddedPostgresStartError} or {@link EmbeddedPostgresBusyError}.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const log = options.log ?? (() => {});
  const dataDir = resolve(options.dataDir);
  const source = await findPlatformPackage(currentPlatform());
  const user = await serverUser();
  const binaries = await cachedBinaries(source, user, log);
  const start = async (): Promise<EmbeddedPostgres> => {
    const password = await readOrMakePassword(dataDir, user);
    const found = await dataVersion(dataDir);
    const needed = source.version.split(".")[0] ?? "";
    if (found !== undefined && found !== needed) {
      throw new EmbeddedPostgresVersionError(dataDir, found, needed);
    }
    if (found === undefined) {
      log(`making a new database in ${dataDir}`);
      await initialiseData({ dataDir, binaries, user });
    }
    const adopted = await adoptServer(dataDir, password);
    const server: Server =
      adopted ??
      (await spawnServer({
        dataDir,
        binaries,
        user,
        password,
        maxConnections: options.maxConnections ?? 100,
      }));
    log(`${adopted ? "adopted" : "started"} PostgreSQL in ${dataDir}, process ${server.pid}`);

    const use = join(dataDir, "users", `${process.pid}-${randomUUID()}`);
    await writeFile(use, await ownIdentity());
    let stopping: Promise<void> | undefined;
    return {
      url: server.url,
      dataDir,
      adopted: adopted !== undefined,
      stop: () => {
        stopping ??= leave(dataDir, use, log);
        return stopping;
      },
    };
  };
  return namingRefusals(dataDir, async () => {
    await mkdir(join(dataDir, "users"), { recursive: true });
    await refuseClosedFolder(dataDir, user);
    return await withFolderLock(dataDir, LOCK_WAIT_MS, start);
  });
}

async function leave(dataDir: string, use: string, log: (line: string) => void): Promise<void> {
  const stop = async () => {
    await rm(use, { force: true });
    if (await isUsed(dataDir)) return;
    await stopServer(dataDir);
    log(`stopped PostgreSQL in ${dataDir}`);
  };
  await namingRefusals(dataDir, () => withFolderLock(dataDir, LOCK_WAIT_MS, stop));
}

/** Turns what the file system refuses into an error that says what to do. */
async function namingRefusals<T>(dataDir: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { code = "", message } = error as NodeJS.ErrnoException;
    if (code === "ENOSPC" || code === "EDQUOT") {
      throw new EmbeddedPostgresFolderError(dataDir, message, "Free some space and try again.");
    }
    if (["EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST"].includes(code)) {
      const next = "Choose a folder that can be written, or run as the user who made this one.";
      throw new EmbeddedPostgresFolderError(dataDir, message, next);
    }
    throw error;
  }
}

async function isUsed(dataDir: string): Promise<boolean> {
  const users = join(dataDir, "users");
  for (const name of await readdir(users)) {
    if (await isRunning(await readFile(join(users, name), "utf8"))) return true;
    await rm(join(users, name), { force: true });
  }
  return false;
}

async function refuseClosedFolder(dataDir: string, user: ServerUser | undefined): Promise<void> {
  const closed = user && (await firstClosedFolder(dataDir, user));
  if (closed) {
    throw new EmbeddedPostgresFolderError(
      dataDir,
      `as root it runs as the user ${user.name}, who may not enter ${closed}`,
      `Choose a folder outside it, let that user in (chmod o+x ${closed}), or do not run as root.`,
    );
  }
}

/** The password is there before the data is: data in place thus always has its password. */
async function readOrMakePassword(dataDir: string, user: ServerUser | undefined): Promise<string> {
  const file = join(dataDir, "password");
  const kept = await readIfThere(file);
  if (kept !== undefined) return kept;
  if ((await dataVersion(dataDir)) !== undefined) {
    throw new EmbeddedPostgresFolderError(
      dataDir,
      "it holds data but its file `password` is gone",
      "Put the file back, or move the folder away to begin anew.",
    );
  }
  const password = randomBytes(24).toString("hex");
  const fresh = `${file}.new`;
  const handle = await open(fresh, "w", 0o600);
  try {
    await handle.writeFile(password);
    await handle.sync();
  } finally {
    await handle.close();
  }
  if (user) await chown(fresh, user.uid, user.gid);
  await rename(fresh, file);
  return password;
}

/** The major version of the data in the folder, if there is any. */
async function dataVersion(dataDir: string): Promise<string | undefined> {
  return (await readIfThere(join(dataDir, "data", "PG_VERSION")))?.trim();
}

async function readIfThere(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
