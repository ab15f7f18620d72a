import { defineProject } from "vitest/config";

export default defineProject({
  test: { name: "launchpad", include: ["demo/**/*.test.ts"], testTimeout: 240_000 },
});
