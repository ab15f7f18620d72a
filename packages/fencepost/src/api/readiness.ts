import { setTimeout as sleep } from "node:timers/promises";
import type { Log } from "../observe/log.ts";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import type { Database } from "../store/postgres/database.ts";
import { readMigrationState } from "../store/postgres/migrate.ts";
import { readProjections, readStreams } from "../store/postgres/status.ts";
import type { WebhookId } from "../store/webhook.ts";

export interface ReadinessOptions {
  readonly database: Database;
  readonly store: Pick<DeliveryStore, "findWebhook">;
  readonly log: Log;
}

/** A store that takes longer than this to answer does not, in milliseconds. */
const ANSWER_WITHIN_MS = 5_000;

/** What keeps this installation from its work; none: it is ready. Never throws. */
export async function notReadyBecause(options: ReadinessOptions): Promise<readonly string[]> {
  const late = new AbortController();
  try {
    return await Promise.race([readReasons(options), rejectAfter(ANSWER_WITHIN_MS, late.signal)]);
  } catch (error) {
    // Whoever asks need not have a key: where a store is, is for the log.
    options.log.warn({ err: error }, "not ready: a store does not answer");
    return ["A store does not answer; the log of the server has the error."];
  } finally {
    late.abort();
  }
}

async function rejectAfter(ms: number, signal: AbortSignal): Promise<never> {
  await sleep(ms, undefined, { signal });
  throw new Error(`There was no answer within ${ms} ms.`);
}

async function readReasons({ database, store }: ReadinessOptions): Promise<readonly string[]> {
  const { pending } = await readMigrationState(database);
  if (pending.length > 0) return [`The database lacks the migrations ${pending.join(", ")}.`];
  const streams = await readStreams(database);
  const projections = await readProjections(database);
  await store.findWebhook("wh_0" as WebhookId); // of nobody: only whether it answers
  return [
    ...streams.flatMap(({ stream, halted, gaps }) => [
      ...(halted === null ? [] : [`The stream ${stream} has halted: ${halted}.`]),
      ...gaps
        .filter(({ accepted }) => !accepted)
        .map(
          ({ fromLedger, toLedger }) =>
            `The stream ${stream} lacks the ledgers ${fromLedger} to ${toLedger}.`,
        ),
    ]),
    ...projections.flatMap(({ name, version, stopped }) =>
      stopped ? [`The projection ${name} v${version} has stopped at ${stopped.token}.`] : [],
    ),
  ];
}
