import { styleText } from "node:util";
import type { PipelineState } from "./state.ts";

interface Moment {
  /** Events on the chain so far, and in the end. */
  readonly chain: number;
  readonly planned: number;
  readonly pipeline: PipelineState;
  readonly requests: { readonly plain: number; readonly receiver: number };
}

export interface Progress {
  /** Says something worth keeping. */
  note(line: string): void;
  /** Shows how far everything is. */
  show(moment: Moment): void;
  /** Leaves what is shown; nothing is shown after it. */
  end(): void;
}

const BAR_WIDTH = 30;
/** A bar that wraps could not be drawn over. */
const LEAST_COLUMNS = 80;
const PLAIN_EVERY_MS = 2_000;

/** Bars that move on a terminal; elsewhere a line from time to time. */
export function startProgress(out: NodeJS.WriteStream, now: () => number): Progress {
  let shown: readonly string[] = [];
  let lastLine = 0;
  let ended = false;

  function draw(lines: readonly string[]): void {
    const up = shown.length > 0 ? `\x1b[${shown.length}A` : "";
    out.write(`${up}\x1b[J${lines.map((line) => `${line}\n`).join("")}`);
    shown = lines;
  }

  return {
    note(line) {
      const bars = shown;
      if (bars.length > 0) draw([]);
      out.write(`${line}\n`);
      if (bars.length > 0) draw(bars);
    },
    show(moment) {
      if (ended) return;
      if (out.isTTY && out.columns >= LEAST_COLUMNS) return draw(bars(moment));
      if (now() - lastLine < PLAIN_EVERY_MS) return;
      lastLine = now();
      out.write(`${oneLine(moment)}\n`);
    },
    end() {
      ended = true;
      shown = [];
    },
  };
}

function bars({ chain, planned, pipeline, requests }: Moment): readonly string[] {
  const { stored, projected, messages, deliveries, delivered } = pipeline;
  const bar = (name: string, value: number, of: number, more: string): string => {
    const full = of === 0 ? 0 : Math.min(BAR_WIDTH, Math.floor((value / of) * BAR_WIDTH));
    const blocks = styleText("green", "█".repeat(full)) + styleText("gray", "░".repeat(BAR_WIDTH - full));
    return `  ${name.padEnd(10)} ${blocks} ${String(value).padStart(5)} ${more}`;
  };
  return [
    bar("chain", chain, planned, `of ${planned} events`),
    bar("stored", stored, planned, "events"),
    bar("projected", projected, planned, `events, ${messages} messages`),
    bar("delivered", delivered, deliveries, `of ${deliveries} webhooks`),
    `  requests: ${requests.plain} at the plain endpoint, ${requests.receiver} at the receiver`,
  ];
}

function oneLine({ chain, planned, pipeline, requests }: Moment): string {
  const { stored, projected, messages, deliveries, delivered } = pipeline;
  return (
    `  chain ${chain}/${planned}, stored ${stored}, projected ${projected}, messages ${messages}, ` +
    `delivered ${delivered}/${deliveries}, requests ${requests.plain} + ${requests.receiver}`
  );
}
