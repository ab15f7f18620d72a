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

/** What keeps this installation from its work; none: it is ready. Never throws. */
export async function notReadyBecause({
  database,
  store,
  log,
}: ReadinessOptions): Promise<readonly string[]> {
  try {
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
  } catch (error) {
    // Whoever asks need not have a key: where the database is, is for the log.
    log.warn({ err: error }, "not ready: a store does not answer");
    return ["A store does not answer; the log of the server has the error."];
  }
}
