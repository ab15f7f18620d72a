import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const SCRIPTS = {
  sqlite: new URL("./processes/sqlite.ts", import.meta.url),
  redis: new URL("./processes/redis.ts", import.meta.url),
};

/**
 * A process of its own that handles `evt_1`: it has written its effect, and waits for ever before it ends the
 * transaction. `where` is the file of SQLite, or the socket of Redis.
 */
export async function startHandlingProcess(kind: keyof typeof SCRIPTS, where: string) {
  const child = spawn(process.execPath, [fileURLToPath(SCRIPTS[kind]), where], {
    stdio: ["ignore", "pipe", "inherit"],
  });
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
