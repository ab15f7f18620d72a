import type { Config } from "../config/config.ts";
import { contractOf } from "../config/projection.ts";
import { openStore } from "../openStore.ts";
import { declaredName, eventName } from "../project/decodeEvent.ts";
import type { Attempt } from "../store/deliveryStore.ts";
import {
  readTrace,
  type Trace,
  type TracedDelivery,
  type TracedEvent,
  type TracedMessage,
  type TracedProjection,
} from "../store/postgres/trace.ts";
import { type Decoder, loadDecoder } from "../xdr/decode.ts";
import { NotOnRecordError } from "./errors.ts";
import { loadConfig } from "./loadConfig.ts";
import { print, printJson } from "./print.ts";
import { withProjectDatabase } from "./project.ts";

/** What a projection did with an event: `applied` where the config shows that it has a handler for it. */
type ShownProjection = Omit<TracedProjection, "stage"> & {
  readonly stage: TracedProjection["stage"] | "applied";
};

type ShownTrace = Omit<Trace, "projections"> & {
  /** The name in the first topic; null where there is none, or no event. */
  readonly name: string | null;
  readonly projections: readonly ShownProjection[];
};

/** `fencepost trace`: one event through every stage, by token, event id or delivery id. */
export async function trace(
  id: string,
  options: { readonly config: string; readonly json: boolean },
): Promise<void> {
  await withProjectDatabase(options.config, async ({ database }, project) => {
    // Without a config that can be loaded, what is in PostgreSQL is told all the same.
    const config = await loadConfig(project.configPath).catch(() => undefined);
    const { store, close } = await openStore({
      database,
      config: config?.config ?? { deliveries: "postgres" },
    });
    const found = await readTrace(database, store, id).finally(close);
    if (!found) {
      throw new NotOnRecordError(
        `Nothing is on record under ${JSON.stringify(id)}. Give a token, an event id or a delivery id (dlv_…).`,
      );
    }
    const shown = showTrace(found, await loadDecoder(), config?.config);
    if (options.json) printJson(shown);
    else print(...traceLines(shown));
  });
}

/** Tells which projections applied an event. Those of the config that have no handler for it are left out. */
function showTrace(found: Trace, decoder: Decoder, config: Config | undefined): ShownTrace {
  const event = found.event?.undecodable === null ? found.event : null;
  const produced = event?.type === "produced" ? event.topics[0] : undefined;
  const projections = found.projections.flatMap((projection): readonly ShownProjection[] => {
    const declared = config?.projections.find((other) => other.name === projection.name);
    if (!declared) return [projection];
    const own = event && contractOf(declared, event);
    const handled = own && (produced ?? declaredName(event, own.contract.events, decoder));
    if (!handled || !declared.on[`${own.alias}:${handled}`]) return [];
    return [projection.stage === "passed" ? { ...projection, stage: "applied" } : projection];
  });
  return { ...found, name: produced ?? (event && eventName(event, decoder)), projections };
}

/** A trace for people. */
function traceLines({ token, event, name, projections, messages, truncated }: ShownTrace): readonly string[] {
  return [
    `token       ${token ?? "none: a caller made this message"}`,
    ...(event
      ? eventLines(event, name)
      : token === null
        ? []
        : ["stored      no: this token is not in the database"]),
    ...projections.map(projectionLine),
    ...(messages.length === 0 ? ["message     none"] : messages.flatMap(messageLines)),
    ...(truncated ? ["There is more on record than this lists: trace an event id or a delivery id."] : []),
  ];
}

function eventLines(event: TracedEvent, name: string | null): readonly string[] {
  const { ledger, closedAt, contractId, txHash, storedAt, seq, late, undecodable, conflicts } = event;
  return [
    `event       ${name ?? `without a name (${event.type})`} of ${contractId ?? "no contract"}`,
    `            ledger ${ledger}, closed ${closedAt.toISOString()}, transaction ${txHash}`,
    `stored      ${storedAt.toISOString()} as seq ${seq}${late ? ", late: its ledger had been read before" : ""}`,
    ...(undecodable === null ? [] : [`            in quarantine: ${undecodable}`]),
    ...(conflicts === 0 ? [] : [`            CONFLICT: the source gave other content ${conflicts} times`]),
  ];
}

function projectionLine({ name, version, state, stage, reason }: ShownProjection): string {
  const words = {
    applied: "applied",
    passed: "passed (its handlers are not known here)",
    waiting: "not reached yet",
    stopped: "STOPPED here",
    skipped: "skipped",
    set_aside: "set aside",
  };
  const why = reason === null ? "" : `: ${reason.split("\n")[0]}`;
  return `projection  ${name} v${version} (${state}) ${words[stage]}${why}`;
}

function messageLines({
  eventId,
  type,
  projection,
  state,
  createdAt,
  inOutbox,
  deliveries,
}: TracedMessage): string[] {
  const by = projection === null ? "" : ` by ${projection}`;
  const what =
    createdAt === null ? "kept with its deliveries" : `${type} ${state}${by} ${createdAt.toISOString()}`;
  return [
    `message     ${eventId} ${what}${inOutbox ? ", in the outbox" : ""}`,
    ...(deliveries.length === 0 ? ["  delivery  none"] : deliveries.flatMap(deliveryLines)),
  ];
}

function deliveryLines(delivery: TracedDelivery): readonly string[] {
  const { id, webhookId, url, state, nextAt, blockedBy, attempts } = delivery;
  const next = nextAt && state === "pending" ? `, next attempt ${nextAt.toISOString()}` : "";
  const behind = blockedBy === null ? "" : `, behind ${blockedBy}`;
  const person =
    state === "in_doubt" && nextAt === null ? ", waits for a person: fencepost deliveries resolve" : "";
  return [
    `  delivery  ${id} to ${webhookId} (${url ?? "deleted"}) ${state}${next}${behind}${person}`,
    ...(attempts.length === 0 ? ["    attempt none"] : attempts.map(attemptLine)),
  ];
}

function attemptLine(attempt: Attempt): string {
  const { number, startedAt, finishedAt, outcome, status, error, lateOutcome } = attempt;
  const took = finishedAt ? ` after ${finishedAt.getTime() - startedAt.getTime()} ms` : "";
  const parts = [
    `    attempt ${number} at ${startedAt.toISOString()}:`,
    outcome ?? "no outcome on record",
    ...(status === null ? [] : [String(status)]),
    ...(took ? [took.trim()] : []),
    ...(error === null ? [] : [`(${error})`]),
    ...(lateOutcome === null ? [] : [`- too late its worker reported: ${lateOutcome}`]),
  ];
  return parts.join(" ");
}
