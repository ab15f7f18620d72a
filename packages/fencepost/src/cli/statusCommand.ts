import { openStore } from "../openStore.ts";
import { readMigrationState } from "../store/postgres/migrate.ts";
import {
  type Leader,
  type ProjectionStatus,
  readStatus,
  type Status,
  type StreamStatus,
  type WebhookStatus,
} from "../store/postgres/status.ts";
import { alignedLines } from "./alignedLines.ts";
import { loadConfig } from "./loadConfig.ts";
import { print, printJson } from "./print.ts";
import {
  type DatabasePlace,
  describePlace,
  loadEnv,
  type OpenedDatabase,
  openProjectDatabase,
  type Project,
  projectAt,
} from "./project.ts";

/** `fencepost status`: which database is in use and where, and how every stage stands. */
export async function status(options: { readonly config: string; readonly json: boolean }): Promise<void> {
  const project = projectAt(options.config);
  loadEnv(project);
  const opened = await openProjectDatabase(project, { kind: "existing" });
  try {
    const { database, place } = opened;
    const migrations = await readMigrationState(database);
    const read = migrations.pending.length === 0 ? await statusOf(opened, project) : null;
    if (options.json) printJson({ database: jsonPlace(place), migrations, ...read });
    else
      print(`database: ${describePlace(place)}`, ...(read ? statusLines(read) : unmigratedLines(migrations)));
  } finally {
    await opened.close();
  }
}

/** Without a config that can be loaded, what is in PostgreSQL is shown all the same. */
async function statusOf({ database }: OpenedDatabase, project: Project): Promise<Status> {
  const loaded = await loadConfig(project.configPath).catch(() => undefined);
  const deliveries = await openStore({ database, config: loaded?.config ?? { deliveries: "postgres" } });
  return readStatus(database, deliveries.store).finally(deliveries.close);
}

function jsonPlace(place: DatabasePlace): object {
  return place.kind === "embedded" ? place : { kind: place.kind, where: describePlace(place) };
}

function unmigratedLines({
  applied,
  pending,
}: {
  applied: number;
  pending: readonly string[];
}): readonly string[] {
  return applied === 0
    ? ['It has no Fencepost schema yet: run "fencepost migrate", or "fencepost dev" for development.']
    : [`It lacks the migrations ${pending.join(", ")}: run "fencepost migrate".`];
}

/** A status for people. */
function statusLines(status: Status): readonly string[] {
  const { streams, projections, deliveries, webhooks, outbox, undecodable } = status;
  const counts = Object.entries(deliveries).map(([state, n]) => `${n} ${state}`);
  const needPerson = webhooks.some(({ needsPerson }) => needsPerson > 0);
  return [
    "",
    ...table(
      "streams",
      ["stream", "next ledger", "latest", "lag", "seq", "term", "led by", "state"],
      streams.map(streamRow),
    ),
    ...streams.flatMap(streamNotes),
    "",
    ...table(
      "projections",
      ["name", "version", "state", "cursor", "of", "term", "led by", "quarantined", "skipped"],
      projections.map(projectionRow),
    ),
    ...projections.flatMap(stopNotes),
    "",
    ...table(
      "webhooks",
      ["id", "url", "types", "waiting", "needs a person", "state"],
      webhooks.map(webhookRow),
    ),
    ...(needPerson ? ["  See them with: fencepost deliveries list <webhook> --needs-person"] : []),
    "",
    `outbox: ${outbox} messages   deliveries: ${counts.join(", ")}   undecodable events: ${undecodable}`,
  ];
}

function table(
  name: string,
  head: readonly string[],
  rows: readonly (readonly string[])[],
): readonly string[] {
  return rows.length === 0
    ? [`${name}: none`]
    : [name, ...alignedLines([head, ...rows]).map((line) => `  ${line}`)];
}

function streamRow(stream: StreamStatus): readonly string[] {
  return [
    stream.stream,
    String(stream.nextLedger ?? "-"),
    String(stream.latestLedger ?? "-"),
    String(stream.lag ?? "-"),
    String(stream.seq),
    String(stream.term),
    stream.nextLedger === null ? "-" : leader(stream.leader),
    stream.halted === null ? "running" : `HALTED: ${stream.halted}`,
  ];
}

function streamNotes({ stream, gaps, conflicts, catchingUp }: StreamStatus): readonly string[] {
  return [
    ...gaps.map(
      ({ fromLedger, toLedger, accepted }) =>
        `  ${stream}: ledgers ${fromLedger} to ${toLedger} are missing${accepted ? ", as accepted" : ""}`,
    ),
    ...(conflicts > 0
      ? [`  ${stream}: ${conflicts} events came again with other content: fencepost.conflicts`]
      : []),
    ...(catchingUp > 0 ? [`  ${stream}: ${catchingUp} added contracts still read their past`] : []),
  ];
}

function projectionRow(projection: ProjectionStatus): readonly string[] {
  const { name, version, state, cursor, seq, term, quarantined, skipped, stopped } = projection;
  const numbers = [version, stopped ? `${state}, STOPPED` : state, cursor, seq, term];
  return [name, ...numbers.map(String), leader(projection.leader), String(quarantined), String(skipped)];
}

function stopNotes({ name, stopped }: ProjectionStatus): readonly string[] {
  if (!stopped) return [];
  const { event, token, at, error } = stopped;
  return [
    `  ${name} stopped at ${event} (${token}) at ${at.toISOString()}:`,
    ...error.split("\n").map((line) => `    ${line}`),
    `  Mend the handler, or: fencepost skip ${name} ${token} --reason "…"`,
  ];
}

function webhookRow(webhook: WebhookStatus): readonly string[] {
  const { id, url, types, waiting, needsPerson, active, disabledReason } = webhook;
  const state = active ? "active" : `DISABLED: ${disabledReason ?? "by hand"}`;
  return [
    id,
    url,
    types.join(","),
    String(waiting),
    needsPerson === 100 ? "100+" : String(needsPerson),
    state,
  ];
}

function leader(found: Leader | null): string {
  return found ? `backend ${found.pid}` : "nobody";
}
