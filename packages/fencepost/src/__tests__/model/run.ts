// `npm run model`: every configuration, two at a time, then every guard removed. Exits 1 when a promise breaks, a
// guard proves to be no guard, or a configuration outgrows its limit. `--traces` prints what each removal leads to.
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { LINES, PAIRS, PERSONS } from "./configurations.ts";
import { INTACT } from "./guards.ts";
import { REMOVALS, searchWithout } from "./removals.ts";
import { type Report, search } from "./search.ts";
import type { Configuration } from "./step.ts";

/** The largest first, so that two threads end at about the same time. */
const CONFIGURATIONS: readonly Configuration[] = [LINES, PAIRS, PERSONS].flatMap((group) =>
  Object.values(group),
);
const THREADS = 2;
/** Of a thread; three million states, the most that a search visits, take about 1 GB. */
const MEMORY = { maxOldGenerationSizeMb: 3_000, maxYoungGenerationSizeMb: 64 };

function searchInThread(index: number): Promise<Report> {
  return new Promise((resolve, reject) => {
    const thread = new Worker(new URL(import.meta.url), { workerData: index, resourceLimits: MEMORY });
    thread.once("message", resolve);
    thread.once("error", reject);
    thread.once("exit", (code) => reject(new Error(`The thread ended with ${code}, without a report.`)));
  });
}

async function searchAll(): Promise<readonly Report[]> {
  const reports: Report[] = [];
  const waiting = CONFIGURATIONS.entries();
  const work = async (): Promise<void> => {
    for (const [index, { name }] of waiting) {
      reports[index] = await searchInThread(index);
      console.error(`  ${name}: ${(reports[index].milliseconds / 1000).toFixed(1)} s`);
    }
  };
  await Promise.all(Array.from({ length: THREADS }, work));
  return reports;
}

function printReports(reports: readonly Report[]): void {
  const count = (n: number): string => n.toLocaleString("en-US");
  const rows = reports.map(({ states, transitions, depth, milliseconds }, i) => {
    const { name, first, last, events, workers, claims } = CONFIGURATIONS[i]!;
    return [
      name,
      `${events}`,
      // A claim names its fence, never its worker: where nothing else runs, who holds it is all the same.
      first === "deliver" ? "any" : `${workers}`,
      last === "deliver" ? `${claims}` : "-",
      count(states),
      count(transitions),
      `${depth}`,
      (milliseconds / 1000).toFixed(1),
    ];
  });
  const head = ["configuration", "events", "workers", "claims", "states", "transitions", "depth", "seconds"];
  const sum = (pick: (report: Report) => number): string =>
    count(reports.reduce((total, report) => total + pick(report), 0));
  const total = ["together", "", "", "", sum((r) => r.states), sum((r) => r.transitions), "", ""];
  const table = [head, ...rows, total];
  const widths = head.map((_, column) => Math.max(...table.map((row) => row[column]!.length)));
  for (const [name, ...numbers] of table) {
    console.log([name!.padEnd(widths[0]!), ...numbers.map((n, i) => n.padStart(widths[i + 1]!))].join("  "));
  }
}

/** The guards without which no promise breaks: the model, or the guard, is not what it is said to be. */
function idleGuards(traces: boolean): readonly string[] {
  return REMOVALS.flatMap((removal) => {
    const found = searchWithout(removal);
    for (const [invariant, counterexample] of found) {
      console.log(
        `without ${removal.guard}: "${invariant}" ${counterexample ? `breaks in ${counterexample.trace.length} steps` : "STILL HOLDS"}`,
      );
      if (traces && counterexample) console.log(numbered(counterexample.trace));
    }
    return found.every(([, counterexample]) => counterexample) ? [] : [removal.guard];
  });
}

function numbered(trace: readonly string[]): string {
  return trace.map((line, i) => `${String(i + 1).padStart(4)}  ${line}`).join("\n");
}

async function main(): Promise<void> {
  const started = performance.now();
  const reports = await searchAll();
  printReports(reports);
  console.log(
    "\nExhaustively checked, each configuration up to the events, workers and claims of its row.\n",
  );
  let broken = 0;
  for (const [i, { counterexample }] of reports.entries()) {
    if (!counterexample) continue;
    broken++;
    const { invariant, trace } = counterexample;
    console.log(`BROKEN in "${CONFIGURATIONS[i]!.name}": ${invariant}\n${numbered(trace)}\n`);
  }
  // Without a sound model a removed guard says nothing.
  const idle = broken > 0 ? [] : idleGuards(process.argv.includes("--traces"));
  const seconds = ((performance.now() - started) / 1000).toFixed(0);
  const { user, system } = process.cpuUsage();
  console.log(
    `\n${broken === 0 ? "No promise broken" : `${broken} of ${reports.length} configurations BROKEN`}. ` +
      `${idle.length > 0 ? `NOTHING BROKE WITHOUT ${idle.join(", ")}. ` : ""}` +
      `${seconds} s, ${((user + system) / 1e6).toFixed(0)} s of CPU.`,
  );
  process.exitCode = broken + idle.length === 0 ? 0 : 1;
}

if (isMainThread) await main();
else parentPort?.postMessage(search({ ...CONFIGURATIONS[workerData as number]!, guards: INTACT }));
