// A worker of the deliver stage, in a process of its own, that stops dead at one point of an attempt and says "at".
// Only what a crash would do is left to do then: to kill it.
import { parseArgs } from "node:util";
import { Redis } from "ioredis";
import { startDeliverLoop } from "../../deliver/deliverLoop.ts";
import { createLog } from "../../observe/log.ts";
import type { DeliveryStore } from "../../store/deliveryStore.ts";
import { openDatabase } from "../../store/postgres/database.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";
import { redisStore } from "../../store/redis/redisStore.ts";
import type { CrashPoint, WorkerOptions } from "./crashPoints.ts";

const { positionals } = parseArgs({ allowPositionals: true });
const options = JSON.parse(positionals[0] ?? "") as WorkerOptions;
const { store: name, url, point, retryScheduleMs, timeoutMs, leaseMs } = options;

const at = (): void => {
  process.stdout.write("at\n");
};
const stopAt = (): Promise<never> => {
  at();
  return new Promise(() => {});
};

function stoppingAt(store: DeliveryStore<never>, where: CrashPoint): DeliveryStore<never> {
  switch (where) {
    case "before the attempt is on record":
      return { ...store, recordAttempts: stopAt };
    case "after the attempt is on record":
      return {
        ...store,
        async recordAttempts(...parameters) {
          await store.recordAttempts(...parameters);
          return stopAt();
        },
      };
    case "after the bytes left":
      return store; // the endpoint tells
    case "after the response":
      return { ...store, finish: stopAt };
    case "before the outcome is committed":
      return {
        ...store,
        finish(...parameters) {
          const finishing = store.finish(...parameters);
          at();
          return finishing;
        },
      };
  }
}

const store: DeliveryStore<never> =
  name === "postgres"
    ? (postgresStore(openDatabase(url), { retryScheduleMs }) as DeliveryStore<never>)
    : redisStore(new Redis(url), { retryScheduleMs });
startDeliverLoop({
  store: stoppingAt(store, point),
  log: createLog("error"),
  timeoutMs,
  leaseMs,
  pollMs: 50,
  allowInsecure: true,
});
