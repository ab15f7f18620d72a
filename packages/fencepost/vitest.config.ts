import { defineProject } from "vitest/config";

export default defineProject({
  test: {
    name: "fencepost",
    include: ["src/**/*.test.ts"],
    globalSetup: ["src/__tests__/support/postgresServer.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
