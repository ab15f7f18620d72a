import { defineProject } from "vitest/config";

export default defineProject({
  test: {
    name: "receiver",
    include: ["src/**/*.test.ts"],
    globalSetup: ["../fencepost/src/__tests__/support/postgresServer.ts"],
    testTimeout: 30_000,
    hookTimeout: 30_000,
  },
});
