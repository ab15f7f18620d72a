import { pino } from "pino";

/** One line an event of interest: fields first, then a fixed message. No secrets; payloads at debug only. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export type LogLevel = "silent" | "error" | "warn" | "info" | "debug";

/** JSON lines on standard output, or on what takes them instead: one call of `write` a line. */
export function createLog(
  level: LogLevel = "info",
  destination?: { readonly write: (line: string) => void },
): Log {
  const options = { level, base: null, timestamp: pino.stdTimeFunctions.isoTime };
  return destination ? pino(options, destination) : pino(options);
}
