import { dirname } from "node:path";
import { type Config, readHttpSettings } from "../config/config.ts";
import { type Engine, prepare, startEngine } from "../engine.ts";
import { createLog, type Log } from "../observe/log.ts";
import { createMetrics, type Metrics } from "../observe/metrics.ts";
import type { Database } from "../store/postgres/database.ts";
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
import { secretsKey } from "./secretsKey.ts";
import { watchSources } from "./sourceWatch.ts";
import { listenForStop, untilAborted } from "./stopSignal.ts";

/** What the command line says about HTTP; before what the config says. */
export interface HttpOptions {
  readonly port?: number;
  readonly host?: string;
}

/** `fencepost start`: production, until SIGINT or SIGTERM. JSON logs; nothing is taken over or rebuilt in silence. */
export async function start(
  options: { readonly config: string; readonly embedded: boolean } & HttpOptions,
): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  const { config } = await loadConfig(project.configPath);
  const log = createLog("info");
  const opened = await openProjectDatabase(project, { kind: "named", embedded: options.embedded }, (line) =>
    log.info({}, line),
  );
  let running: Running | undefined;
  try {
    const { database, place } = opened;
    requireMigrated(await readMigrationState(database), place, { emptyIsFine: true });
    if (!secretsKey()) {
      log.warn({}, "FENCEPOST_SECRETS_KEY is not set: the secrets of webhooks are stored in plain text");
    }
    running = await begin({ database, config, log, metrics: createMetrics(), http: options, signal });
    if (!running) return;
    await warnOfInsecureWebhooks(running.engine, log);
    const stream = config.source?.chain.stream;
    log.info({ database: describePlace(place), stream, http: running.url }, "fencepost is running");
    await untilAborted(signal);
    log.info({}, "fencepost stops");
  } finally {
    await running?.stop();
    await opened.close();
  }
}

/** Webhooks of development in a production database are never sent to; this says so before anybody wonders. */
async function warnOfInsecureWebhooks({ dispatcher }: Engine, log: Log): Promise<void> {
  const webhooks = await dispatcher.listWebhooks();
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
export async function dev(
  options: { readonly config: string; readonly verbose: boolean } & HttpOptions,
): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  loadEnv(project);
  let loaded = await loadConfig(project.configPath);
  const log = createLog("info", { write: (line) => print(readableLine(line)) });
  const sources = await watchSources(dirname(project.configPath), (error) =>
    log.warn({ err: error }, "a folder cannot be watched: changes in it are not seen"),
  );
  let opened: OpenedDatabase | undefined;
  let running: Running | undefined;
  try {
    opened = await openProjectDatabase(project, { kind: "own" }, print);
    const { database, place } = opened;
    const shared = { database, log, metrics: reportingMetrics(log), http: options, signal };
    running = await begin({ ...shared, config: loaded.config, rebuild: new Set() });
    if (!running) return;
    print(`database: ${describePlace(place)}`);
    if (place.kind === "embedded") print(`          ${database.url}`);
    if (running.url) print(describeHttp(running.url));
    print(`fencepost is running: ${describeConfig(loaded.config)}. It reloads on save; Ctrl-C stops it.`);

    for (;;) {
      sources.alsoFolderOf(loaded.files);
      await sources.changed(signal);
      if (signal.aborted) break;
      try {
        const next = await loadConfig(project.configPath);
        const urlBefore = running?.url;
        await running?.stop();
        running = undefined;
        const rebuild = changedHandlers(loaded.config, next.config);
        running = await begin({ ...shared, config: next.config, rebuild });
        if (!running) continue; // told to stop meanwhile
        loaded = next;
        if (running.url && running.url !== urlBefore) print(describeHttp(running.url));
        const anew = rebuild.size === 0 ? "" : ` (built anew: ${[...rebuild].join(", ")})`;
        print(`reloaded: ${describeConfig(next.config)}${anew}`);
      } catch (error) {
        print(describeError(error, options.verbose));
        print(running ? "The config before it goes on." : "Nothing runs until the next save.");
      }
    }
    print("fencepost stops");
  } finally {
    sources.close();
    await running?.stop();
    await opened?.close();
  }
}

interface Running {
  readonly engine: Engine;
  /** Of the HTTP interface, where it is served. */
  readonly url: string | undefined;
  stop(): Promise<void>;
}

/** Prepares the database, starts the engine, and serves HTTP where told to. Undefined where `signal` came first. */
async function begin(options: {
  readonly database: Database;
  readonly config: Config;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly http: HttpOptions;
  readonly signal: AbortSignal;
  /** Development only: adopt what changed, and build these projections anew in any case. */
  readonly rebuild?: ReadonlySet<string>;
}): Promise<Running | undefined> {
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
  const engine = await startEngine({
    database,
    config,
    log,
    metrics,
    secretsKey: secretsKey(),
    deliver: { allowInsecure: isDev },
  });
  try {
    const served = await serveHttp(engine, options);
    return {
      engine,
      url: served?.url,
      async stop() {
        await served?.close();
        await engine.stop();
      },
    };
  } catch (error) {
    await engine.stop();
    throw error;
  }
}

/** Serves the HTTP interface where the command line or the config says so: the former counts. */
async function serveHttp(
  engine: Engine,
  { database, config, log, metrics, http }: Parameters<typeof begin>[0],
): Promise<{ readonly url: string; close(): Promise<void> } | undefined> {
  const port = http.port ?? config.http?.port;
  if (port === undefined) return undefined;
  const host = http.host ?? config.http?.host;
  const settings = readHttpSettings({ port, ...(host !== undefined && { host }) });
  const { serveApi } = await import("../api/serveApi.ts");
  const { dispatcher, deliveries, seal } = engine;
  const { source } = config;
  return serveApi({ dispatcher, deliveries, seal, source, database, metrics, log, ...settings });
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

function describeHttp(url: string): string {
  return `http:     ${url} (see ${url}/docs)`;
}

function describeConfig({ source, projections }: Config): string {
  const names = projections.map(({ name, version }) => `${name} v${version}`);
  return [...(source ? [source.chain.stream] : []), ...names].join(", ");
}
