import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { waitUntil } from "./waitUntil.ts";

export interface EngineProcessOptions {
  readonly databaseUrl: string;
  readonly rpcUrl: string;
  /** Version of the pools projection; 1 unless given. */
  readonly version?: number;
  readonly leaseMs?: number;
  readonly timeoutMs?: number;
  readonly pageLimit?: number;
}

export interface EngineProcess {
  readonly pid: number;
  /** What it logged so far: one object a line. */
  readonly log: readonly Record<string, unknown>[];
  signal(signal: NodeJS.Signals): void;
  /** SIGKILL, and waits until it is gone. */
  kill(): Promise<void>;
  /** SIGTERM, and waits for its clean end. */
  stop(): Promise<void>;
}

const WORKER = fileURLToPath(new URL("./engineWorker.ts", import.meta.url));

/** Starts the engine in a process of its own and waits until it runs. */
export async function startEngineProcess(options: EngineProcessOptions): Promise<EngineProcess> {
  const child: ChildProcess = spawn(process.execPath, [WORKER, JSON.stringify(options)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { pid, stdout } = child;
  if (pid === undefined || !stdout) throw new Error("The engine process did not start.");
  const log: Record<string, unknown>[] = [];
  createInterface({ input: stdout }).on("line", (line) => log.push(JSON.parse(line)));
  const isGone = (): boolean => child.exitCode !== null || child.signalCode !== null;

  async function end(signal: NodeJS.Signals): Promise<void> {
    if (isGone()) return;
    const exit = once(child, "exit");
    child.kill(signal);
    await exit;
  }
  try {
    await waitUntil(
      () => {
        if (isGone()) throw new Error(`The engine process ended with ${child.exitCode ?? child.signalCode}.`);
        return log.some((line) => line["msg"] === "ready");
      },
      { what: "the engine process is ready", timeoutMs: 60_000 },
    );
  } catch (error) {
    await end("SIGKILL");
    throw error;
  }
  return {
    pid,
    log,
    signal: (signal) => child.kill(signal),
    kill: () => end("SIGKILL"),
    stop: () => end("SIGTERM"),
  };
}
