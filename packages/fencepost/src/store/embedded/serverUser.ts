import { execFile } from "node:child_process";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { EmbeddedPostgresUnavailableError } from "./errors.ts";

const run = promisify(execFile);
const LIMIT_MS = 10_000;

/** The account that the server runs under when this process is root, which PostgreSQL refuses. */
export interface ServerUser {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
}

/**
 * `postgres`, else `nobody`, when this process is root; otherwise `undefined`: the server runs as we do. Never
 * adds a user. Throws {@link EmbeddedPostgresUnavailableError} where neither exists.
 */
export async function serverUser(): Promise<ServerUser | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  for (const name of ["postgres", "nobody"]) {
    try {
      const [uid, gid] = await Promise.all([id("-u", name), id("-g", name)]);
      if (uid > 0) return { name, uid, gid };
    } catch {} // no such user: try the next
  }
  throw new EmbeddedPostgresUnavailableError(
    "PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as",
  );
}

async function id(flag: string, name: string): Promise<number> {
  const { stdout } = await run("id", [flag, name], { timeout: LIMIT_MS });
  return Number(stdout.trim());
}

/** The first folder on the way down to `path`, itself included, that the user may not enter. */
export async function firstClosedFolder(path: string, user: ServerUser): Promise<string | undefined> {
  const folders = [path];
  while (folders[0] !== undefined && dirname(folders[0]) !== folders[0]) folders.unshift(dirname(folders[0]));
  // The kernel is asked as that user, since mode bits do not tell of access lists.
  const script = 'for d; do [ -x "$d" ] || { printf %s "$d"; exit 0; }; done';
  const { stdout } = await run("/bin/sh", ["-c", script, "sh", ...folders], {
    uid: user.uid,
    gid: user.gid,
    cwd: "/",
    timeout: LIMIT_MS,
  });
  return stdout || undefined;
}
