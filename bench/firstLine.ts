import type { ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";

/** The first line that a process prints: where it listens. Throws where it ends without one. */
export async function firstLine(child: ChildProcess): Promise<string> {
  if (!child.stdout) throw new Error("The process has no output.");
  for await (const line of createInterface({ input: child.stdout })) return line;
  throw new Error("The process ended without a line.");
}
