/** Where a worker of the deliver stage is when it is killed, in the order of an attempt. */
export const CRASH_POINTS = [
  "before the attempt is on record",
  "after the attempt is on record",
  "after the bytes left",
  "after the response",
  "before the outcome is committed",
] as const;
export type CrashPoint = (typeof CRASH_POINTS)[number];

/** What a worker process is told, as JSON. */
export interface WorkerOptions {
  readonly store: "postgres" | "redis";
  readonly url: string;
  readonly point: CrashPoint;
  readonly retryScheduleMs: readonly number[];
  readonly timeoutMs: number;
  readonly leaseMs: number;
}
