// npm run demo [-- --seed N] [--events N] [--json]
import { randomInt } from "node:crypto";
import { parseArgs } from "node:util";
import { isKept } from "./audit.ts";
import { startProgress } from "./progress.ts";
import { reportText } from "./report.ts";
import { type RunOptions, runDemo } from "./run.ts";

const USAGE = `npm run demo -- [options]
  --seed N     repeat a run: the same chain, the same faults, the same moods of the endpoints
  --events N   how many events go on the chain, 100 to 5000; 600 unless given
  --json       end with the figures as one line of JSON`;

process.exitCode = await main();

async function main(): Promise<number> {
  let options: RunOptions & { readonly json: boolean };
  try {
    options = readOptions(process.argv.slice(2));
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${USAGE}\n`);
    return 2;
  }
  const stopping = new AbortController();
  const stop = () => stopping.abort();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, stop);
  process.stdout.on("error", stop); // nobody reads any more

  const { seed, events, json } = options;
  const progress = startProgress(process.stdout, () => performance.now());
  progress.note(
    `Fencepost, ${events} events, seed ${seed}. The same again: npm run demo -- --seed ${seed} --events ${events}\n`,
  );
  try {
    const report = await runDemo(options, progress, stopping.signal);
    const kept = isKept(report);
    process.stdout.write(reportText(report));
    process.stdout.write(
      `${kept ? "Every promise was kept" : "A promise was broken"}, in ${report.seconds} seconds.\n`,
    );
    if (json) process.stdout.write(`${JSON.stringify({ seed, kept, ...report })}\n`);
    return kept ? 0 : 1;
  } catch (error) {
    if (stopping.signal.aborted) {
      process.stderr.write("Stopped.\n");
      return 130;
    }
    process.stderr.write(`The demo failed (seed ${seed}): ${error instanceof Error ? error.stack : error}\n`);
    if (json) process.stdout.write(`${JSON.stringify({ seed, kept: false, error: String(error) })}\n`);
    return 1;
  }
}

function readOptions(args: readonly string[]): RunOptions & { readonly json: boolean } {
  const { values } = parseArgs({
    args: [...args],
    options: {
      seed: { type: "string" },
      events: { type: "string", default: "600" },
      json: { type: "boolean", default: false },
    },
  });
  return {
    seed:
      values.seed === undefined ? randomInt(1, 1_000_000) : readNumber("seed", values.seed, 0, 2 ** 32 - 1),
    events: readNumber("events", values.events, 100, 5_000),
    json: values.json,
  };
}

function readNumber(name: string, text: string, least: number, most: number): number {
  const value = Number(text);
  if (!/^\d{1,10}$/.test(text) || value < least || value > most) {
    throw new Error(`--${name} is ${JSON.stringify(text)}: use ${least} to ${most}.`);
  }
  return value;
}
