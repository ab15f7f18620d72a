import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    projects: ["packages/*", "examples/*"],
    // Many tests wait for processes, servers and leases: one worker would leave the second core idle.
    maxWorkers: Math.max(2, availableParallelism()),
  },
});
