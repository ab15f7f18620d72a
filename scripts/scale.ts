// npm run scale: 10,000 webhooks, and what a claim reads while three million deliveries wait.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const { status } = spawnSync("vitest", ["run", "src/__tests__/integration/scale.integration.test.ts"], {
  cwd: fileURLToPath(new URL("../packages/fencepost", import.meta.url)),
  env: { FENCEPOST_WAITING: "3000000", ...process.env },
  stdio: "inherit",
  shell: process.platform === "win32",
});
process.exitCode = status ?? 1;
