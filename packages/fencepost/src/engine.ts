import { type Config, watchedContracts } from "./config/config.ts";
import { type DeliverOptions, startDeliverLoop } from "./deliver/deliverLoop.ts";
import { startDispatchLoop } from "./dispatch/dispatchLoop.ts";
import { ingestStep } from "./ingest/ingestStep.ts";
import { registerStream } from "./ingest/registerStream.ts";
import { startLeader } from "./lease/leader.ts";
import type { Log } from "./observe/log.ts";
import type { Metrics } from "./observe/metrics.ts";
import { projectStep } from "./project/projectStep.ts";
import { registerProjection } from "./project/registerProjection.ts";
import type { Loop } from "./runner/runner.ts";
import type { Database } from "./store/postgres/database.ts";
import { postgresStore } from "./store/postgres/postgresStore.ts";
import { openHolder } from "./store/postgres/leases.ts";
import { migrate } from "./store/postgres/migrate.ts";
import { loadDecoder } from "./xdr/decode.ts";

export interface EngineOptions {
  readonly database: Database;
  readonly config: Config;
  readonly log: Log;
  readonly metrics?: Metrics;
  /** Delays between attempts, in milliseconds. */
  readonly retryScheduleMs?: readonly number[];
  readonly deliver?: Pick<
    DeliverOptions,
    | "timeoutMs"
    | "leaseMs"
    | "maxInFlight"
    | "connectionsPerOrigin"
    | "pollMs"
    | "allowInsecure"
    | "allowNetworks"
  >;
}

export interface PrepareOptions {
  /** Take over a changed filter set, and build changed projections anew, without asking. */
  readonly adopt: boolean;
  readonly rebuildChanged: boolean;
  /** Projections to build anew in any case, by name: their handlers changed, which no fingerprint tells. */
  readonly rebuild?: ReadonlySet<string>;
  readonly signal: AbortSignal;
}

/** Brings the database to what the config says: schema, stream, projections. Safe from several processes at once. */
export async function prepare(
  { database, config }: Pick<EngineOptions, "database" | "config">,
  { adopt, rebuildChanged, rebuild, signal }: PrepareOptions,
): Promise<void> {
  await migrate(database);
  const requests = watchedContracts(config).map(({ id, startLedger }) => ({ contractId: id, startLedger }));
  await registerStream(database, config.source, requests, { adopt, signal });
  for (const projection of config.projections) {
    await registerProjection(database, projection, {
      stream: config.source.chain.stream,
      rebuildChanged,
      rebuild: rebuild?.has(projection.name) ?? false,
    });
  }
}

/** Runs every stage in this process until `stop()`. The database must have been prepared. */
export async function startEngine(options: EngineOptions): Promise<{ stop(): Promise<void> }> {
  const { database, config, log, metrics, retryScheduleMs, deliver } = options;
  const { source, leaseMs, onGap } = config;
  const decoder = await loadDecoder();
  const holder = openHolder(database.url);
  const store = postgresStore(database, retryScheduleMs ? { retryScheduleMs } : {});

  const delivering = startDeliverLoop({
    store,
    log,
    ...deliver,
    ...(metrics && { onOutcome: metrics.attemptEnded }),
  });
  const dispatching = startDispatchLoop({
    store,
    log,
    onDispatched(report) {
      metrics?.dispatched(report);
      if (report.deliveries > 0) delivering.wake();
    },
  });
  const projecting = config.projections.map((projection) =>
    startLeader({
      database,
      holder,
      key: { kind: "projection", name: projection.name, version: projection.version },
      leaseMs,
      idleMs: 500,
      log,
      step: (term) =>
        projectStep(
          {
            database,
            projection,
            decoder,
            leaseMs,
            log,
            onProjected(done) {
              metrics?.projected(projection.name, done);
              if (done.messages > 0) dispatching.wake();
            },
          },
          term,
        ),
    }),
  );
  const ingesting = startLeader({
    database,
    holder,
    key: { kind: "stream", stream: source.chain.stream },
    leaseMs,
    idleMs: source.pollMs,
    log,
    step: (term, signal) =>
      ingestStep(
        {
          database,
          source,
          decoder,
          leaseMs,
          onGap,
          log,
          onStored(stored) {
            metrics?.stored(source.chain.stream, stored);
            if (stored.events > 0) for (const loop of projecting) loop.wake();
          },
        },
        term,
        signal,
      ),
  });

  return {
    async stop() {
      // In the order data flows: what is stored is still projected, sent and recorded by those after it.
      const stages: readonly (readonly Loop[])[] = [[ingesting], projecting, [dispatching], [delivering]];
      for (const loops of stages) await Promise.all(loops.map((loop) => loop.stop()));
      await holder.close();
    },
  };
}
