import type { Dispatcher } from "../dispatcher.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { OpenedStore } from "../openStore.ts";
import { startLoop } from "../runner/runner.ts";
import type { Source } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import { pruneIdempotentRequests } from "../store/postgres/idempotentRequests.ts";
import type { Seal } from "../store/sealedSecrets.ts";
import { createApi } from "./app.ts";
import { type HttpServer, serve } from "./server.ts";

export interface ServeApiOptions {
  readonly dispatcher: Dispatcher<never>;
  readonly deliveries: OpenedStore;
  readonly database: Database;
  readonly metrics: Metrics;
  readonly log: Log;
  readonly seal: Seal;
  readonly source: Source | null;
  readonly host: string;
  readonly port: number;
}

const PRUNE_EVERY_MS = 60_000;
const PRUNED_AT_ONCE = 1_000;

/** Serves the HTTP interface, and forgets old idempotency keys, until `close()`. */
export async function serveApi(options: ServeApiOptions): Promise<HttpServer> {
  const { dispatcher, deliveries, database, metrics, log, seal, source, host, port } = options;
  const { store } = deliveries;
  const app = createApi({ dispatcher, store, database, metrics, log, seal, source });
  const server = await serve({ fetch: app.fetch, host, port, log });
  const pruning = startLoop({
    name: "idempotency keys",
    idleMs: PRUNE_EVERY_MS,
    log,
    step: async () =>
      (await pruneIdempotentRequests(database, PRUNED_AT_ONCE)) === PRUNED_AT_ONCE ? "progress" : "idle",
  });
  return {
    url: server.url,
    async close() {
      await Promise.all([server.close(), pruning.stop()]);
    },
  };
}
