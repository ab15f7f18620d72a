import { randomUUID } from "node:crypto";
import { chmod, cp, mkdir, open, readdir, readFile, rename, rm, stat, symlink } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, relative } from "node:path";
import { EmbeddedPostgresFolderError } from "./errors.ts";
import type { PlatformPackage } from "./platformPackage.ts";
import { isRunning, ownIdentity } from "./processIdentity.ts";
import { firstClosedFolder, type ServerUser } from "./serverUser.ts";

/** PostgreSQL's programs, where the user that runs them can reach them. */
export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
}

/**
 * The programs of a package from the cache, copied there the first time: one folder for each version and
 * platform under `$XDG_CACHE_HOME/fencepost` or `~/.cache/fencepost`, and for root, whose own folders another
 * user cannot enter, `/var/cache/fencepost`. Any number of processes may do so at once.
 * Throws {@link EmbeddedPostgresFolderError}.
 */
export async function cachedBinaries(
  source: PlatformPackage,
  user: ServerUser | undefined,
  log: (line: string) => void,
): Promise<Binaries> {
  const cache = await cacheFolder(user);
  const folder = join(cache, `postgres-${source.version}-${source.name.split("/").at(-1)}`);
  if (!(await exists(folder))) {
    log(`copying PostgreSQL ${source.version} to ${folder}, once`);
    try {
      await copyOnce(source.folder, cache, folder);
    } catch (error) {
      throw new EmbeddedPostgresFolderError(
        cache,
        `PostgreSQL could not be copied there (${(error as Error).message})`,
        "Make room or permit it, or set XDG_CACHE_HOME to another folder.",
      );
    }
  }
  return { initdb: join(folder, "bin", "initdb"), postgres: join(folder, "bin", "postgres") };
}

async function cacheFolder(user: ServerUser | undefined): Promise<string> {
  const chosen = process.env["XDG_CACHE_HOME"];
  const folders = chosen ? [join(chosen, "fencepost")] : [];
  folders.push(user ? "/var/cache/fencepost" : join(homedir(), ".cache", "fencepost"));
  let refused = "";
  for (const folder of folders) {
    try {
      await mkdir(folder, { recursive: true });
    } catch (error) {
      refused = (error as Error).message;
      continue;
    }
    const closed = user && (await firstClosedFolder(folder, user));
    if (!closed) return folder;
    refused = `the user ${user.name}, as whom it runs, may not enter ${closed}`;
  }
  throw new EmbeddedPostgresFolderError(
    folders.join(" or "),
    refused,
    "Set XDG_CACHE_HOME to a folder that can be written and entered.",
  );
}

async function copyOnce(source: string, cache: string, folder: string): Promise<void> {
  await removeAbandoned(cache);
  const partial = join(cache, `partial-${(await ownIdentity()).replace(" ", "-")}-${randomUUID()}`);
  try {
    await cp(join(source, "native"), partial, { recursive: true, verbatimSymlinks: true });
    await makeLinks(partial);
    await openToAllAndSync(partial);
    await rename(partial, folder);
  } catch (error) {
    await rm(partial, { recursive: true, force: true });
    if (!(await exists(folder))) throw error; // another process was first: its copy is as good
  }
}

/** npm packs no links; the package lists them for an install script, which often may not run. */
async function makeLinks(folder: string): Promise<void> {
  const list = await readFile(join(folder, "pg-symlinks.json"), "utf8").catch(() => "[]");
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const link = join(folder, relative("native", target));
    await rm(link, { force: true });
    await symlink(relative(dirname(target), source), link);
  }
}

/** The copy keeps the modes of an install that may have been made under a strict umask. */
async function openToAllAndSync(folder: string): Promise<void> {
  await chmod(folder, 0o755);
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isDirectory()) await chmod(path, 0o755);
    if (!entry.isFile()) continue;
    const file = await open(path);
    try {
      const { mode } = await file.stat();
      await file.chmod(mode & 0o100 ? 0o755 : 0o644);
      // A copy that the machine's crash cut short would otherwise look complete for ever.
      await file.sync();
    } finally {
      await file.close();
    }
  }
}

async function removeAbandoned(cache: string): Promise<void> {
  for (const name of await readdir(cache)) {
    const owner = /^partial-(\d+-[^-]+)-/.exec(name)?.[1]?.replace("-", " ");
    if (owner && !(await isRunning(owner))) await rm(join(cache, name), { recursive: true, force: true });
  }
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
