import { audit } from "../audit/audit.ts";
import { type AuditReport, type Findings, isProven, type ProjectionRerun } from "../audit/report.ts";
import type { RerunProgress } from "../audit/rerun.ts";
import type { Config } from "../config/config.ts";
import { openStore } from "../openStore.ts";
import type { Source } from "../source/source.ts";
import { loadConfig, sourceNamed } from "./loadConfig.ts";
import { print, printJson } from "./print.ts";
import { progressLine } from "./progressLine.ts";
import { withProjectDatabase } from "./project.ts";
import { listenForStop } from "./stopSignal.ts";

/** As commander hands them over; what was not given is not there. */
export interface AuditCommandOptions {
  readonly config: string;
  readonly from: number;
  readonly to: number;
  /** Counted from 1, in the order of the source's urls. */
  readonly provider?: number;
  /** A name in `sources` of the config. */
  readonly source?: string;
  /** Run the handlers again. */
  readonly rerun: boolean;
  readonly json: boolean;
}

/** `fencepost audit`: exit code 1 on any difference, and where not everything could be looked at. */
export async function auditRange(options: AuditCommandOptions): Promise<void> {
  const signal = listenForStop();
  await withProjectDatabase(options.config, async ({ database }, project) => {
    const { config } = await loadConfig(project.configPath);
    const source = chooseSource(config, options);
    const { store, close } = await openStore({ database, config });
    const progress = progressLine(process.stderr);
    const { projections } = config;
    const onProgress = (done: RerunProgress): void => progress.show(describeRerun(done));
    const report = await audit(database, {
      source,
      store,
      fromLedger: options.from,
      throughLedger: options.to,
      operationsOnly: source !== config.source, // fees are an option of each node
      ...(options.rerun && { rerun: { projections, onProgress } }),
      signal,
    })
      .finally(progress.end)
      .finally(close);
    if (options.json) printJson(report);
    else print(...reportLines(report));
    if (report.differences > 0 || !isProven(report)) process.exitCode = 1;
  });
}

function chooseSource(config: Config, { provider, source: name }: AuditCommandOptions): Source {
  const source = sourceNamed(config, name);
  if (provider === undefined) return source;
  const providers = source.providers ?? [];
  const chosen = providers[provider - 1];
  if (!chosen) {
    throw new RangeError(
      providers.length === 0
        ? "The source has one provider only: add a second url to ask another, or leave --provider out."
        : `The source has the providers 1 to ${providers.length}, and no number ${provider}.`,
    );
  }
  return chosen;
}

/** Of each kind of finding, so many are shown to people. */
const SHOWN = 10;

/** A report for people. */
function reportLines(report: AuditReport): readonly string[] {
  const { stream, source, fromLedger, throughLedger, unreadFrom, events, projections, messages, rerun } =
    report;
  return [
    `${stream}, ledgers ${fromLedger} to ${throughLedger}, against ${source}`,
    `events: ${events.agreed} agree`,
    ...findingLines("missing: the source has it", events.missing),
    ...findingLines("extra: the source does not have it", events.extra),
    ...findingLines("different", events.different),
    ...findingLines("stored more than once", events.doubled),
    ...projections.map(
      (place) =>
        `projection ${place.name} v${place.version}: ${place.behind === 0 ? "past it" : `${place.behind} events behind`}`,
    ),
    `messages: ${messages.count}`,
    ...findingLines("missing: it has a delivery", messages.missing),
    ...findingLines("its event is not stored", messages.withoutEvent),
    ...findingLines("no message, as others of its kind have (no difference)", messages.silent),
    ...(rerun?.projections ?? []).flatMap(rerunLines),
    ...(rerun ? findingLines("no projection of its name is on record", rerun.unclaimed) : []),
    ...report.webhooks.flatMap(({ id, due, states, waiting, unknown, missing, doubled }) => [
      `webhook ${id}: ${due} due; ${Object.entries(states)
        .map(([state, n]) => `${n} ${state}`)
        .join(", ")}, ${waiting} waiting, ${unknown} unknown`,
      ...findingLines("no delivery", missing),
      ...findingLines("more than one delivery", doubled),
    ]),
    ...(unreadFrom === null ? [] : [`NOT PROVEN: ledgers from ${unreadFrom} on could not be read again.`]),
    ...(rerun
      ? []
      : [
          "Not proven: that each message is there which handlers make. --rerun runs them again, in scratch tables.",
        ]),
    report.differences === 0 ? "No differences." : `DIFFERENCES: ${report.differences}`,
  ];
}

function rerunLines({ name, version, unproven, ...compared }: ProjectionRerun): readonly string[] {
  if (unproven !== null) return [`NOT PROVEN: the messages of ${name} v${version}: ${unproven}`];
  const { emitted, agreed, missing, different, unexplained, earlier } = compared;
  return [
    `handlers of ${name} v${version}, run again: they emit ${emitted} messages, ${agreed} agree`,
    ...findingLines("missing: they emit it", missing),
    ...findingLines("other content than they emit", different),
    ...findingLines("unexplained: they do not emit it", unexplained),
    ...findingLines("as an earlier version may have made it (no difference)", earlier),
  ];
}

function describeRerun({ projection, seq, through }: RerunProgress): string {
  return `${projection}: event ${seq} of ${through} (${(100n * seq) / through} %)`;
}

function findingLines(
  what: string,
  { count, listed }: Findings<string | { readonly token: string }>,
): readonly string[] {
  const shown = listed
    .slice(0, SHOWN)
    .map((item) => `  ${what}: ${typeof item === "string" ? item : describe(item)}`);
  return count > shown.length ? [...shown, `  and ${count - shown.length} more (--json lists them)`] : shown;
}

function describe({ token, ...rest }: { readonly token: string }): string {
  return [token, ...Object.values(rest)].join(" ");
}
