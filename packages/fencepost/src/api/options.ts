import type { OpenAPIHono } from "@hono/zod-openapi";
import type { Dispatcher } from "../dispatcher.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Source } from "../source/source.ts";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import type { Database } from "../store/postgres/database.ts";
import type { Seal } from "../store/sealedSecrets.ts";
import type { IdempotencyEnv } from "./idempotency.ts";

export interface ApiOptions {
  readonly dispatcher: Dispatcher<never>;
  readonly store: DeliveryStore<never>;
  readonly database: Database;
  readonly metrics: Metrics;
  readonly log: Log;
  /** For answers that are kept: they may hold new secrets. */
  readonly seal: Seal;
  /** What an audit reads again; null: there are no audits. */
  readonly source: Source | null;
}

export type ApiApp = OpenAPIHono<IdempotencyEnv>;
