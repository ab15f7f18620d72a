import { readFile } from "node:fs/promises";

/**
 * Names a running process so that a later one with a reused id is told apart: `"<pid> <start time>"`, where the
 * start time is known on Linux only. `undefined` if it is gone; a zombie is gone.
 */
export async function processIdentity(pid: number): Promise<string | undefined> {
  if (process.platform === "linux") {
    const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
    // The command's name comes first in brackets and may hold anything; the fields follow the last bracket.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const [state, start] = [fields[0], fields[19]];
    return start === undefined || state === "Z" || state === "X" ? undefined : `${pid} ${start}`;
  }
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return undefined;
  }
  return `${pid} 0`;
}

/** Whether the process that was given this identity still runs. */
export async function isRunning(identity: string): Promise<boolean> {
  const pid = Number.parseInt(identity, 10);
  return pid > 0 && (await processIdentity(pid)) === identity;
}

/** This process's own identity. */
export async function ownIdentity(): Promise<string> {
  return (await processIdentity(process.pid)) ?? `${process.pid} 0`;
}
