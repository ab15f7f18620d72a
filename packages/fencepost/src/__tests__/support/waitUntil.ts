import { setTimeout as sleep } from "node:timers/promises";

const POLL_MS = 20;

/**
 * Waits until `condition` is true, asking every 20 ms; `timeoutMs` is 20,000 by default. Throws an error that
 * names `what` was waited for. An error of the condition itself is thrown at once.
 */
export async function waitUntil(
  condition: () => boolean | Promise<boolean>,
  { what, timeoutMs = 20_000 }: { what: string; timeoutMs?: number },
): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`Waited ${timeoutMs} ms in vain until ${what}.`);
    await sleep(POLL_MS);
  }
}
