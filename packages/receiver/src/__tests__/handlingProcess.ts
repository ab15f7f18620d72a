import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/**
 * A process of its own that handles `evt_1`: it has written its effect, and waits for ever before it ends the
 * transaction. `kind` is a script of this folder.
 */
export async function startHandlingProcess(kind: "sqlite" | "redis", where: string) {
  const script = fileURLToPath(new URL(`./processes/${kind}.ts`, import.meta.url));
  const child = spawn(process.execPath, [script, where], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(child, "exit");
  const lines = createInterface({ input: child.stdout });
  await Promise.race([
    once(lines, "line"),
    exited.then(() => Promise.reject(new Error(`The ${kind} process ended before it handled the event.`))),
  ]);
  return {
    kill: async () => {
      child.kill("SIGKILL");
      await exited;
    },
  };
}
