import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { open, readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

/** What the launchpad's config and the engine read from the environment. */
export type FencepostEnv = Readonly<Record<"DATABASE_URL" | "STELLAR_RPC_URL", string>>;

export interface Worker {
  readonly pid: number;
  /** Throws if it has ended without being asked to. */
  check(): Promise<void>;
  /** The end of what all workers of this run have logged. */
  logTail(): Promise<string>;
  /** kill -9. */
  kill(): Promise<void>;
  /** Lets it finish what it has begun. Throws if it does not end well. */
  stop(): Promise<void>;
}

const STOP_LIMIT_MS = 15_000;
const READY_LIMIT_MS = 60_000;

/** The worker ended, or did not start; the last lines of its log say why. */
class WorkerFailedError extends Error {
  override readonly name = "WorkerFailedError";

  constructor(what: string, logTail: string) {
    super(`The worker ${what}. ${logTail}`);
  }
}

/** Starts Fencepost in a process of its own, and waits until it runs. What it logs is appended to `logFile`. */
export async function startWorker(env: FencepostEnv, logFile: string, signal: AbortSignal): Promise<Worker> {
  const log = await open(logFile, "a");
  let child: ChildProcess;
  try {
    child = fork(fileURLToPath(new URL("worker.ts", import.meta.url)), {
      env: { ...process.env, ...env },
      stdio: ["ignore", log.fd, log.fd, "ipc"],
    });
  } finally {
    await log.close();
  }
  const logTail = async () =>
    `The end of the worker's log:\n${(await readFile(logFile, "utf8")).slice(-2_000)}`;
  const failed = async (what: string) => new WorkerFailedError(what, await logTail());
  let ended: string | undefined;
  let asked = false;
  const end = new Promise<void>((resolve) => {
    child.once("error", (error) => {
      ended ??= error.message;
      resolve();
    });
    child.once("exit", (code, killed) => {
      ended ??= killed ?? `code ${code}`;
      resolve();
    });
  });

  async function kill(): Promise<void> {
    asked = true;
    child.kill("SIGKILL");
    await end;
  }

  const limit = AbortSignal.any([signal, AbortSignal.timeout(READY_LIMIT_MS)]);
  try {
    await Promise.race([end, once(child, "message", { signal: limit })]);
  } catch {
    await kill();
    signal.throwIfAborted();
  }
  if (ended !== undefined) throw await failed(`did not start (${ended})`);
  return {
    pid: child.pid ?? 0,
    async check() {
      if (ended !== undefined && !asked) throw await failed(`ended by itself (${ended})`);
    },
    logTail,
    kill,
    async stop() {
      if (ended !== undefined) return;
      asked = true;
      child.disconnect();
      const timer = setTimeout(() => child.kill("SIGKILL"), STOP_LIMIT_MS);
      await end;
      clearTimeout(timer);
      if (ended !== "code 0") throw await failed(`did not stop cleanly (${ended})`);
    },
  };
}
