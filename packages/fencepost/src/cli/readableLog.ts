import { userFrames } from "./errors.ts";

const NOT_SHOWN = new Set(["level", "time", "msg", "err"]);
const LEVELS: Readonly<Record<number, string>> = { 20: "debug", 30: "info", 40: "warn", 50: "error" };

/**
 * One record of the log, a JSON line, as a line for people: `14:03:12 warn  step failed  loop="deliver"`, and below
 * it what an error says and where in the user's files it came from. `time` is shown as the machine's own time of day.
 */
export function readableLine(json: string): string {
  const record = JSON.parse(json) as { level: number; time: string; msg: string; err?: LoggedError };
  const time = new Date(record.time).toTimeString().slice(0, 8);
  const fields = Object.entries(record)
    .filter(([name]) => !NOT_SHOWN.has(name))
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  const level = (LEVELS[record.level] ?? String(record.level)).padEnd(5);
  const line = [`${time} ${level} ${record.msg}`, ...fields].join("  ");
  const { err } = record;
  if (!err) return line;
  return [line, `  ${err.type}: ${err.message}`, ...userFrames(err.stack)].join("\n");
}

interface LoggedError {
  readonly type: string;
  readonly message: string;
  readonly stack: string;
}
