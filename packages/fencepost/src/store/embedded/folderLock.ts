import { randomUUID } from "node:crypto";
import { link, mkdir, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { EmbeddedPostgresBusyError } from "./errors.ts";
import { isRunning, ownIdentity } from "./processIdentity.ts";

const POLL_MS = 25;

/**
 * Runs `work` while no other process, and no other call in this one, runs its own under the same folder. A lock
 * whose holder died is taken over. Throws {@link EmbeddedPostgresBusyError} after `waitMs`.
 *
 * The lock is the file with the highest number in `<folder>/lock`: it names its holder, and is empty once
 * released. Taking it means linking the next number, which only one process can do; a stale lock is thus never
 * deleted under the feet of a newer holder, and the highest file is never deleted at all.
 */
export async function withFolderLock<T>(folder: string, waitMs: number, work: () => Promise<T>): Promise<T> {
  const locks = join(folder, "lock");
  await mkdir(locks, { recursive: true });
  const ticket = join(locks, `ticket-${randomUUID()}`);
  await writeFile(ticket, await ownIdentity());
  let held: string | undefined;
  try {
    const deadline = performance.now() + waitMs;
    for (;;) {
      const highest = await highestLock(locks);
      const holder = highest === 0 ? "" : await contentOf(join(locks, String(highest)));
      if (holder !== undefined && (holder === "" || !(await isRunning(holder)))) {
        held = await take(locks, ticket, highest + 1);
        if (held) break;
      }
      if (performance.now() > deadline) throw new EmbeddedPostgresBusyError(folder, holder ?? "?", waitMs);
      await sleep(POLL_MS);
    }
  } finally {
    await rm(ticket, { force: true });
  }
  try {
    return await work();
  } finally {
    await truncate(held).catch(() => {}); // the whole folder may be gone; if not, our death frees the lock
  }
}

async function take(locks: string, ticket: string, number: number): Promise<string | undefined> {
  const file = join(locks, String(number));
  try {
    await link(ticket, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return undefined;
    throw error;
  }
  if ((await highestLock(locks)) > number) {
    // This number had been used and tidied away by a later holder since we looked.
    await rm(file, { force: true });
    return undefined;
  }
  for (const name of await readdir(locks)) {
    if (Number(name) < number) await rm(join(locks, name), { force: true });
  }
  return file;
}

async function highestLock(locks: string): Promise<number> {
  let highest = 0;
  for (const name of await readdir(locks)) if (Number(name) > highest) highest = Number(name);
  return highest;
}

async function contentOf(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined; // a later holder tidied it away
    throw error;
  }
}
