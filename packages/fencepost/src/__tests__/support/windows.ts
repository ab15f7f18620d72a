import type { Chain } from "@fencepost/simulator";
import type { Source, SourceEvent, SourceWindow } from "../../source/source.ts";

/** A signal that never aborts. */
export const never: AbortSignal = new AbortController().signal;

/** The wait between retries, for tests that do not want to wait. */
export const noWait = async (): Promise<void> => {};

export function windowOf(answer: SourceWindow): Extract<SourceWindow, { kind: "window" }> {
  if (answer.kind !== "window") throw new Error(`The source answered ${JSON.stringify(answer)}.`);
  return answer;
}

const MAX_ANSWERS = 1_000;

/**
 * Reads windows from `fromLedger` on, each after the one before it, until the chain's last ledger is in one.
 * What `onFailure` returns without throwing is tried again.
 */
export async function readToEnd(
  source: Source,
  chain: Chain,
  contractIds: readonly string[],
  {
    fromLedger = 1,
    onFailure = (error) => Promise.reject(error),
  }: { fromLedger?: number; onFailure?: (error: unknown) => unknown } = {},
): Promise<{ readonly events: readonly SourceEvent[]; readonly ends: readonly number[] }> {
  const events: SourceEvent[] = [];
  const ends: number[] = [];
  let next = fromLedger;
  for (let answers = 0; next <= chain.latest; answers++) {
    if (answers > MAX_ANSWERS) throw new Error(`${MAX_ANSWERS} answers, and still at ledger ${next}.`);
    try {
      const answer = await source.window({ fromLedger: next, contractIds }, never);
      if (answer.kind !== "window") continue;
      if (answer.fromLedger !== next || answer.throughLedger < next) {
        throw new Error(`Asked for ledger ${next}, got ${answer.fromLedger} to ${answer.throughLedger}.`);
      }
      events.push(...answer.events);
      ends.push(answer.throughLedger);
      next = answer.throughLedger + 1;
    } catch (error) {
      await onFailure(error);
    }
  }
  return { events, ends };
}

/** The ids of the events of these contracts on the chain, in order. */
export function idsOnChain(chain: Chain, contractIds: readonly string[], fromLedger = 1): string[] {
  const wanted = new Set(contractIds);
  return [...chain.events()]
    .filter((row) => wanted.has(row.contractId) && row.ledger >= fromLedger)
    .map((row) => row.id);
}
