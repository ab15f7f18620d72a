import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { waitUntil } from "./waitUntil.ts";

const MAIN = fileURLToPath(new URL("../../cli/main.ts", import.meta.url));

export interface CliOptions {
  /** The folder of the project. */
  readonly cwd: string;
  /** What the environment has beside the rest of ours; no url of a database or a node unless given. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface CliResult {
  /** 128 and the number of the signal where one ended it, as a shell says it. */
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface CliProcess {
  readonly child: ChildProcess;
  /** What it wrote to standard output so far. */
  stdout(): string;
  /** Waits until the output matches, from `after` characters on. Throws, with the output, if it ends without. */
  waitFor(pattern: RegExp, options?: { readonly after?: number }): Promise<void>;
  /** Sends a signal and waits for the end. */
  stop(signal?: NodeJS.Signals): Promise<CliResult>;
  readonly ended: Promise<CliResult>;
}

/** Runs `fencepost` with these arguments, in a real process. */
export function startCli(args: readonly string[], { cwd, env = {} }: CliOptions): CliProcess {
  const { DATABASE_URL: _, STELLAR_RPC_URL: __, NODE_OPTIONS: ___, ...rest } = process.env;
  const child = spawn(process.execPath, [MAIN, ...args], {
    cwd,
    env: { ...rest, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
  });
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
  });
  const ended = once(child, "close").then(([code, signal]): CliResult => {
    const number = signal === "SIGKILL" ? 9 : signal === "SIGINT" ? 2 : 15;
    return { code: (code as number | null) ?? 128 + number, stdout, stderr };
  });
  return {
    child,
    ended,
    stdout: () => stdout,
    async waitFor(pattern, { after = 0 } = {}) {
      await waitUntil(
        () => {
          if (pattern.test(stdout.slice(after))) return true;
          if (child.exitCode === null && child.signalCode === null) return false;
          throw new Error(`fencepost ${args.join(" ")} ended before ${pattern}:\n${stdout}\n${stderr}`);
        },
        { what: `fencepost ${args.join(" ")} writes ${pattern}`, timeoutMs: 40_000 },
      ).catch((error: Error) => {
        throw new Error(`${error.message}\n${stdout}\n${stderr}`);
      });
    },
    stop(signal = "SIGTERM") {
      child.kill(signal);
      return ended;
    },
  };
}

/** Runs `fencepost` to its end. */
export function runCli(args: readonly string[], options: CliOptions): Promise<CliResult> {
  return startCli(args, options).ended;
}
