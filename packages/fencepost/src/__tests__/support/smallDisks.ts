// Disks that really fill up: memory file systems, mounted where only one process and its children see them.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, open, rm, statfs } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

interface SmallDisk {
  /** Where the process that has it mounted sees it. */
  readonly path: string;
  /** Where everybody else does. */
  readonly folder: string;
  /** Writes a file until there is no room left, or only so much. */
  fill(leavingBytes?: number): Promise<void>;
  /** Removes that file. */
  free(): Promise<void>;
}

export interface SmallDisks<Name extends string> {
  readonly disks: Readonly<Record<Name, SmallDisk>>;
  /** Writes a line to the process, and reads the one that it answers. */
  ask(line: string): Promise<string>;
  /** Ends the input of the process, waits for its end, and removes everything. */
  close(): Promise<void>;
}

const LIMIT_MS = 10_000;
const CHUNK_BYTES = 1 << 20;

/** Why no disk can be mounted here; undefined where it can. Says so once in the output of the tests. */
export async function noSmallDisks(): Promise<string | undefined> {
  const [program, ...args] = mounting([{ path: "/mnt", bytes: 4096 }], ["test", "-w", "/mnt"]);
  try {
    await promisify(execFile)(program, args, { timeout: LIMIT_MS });
    return undefined;
  } catch (error) {
    const why = `no disk can be mounted here: ${(error as Error).message.trim().split("\n").at(-1)}`;
    process.stderr.write(`The tests of a full disk are skipped: ${why}\n`);
    return why;
  }
}

/** Starts a process that has disks of these sizes, in bytes, and answers each line with one; `cat` unless given. */
export async function startSmallDisks<Name extends string>(
  sizes: Readonly<Record<Name, number>>,
  command: readonly string[] = ["cat"],
): Promise<SmallDisks<Name>> {
  const root = await mkdtemp(join(tmpdir(), "fencepost-disks-"));
  await chmod(root, 0o755); // as root the server runs as another user, who must get in
  const mounts = Object.entries<number>(sizes).map(([name, bytes]) => ({
    name,
    path: join(root, name),
    bytes,
  }));
  for (const { path } of mounts) await mkdir(path);
  const [program, ...args] = mounting(mounts, command);
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  const gone = once(child, "exit");
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const ask = async (line: string): Promise<string> => {
    child.stdin.write(`${line}\n`);
    const { value, done } = await lines.next();
    if (done) throw new Error("The process that has the disks ended.");
    return value;
  };
  await ask(""); // from then on they are there
  const disks = mounts.map(({ name, path }) => [name, smallDisk(path, `/proc/${child.pid}/root${path}`)]);
  return {
    disks: Object.fromEntries(disks),
    ask,
    async close() {
      child.stdin.end();
      await gone;
      await rm(root, { recursive: true, force: true });
    },
  };
}

/** A command that runs `command` with the disks in place. They are gone with its last process. */
function mounting(
  disks: readonly { readonly path: string; readonly bytes: number }[],
  command: readonly string[],
): [string, ...string[]] {
  const mounts = disks.map(
    ({ bytes }, i) => `mount -t tmpfs -o size=${bytes},mode=0755 none "$${i + 1}" && `,
  );
  const script = `${mounts.join("")} shift ${disks.length} && exec "$@"`;
  const [uid, gid] = [process.getuid?.() ?? 0, process.getgid?.() ?? 0];
  // Without root the mounts are made as the root of a user namespace, and the command runs as who we are again.
  const as = uid === 0 ? [] : ["unshare", "-U", `--map-user=${uid}`, `--map-group=${gid}`];
  const paths = disks.map(({ path }) => path);
  return ["unshare", uid === 0 ? "-m" : "-Urm", "sh", "-c", script, "sh", ...paths, ...as, ...command];
}

function smallDisk(path: string, folder: string): SmallDisk {
  const ballast = join(folder, "ballast");
  const room = async (): Promise<number> => {
    const { bavail, bsize } = await statfs(folder);
    return bavail * bsize;
  };
  return {
    path,
    folder,
    async fill(leavingBytes = 0) {
      const file = await open(ballast, "a");
      try {
        for (let left = await room(); left > leavingBytes; left = await room()) {
          await file.write(Buffer.alloc(Math.min(left - leavingBytes, CHUNK_BYTES)));
        }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
      } finally {
        await file.close();
      }
    },
    free: () => rm(ballast),
  };
}
