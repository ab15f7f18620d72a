// npm run kills: 30 times kill -9 at random moments of a run of 2,000 events. FENCEPOST_SEED repeats one.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const { status } = spawnSync(
  "vitest",
  ["run", "src/__tests__/integration/crashes.integration.test.ts", "-t", "times loses nothing"],
  {
    cwd: fileURLToPath(new URL("../packages/fencepost", import.meta.url)),
    env: { FENCEPOST_KILLS: "30", FENCEPOST_KILL_EVENTS: "2000", ...process.env },
    stdio: "inherit",
    shell: process.platform === "win32",
  },
);
process.exitCode = status ?? 1;
