import { dirname } from "node:path";
import type { Config } from "../config/config.ts";
import { prepare, startEngine } from "../engine.ts";
import { createLog, type Log } from "../observe/log.ts";
import { createMetrics, type Metrics } from "../observe/metrics.ts";
import type { Database } from "../store/postgres/database.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { readMigrationState } from "../store/postgres/migrate.ts";
import { describeError } from "./errors.ts";
import { loadConfig } from "./loadConfig.ts";
import { print } from "./print.ts";
import {
  describePlace,
  loadEnv,
  type OpenedDatabase,
  openProjectDatabase,
  projectAt,
  requireMigrated,
} from "./project.ts";
import { readableLine } from "./readableLog.ts";
import { watchSources } from "./sourceWatch.ts";
import { listenForStop, untilAborted } from "./stopSignal.ts";

/** `fencepost start`: production, until SIGINT or SIGTERM. JSON logs; nothing is taken over or rebuilt in silence. */
export async function start(options: { readonly config: string; readonly embedded: boolean }): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  const { config } = await loadConfig(project.configPath);
  const log = createLog("info");
  const opened = await openProjectDatabase(project, { kind: "named", embedded: options.embedded }, (line) =>
    log.info({}, line),
  );
  let engine: Engine | undefined;
  try {
    const { database, place } = opened;
    requireMigrated(await readMigrationState(database), place, { emptyIsFine: true });
    engine = await begin({ database, config, log, signal });
    if (!engine) return;
    await warnOfInsecureWebhooks(database, log);
    log.info({ database: describePlace(place), stream: config.source.chain.stream }, "fencepost is running");
    await untilAborted(signal);
    log.info({}, "fencepost stops");
  } finally {
    await engine?.stop();
    await opened.close();
  }
}

/** Webhooks of development in a production database are never sent to; this says so before anybody wonders. */
async function warnOfInsecureWebhooks(database: Database, log: Log): Promise<void> {
  const webhooks = await postgresStore(database).listWebhooks();
  const insecure = webhooks.filter(({ active, url }) => active && new URL(url).protocol !== "https:");
  if (insecure.length === 0) return;
  const ids = insecure.map(({ id }) => id);
  log.warn({ webhooks: ids }, "start sends to https only: the deliveries of these webhooks will fail");
}

/**
 * `fencepost dev`: until SIGINT or SIGTERM, with the embedded database unless `DATABASE_URL` is set. Each save of a
 * source file loads the config anew and restarts the engine in this process; what cannot be loaded leaves the
 * running engine as it is.
 */
export async function dev(options: { readonly config: string; readonly verbose: boolean }): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  loadEnv(project);
  let loaded = await loadConfig(project.configPath);
  const log = createLog("info", { write: (line) => print(readableLine(line)) });
  const sources = await watchSources(dirname(project.configPath), (error) =>
    log.warn({ err: error }, "a folder cannot be watched: changes in it are not seen"),
  );
  let opened: OpenedDatabase | undefined;
  let engine: Engine | undefined;
  try {
    opened = await openProjectDatabase(project, { kind: "own" }, print);
    const { database, place } = opened;
    const shared = { database, log, metrics: reportingMetrics(log), signal };
    engine = await begin({ ...shared, config: loaded.config, rebuild: new Set() });
    if (!engine) return;
    print(`database: ${describePlace(place)}`);
    if (place.kind === "embedded") print(`          ${database.url}`);
    print(`fencepost is running: ${describeConfig(loaded.config)}. It reloads on save; Ctrl-C stops it.`);

    for (;;) {
      sources.alsoFolderOf(loaded.files);
      await sources.changed(signal);
      if (signal.aborted) break;
      try {
        const next = await loadConfig(project.configPath);
        await engine?.stop();
        engine = undefined;
        const rebuild = changedHandlers(loaded.config, next.config);
        engine = await begin({ ...shared, config: next.config, rebuild });
        if (!engine) continue; // told to stop meanwhile
        loaded = next;
        const anew = rebuild.size === 0 ? "" : ` (built anew: ${[...rebuild].join(", ")})`;
        print(`reloaded: ${describeConfig(next.config)}${anew}`);
      } catch (error) {
        print(describeError(error, options.verbose));
        print(engine ? "The config before it goes on." : "Nothing runs until the next save.");
      }
    }
    print("fencepost stops");
  } finally {
    sources.close();
    await engine?.stop();
    await opened?.close();
  }
}

type Engine = Awaited<ReturnType<typeof startEngine>>;

/** Prepares the database and starts the engine. Undefined where `signal` came first. */
async function begin(options: {
  readonly database: Database;
  readonly config: Config;
  readonly log: Log;
  readonly metrics?: Metrics;
  readonly signal: AbortSignal;
  /** Development only: adopt what changed, and build these projections anew in any case. */
  readonly rebuild?: ReadonlySet<string>;
}): Promise<Engine | undefined> {
  const { database, config, log, metrics, signal, rebuild } = options;
  const isDev = rebuild !== undefined;
  try {
    await prepare(
      { database, config },
      { adopt: isDev, rebuildChanged: isDev, signal, ...(rebuild && { rebuild }) },
    );
  } catch (error) {
    if (signal.aborted) return undefined;
    throw error;
  }
  return startEngine({
    database,
    config,
    log,
    ...(metrics && { metrics }),
    deliver: { allowInsecure: isDev },
  });
}

/** Names of projections whose handlers read otherwise than before: their rows are built anew. */
function changedHandlers(before: Config, after: Config): ReadonlySet<string> {
  const textOf = ({ on }: Config["projections"][number]): string =>
    Object.entries(on)
      .map(([key, handler]) => `${key} ${String(handler)}`)
      .sort()
      .join("\n");
  const texts = new Map(before.projections.map((projection) => [projection.name, textOf(projection)]));
  return new Set(
    after.projections
      .filter((projection) => texts.has(projection.name) && texts.get(projection.name) !== textOf(projection))
      .map((projection) => projection.name),
  );
}

/** Tells in the log what the stages do, for people who watch. */
function reportingMetrics(log: Log): Metrics {
  const metrics = createMetrics();
  return {
    ...metrics,
    stored(stream, stored) {
      metrics.stored(stream, stored);
      if (stored.events > 0) log.info({ stream, ...stored }, "events stored");
    },
    projected(projection, done) {
      metrics.projected(projection, done);
      if (done.events > 0)
        log.info({ projection, events: done.events, messages: done.messages }, "events projected");
    },
    dispatched(report) {
      metrics.dispatched(report);
      if (report.deliveries > 0) log.info(report, "deliveries made");
    },
    attemptEnded(outcome) {
      metrics.attemptEnded(outcome);
      log.info({ outcome }, "attempt ended");
    },
  };
}

function describeConfig({ source, projections }: Config): string {
  return `${source.chain.stream}, ${projections.map(({ name, version }) => `${name} v${version}`).join(", ")}`;
}
