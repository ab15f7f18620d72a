import type { OpenAPIHono } from "@hono/zod-openapi";
import type { AuditReport } from "../audit/report.ts";
import type { Dispatcher } from "../dispatcher.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import type { Database } from "../store/postgres/database.ts";
import type { LedgerRange } from "../store/postgres/gaps.ts";
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
  /** Audits ledgers of the stream; left out where this process has no source. */
  readonly audit?: (range: LedgerRange, signal: AbortSignal) => Promise<AuditReport>;
}

export type ApiApp = OpenAPIHono<IdempotencyEnv>;
