import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";

export interface ScriptProcess {
  readonly child: ChildProcess;
  readonly pid: number;
  /** The next whole line of its standard output. Throws if it ends without one. */
  nextLine(): Promise<string>;
}

/** Runs a module's text in a Node process of its own, in a process group of its own; stderr is ours. */
export function startScript(module: string, args: readonly string[]): ScriptProcess {
  const flags = ["--input-type=module-typescript", "--eval", module, "--", ...args];
  const child = spawn(process.execPath, flags, { detached: true, stdio: ["pipe", "pipe", "inherit"] });
  const { pid } = child;
  if (pid === undefined) throw new Error("Node did not start.");
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const nextLine = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`Process ${pid} ended without the line that was waited for.`);
    return value;
  };
  return { child, pid, nextLine };
}
