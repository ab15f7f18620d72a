import { expect, it } from "vitest";
import { createLog } from "../observe/log.ts";
import { readableLine } from "./readableLog.ts";

function lineOf(write: (log: ReturnType<typeof createLog>) => void): string {
  const lines: string[] = [];
  write(createLog("debug", { write: (line) => lines.push(readableLine(line)) }));
  expect(lines).toHaveLength(1);
  return lines[0] ?? "";
}

it("shows level, message and fields of a record in one line", () => {
  expect(lineOf((log) => log.info({ stage: "ingest testnet", term: 7n }, "term begins"))).toMatch(
    /^\d\d:\d\d:\d\d info {2}term begins {2}stage="ingest testnet" {2}term=7$/,
  );
  expect(lineOf((log) => log.warn({}, "term lost"))).toMatch(/^\d\d:\d\d:\d\d warn {2}term lost$/);
});

it("shows below it what an error says, and only the user's own frames", () => {
  const error = new RangeError("too much");
  error.stack = [
    "RangeError: too much",
    "    at handler (/app/projections/pools.ts:4:2)",
    "    at run (/app/node_modules/drizzle-orm/x.js:1:1)",
    "    at process.processTicksAndRejections (node:internal/process/task_queues:104:5)",
    `    at step (${import.meta.url}:1:1)`,
  ].join("\n");
  expect(
    lineOf((log) => log.error({ err: error }, "step failed"))
      .split("\n")
      .slice(1),
  ).toEqual(["  RangeError: too much", "    at handler (/app/projections/pools.ts:4:2)"]);
});
