import { type Config, streamOf, watchedContracts } from "./config/config.ts";
import { discoveryOf } from "./discovery.ts";
import { createDispatcher, type Dispatcher, type DispatcherDeliverOptions } from "./dispatcher.ts";
import { createIngest } from "./ingest/ingestStep.ts";
import { registerStream } from "./ingest/registerStream.ts";
import { startSecondOpinionLoop } from "./ingest/secondOpinionLoop.ts";
import { startLeader } from "./lease/leader.ts";
import type { Log } from "./observe/log.ts";
import type { Metrics } from "./observe/metrics.ts";
import { type OpenedStore, openStore } from "./openStore.ts";
import { projectStep } from "./project/projectStep.ts";
import { registerProjection } from "./project/registerProjection.ts";
import type { Source } from "./source/source.ts";
import type { Database } from "./store/postgres/database.ts";
import { type HolderConnection, openHolder } from "./store/postgres/leases.ts";
import { migrate } from "./store/postgres/migrate.ts";
import { readSecretsKeys, type Seal } from "./store/sealedSecrets.ts";
import { type Decoder, loadDecoder } from "./xdr/decode.ts";

export interface EngineOptions {
  readonly database: Database;
  readonly config: Config;
  readonly log: Log;
  readonly metrics?: Metrics;
  /** Delays between attempts, in milliseconds, of webhooks without their own. */
  readonly retryScheduleMs?: readonly number[];
  /** What seals the secrets of webhooks, as `FENCEPOST_SECRETS_KEY` has it; they are plain text unless given. */
  readonly secretsKey?: string | undefined;
  /** Before what the config says. */
  readonly deliver?: DispatcherDeliverOptions & {
    readonly allowInsecure?: boolean;
    readonly allowNetworks?: readonly string[];
  };
}

export interface Engine {
  /** What is asked of it is sent by this process. */
  readonly dispatcher: Dispatcher<never>;
  readonly deliveries: OpenedStore;
  readonly seal: Seal;
  /** In the order data flows: what is stored is still projected, sent and recorded. */
  stop(): Promise<void>;
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
  const { source } = config;
  if (source) {
    const requests = watchedContracts(config).map(({ id, startLedger }) => ({ contractId: id, startLedger }));
    const { rules } = discoveryOf(config);
    await registerStream(database, source, requests, { adopt, signal, rules });
  }
  for (const projection of config.projections) {
    await registerProjection(database, projection, {
      stream: streamOf(config, projection),
      rebuildChanged,
      rebuild: rebuild?.has(projection.name) ?? false,
    });
  }
}

/**
 * Runs every stage in this process until `stop()`. The database must have been prepared. Throws `LeaseTooShortError`
 * `InvalidSecretsKeyError`, and what a store on Redis does that cannot be used.
 */
export async function startEngine(options: EngineOptions): Promise<Engine> {
  const { config, log, metrics } = options;
  const seal = readSecretsKeys(options.secretsKey);
  const deliveries = await openStore({ ...options, seal });
  try {
    const {
      allowNetworks = [],
      allowInsecure = false,
      ...deliver
    } = { ...config.deliver, ...options.deliver };
    const dispatcher = createDispatcher<never>({
      store: deliveries.store,
      log,
      allowNetworks,
      allowInsecure,
      retentionMs: config.retentionMs,
      deliver: { ...deliver, ...(metrics && { onOutcome: metrics.attemptEnded }) },
      ...(metrics && { onDispatched: metrics.dispatched }),
    });
    const pipeline = await startPipeline(options, dispatcher);
    dispatcher.start();
    return {
      dispatcher,
      deliveries,
      seal,
      async stop() {
        await pipeline.stop();
        await dispatcher.stop();
        await deliveries.close();
      },
    };
  } catch (error) {
    await deliveries.close();
    throw error;
  }
}

/** Ingests what a chain gives, and projects. */
async function startPipeline(
  options: EngineOptions,
  dispatcher: Pick<Dispatcher<never>, "wake">,
): Promise<{ stop(): Promise<void> }> {
  const { database, config, log, metrics } = options;
  const { source, leaseMs } = config;
  const decoder = await loadDecoder();
  const holder = openHolder(database.url);
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
              if (done.messages > 0) dispatcher.wake();
            },
          },
          term,
        ),
    }),
  );
  const ingesting =
    source &&
    startIngesting({ ...options, source, decoder, holder }, () => {
      for (const loop of projecting) loop.wake();
    });
  return {
    async stop() {
      await ingesting?.stop();
      await Promise.all(projecting.map((loop) => loop.stop()));
      await holder.close();
    },
  };
}

function startIngesting(
  options: EngineOptions & {
    readonly source: Source;
    readonly decoder: Decoder;
    readonly holder: HolderConnection;
  },
  onEvents: () => void,
): { stop(): Promise<void> } {
  const { database, config, source, decoder, holder, log, metrics } = options;
  const { leaseMs, onGap, secondOpinion } = config;
  const { stream } = source.chain;
  let ledAt = Number.NEGATIVE_INFINITY;
  let stopped = false;
  source.observe?.((event) => {
    if (stopped) return; // the source may outlive the engine
    metrics?.nodeChanged(stream, event);
    if (event.kind === "aside") log.warn({ stream, ...event }, "node set aside");
    else log.info({ stream, node: event.node }, "node is asked again");
  });
  const ingest = createIngest({
    database,
    source,
    decoder,
    leaseMs,
    onGap,
    log,
    discovery: discoveryOf(config),
    onStored(stored) {
      metrics?.stored(stream, stored);
      if (stored.events > 0) onEvents();
    },
    onGapFound: (gap) => metrics?.gapFound(stream, gap),
  });
  const ingesting = startLeader({
    database,
    holder,
    key: { kind: "stream", stream },
    leaseMs,
    idleMs: source.pollMs,
    log,
    step(term, signal) {
      ledAt = performance.now();
      return ingest.step(term, signal);
    },
  });
  const asking =
    secondOpinion &&
    startSecondOpinionLoop({
      ...secondOpinion,
      database,
      source,
      log,
      leads: () => performance.now() - ledAt < source.pollMs + leaseMs,
      ...(metrics && { onOpinion: metrics.opinionGiven }),
    });
  return {
    async stop() {
      await asking?.stop();
      await ingesting.stop();
      stopped = true;
    },
  };
}
