import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { FencingToken } from "@fencepost/token";
import type pg from "pg";
import type { FencepostEnv } from "./workerProcess.ts";

const CLI = fileURLToPath(new URL("cli/main.ts", import.meta.resolve("fencepost")));
const LAUNCHPAD = fileURLToPath(new URL("..", import.meta.url));
const LIMIT_MS = 30_000;

/** The event with the most to tell: sent to both webhooks, with an attempt of unknown outcome, many attempts. */
export async function mostTravelled(fencepost: pg.Pool): Promise<FencingToken | undefined> {
  const { rows } = await fencepost.query<{ token: FencingToken }>(
    `SELECT m.token
     FROM fencepost.messages m
     JOIN fencepost.deliveries d ON d.event_id = m.event_id
     JOIN fencepost.attempts a ON a.delivery_id = d.id
     GROUP BY m.token
     ORDER BY count(DISTINCT d.webhook_id) DESC, bool_or(a.outcome = 'unknown') DESC, count(*) DESC, m.token
     LIMIT 1`,
  );
  return rows[0]?.token;
}

/** Runs `fencepost trace <token>` in the launchpad's folder, as one would at a shell. Returns what it prints. */
export async function traceEvent(
  env: FencepostEnv,
  token: FencingToken,
  signal: AbortSignal,
): Promise<string> {
  const { stdout } = await promisify(execFile)(process.execPath, [CLI, "trace", token], {
    cwd: LAUNCHPAD,
    env: { ...process.env, ...env },
    timeout: LIMIT_MS,
    signal,
  });
  return stdout.trimEnd();
}
