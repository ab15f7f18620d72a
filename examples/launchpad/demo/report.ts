import { styleText } from "node:util";
import type { EndpointFigures, Tally } from "./audit.ts";
import type { Report } from "./run.ts";

/** The table, the promises and the trace, for people. */
export function reportText(report: Report): string {
  const { endpoints, promises, problems, trace } = report;
  return [
    "",
    countTable(report),
    "",
    endpointTable(endpoints),
    "",
    ...repeatLines(report),
    "",
    ...promises.map(({ promise, kept }) =>
      kept ? `${styleText("green", "✔")} ${promise}` : `${styleText("red", "✘")} BROKEN: ${promise}`,
    ),
    ...problems.map((problem) => `  ${problem}`),
    "",
    styleText("bold", "One event, from the ledger to its webhooks:"),
    trace,
    "",
  ].join("\n");
}

function countTable(report: Report): string {
  const { stored, projected, messages, deliveries, effects } = report;
  const line = (name: string, { count, twice, lost, wrong }: Tally) => [name, count, twice, lost, wrong];
  return table([
    ["", "count", "twice", "lost", "wrong"],
    ["events on the chain", report.chain, "", "", ""],
    line("stored", stored),
    line("projected", projected),
    line("messages", messages),
    line("deliveries to the plain endpoint", deliveries.plain),
    line("deliveries to the receiver", deliveries.receiver),
    line("effects at the receiver", effects),
  ]);
}

function endpointTable({ plain, receiver }: Report["endpoints"]): string {
  const line = (name: string, f: EndpointFigures) => [
    name,
    f.requests,
    f.refused,
    f.repeats,
    f.lost,
    f.offRecord,
  ];
  return table([
    ["", "requests", "refused", "repeats", "lost", "off record"],
    line("plain endpoint", plain),
    line("receiver", receiver),
  ]);
}

function repeatLines({ endpoints: { plain, receiver }, effects }: Report): readonly string[] {
  return [
    `Of ${plain.repeats} repeats at the plain endpoint, ${plain.repeatsAfterUnknown} follow an attempt that is on record as ` +
      "unknown: its bytes had left, and",
    "the answer was lost, or the worker was killed before it could record one. No sender can know, so it sends",
    `again, and the endpoint has to tell: ${receiver.repeats} repeats came to the receiver, and ${effects.twice} had effects.`,
  ];
}

function table(rows: readonly (readonly (string | number)[])[]): string {
  const texts = rows.map((row) => row.map(String));
  const widths = texts[0]?.map((_, i) => Math.max(...texts.map((row) => row[i]?.length ?? 0))) ?? [];
  return texts
    .map((row, i) => {
      const cells = row.map((cell, j) =>
        j === 0 ? cell.padEnd(widths[j] ?? 0) : cell.padStart((widths[j] ?? 0) + 2),
      );
      const line = `  ${cells.join("")}`.trimEnd();
      return i === 0 ? styleText("gray", line) : line;
    })
    .join("\n");
}
