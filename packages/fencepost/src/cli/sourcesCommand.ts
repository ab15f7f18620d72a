import { discoveryOf } from "../discovery.ts";
import { type BackfillProgress, backfill } from "../ingest/backfill.ts";
import { beginEpoch } from "../ingest/beginEpoch.ts";
import { createLog } from "../observe/log.ts";
import { type Gap, readGaps } from "../store/postgres/gaps.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { alignedLines } from "./alignedLines.ts";
import { loadConfig, requireSource, sourceNamed } from "./loadConfig.ts";
import { print, printJson } from "./print.ts";
import { progressLine } from "./progressLine.ts";
import { withProjectDatabase } from "./project.ts";
import { listenForStop } from "./stopSignal.ts";

interface ProjectOptions {
  readonly config: string;
}

/** `fencepost gaps`: the holes on record, those that are open first. */
export async function listGaps({ config, json }: ProjectOptions & { readonly json: boolean }): Promise<void> {
  await withProjectDatabase(config, async ({ database }) => {
    const gaps = await readGaps(database);
    if (json) return printJson({ gaps });
    if (gaps.length === 0) return print("There are no gaps, and there were none.");
    print(...alignedLines([["stream", "epoch", "ledgers", "found", "state"], ...gaps.map(gapRow)]));
    const open = gaps.filter(({ healedAt }) => healedAt === null);
    const [first] = open;
    if (first) {
      print(
        `Fill them with: fencepost backfill --from ${first.fromLedger} --to ${first.throughLedger}`,
        "From another source that the config names under sources: add --source <name>",
      );
    }
  });
}

function gapRow(gap: Gap): readonly string[] {
  const { stream, epoch, fromLedger, throughLedger, foundAt, acceptedAt, healedAt, healedBy } = gap;
  const state = healedAt
    ? `healed ${healedAt.toISOString()} by ${healedBy}`
    : acceptedAt
      ? `MISSING, the stream went on ${acceptedAt.toISOString()}`
      : "MISSING, the stream waits";
  return [stream, epoch, `${fromLedger} to ${throughLedger}`, foundAt.toISOString(), state];
}

interface BackfillOptions extends ProjectOptions {
  readonly from: number;
  readonly to: number;
  /** A name in `sources` of the config; its `source` unless given. */
  readonly source?: string;
  readonly json: boolean;
}

/** `fencepost backfill`: reads a range again, beside the running stream. What it committed stays when it is stopped. */
export async function backfillRange({ config: path, from, to, source: name, json }: BackfillOptions) {
  const signal = listenForStop();
  await withProjectDatabase(path, async ({ database }, project) => {
    const { config } = await loadConfig(project.configPath);
    const source = sourceNamed(config, name);
    const context = {
      database,
      source,
      decoder: await loadDecoder(),
      leaseMs: config.leaseMs,
      log: createLog("error", { write: (line) => process.stderr.write(`${line}\n`) }),
      discovery: discoveryOf(config),
    };
    const progress = progressLine(process.stderr);
    const report = await backfill(context, {
      fromLedger: from,
      throughLedger: to,
      signal,
      onProgress: (done) => progress.show(describeProgress(done)),
    }).finally(progress.end);
    if (json) return printJson(report);
    const { fromLedger, throughLedger, events, stored, healed } = report;
    print(
      `ledgers ${fromLedger} to ${throughLedger} are read: ${events} events, ${stored} of them new.`,
      ...(healed > 0 ? [`${healed} ledgers are missing no more.`] : []),
    );
  });
}

export function describeProgress(progress: BackfillProgress): string {
  const { fromLedger, throughLedger, ledger, events, stored, ledgersPerSecond, msLeft } = progress;
  const part = (100 * (ledger - fromLedger + 1)) / (throughLedger - fromLedger + 1);
  const rate = ledgersPerSecond < 10 ? ledgersPerSecond.toFixed(1) : Math.round(ledgersPerSecond);
  return (
    `ledger ${ledger} of ${throughLedger} (${Math.floor(part)} %), ${events} events, ${stored} new, ` +
    `${rate} ledgers/s, ${describeDuration(msLeft)} left`
  );
}

function describeDuration(ms: number): string {
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 100) return `${seconds} s`;
  const minutes = Math.ceil(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** `fencepost epoch begin`: goes on with the chain that a reset network began. */
export async function beginNextEpoch(options: ProjectOptions & { readonly from?: number }): Promise<void> {
  const signal = listenForStop();
  await withProjectDatabase(options.config, async ({ database }, project) => {
    const { config } = await loadConfig(project.configPath);
    const from = options.from === undefined ? {} : { fromLedger: options.from };
    const source = requireSource(config);
    const begun = await beginEpoch(database, source, { signal, ...from });
    print(
      `${source.chain.stream} goes on in epoch ${begun.epoch}, from ledger ${begun.nextLedger}.`,
      `What is stored of epoch ${begun.before} stays.`,
    );
  });
}
