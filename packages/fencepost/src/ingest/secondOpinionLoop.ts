import type { Log } from "../observe/log.ts";
import { type Loop, startLoop } from "../runner/runner.ts";
import type { Source } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import { type SecondOpinion, secondOpinion } from "./secondOpinion.ts";

export interface SecondOpinionOptions {
  readonly database: Database;
  readonly source: Source;
  /** The last ledgers that are read again. */
  readonly ledgers: number;
  /** How long from one opinion to the next, in milliseconds. */
  readonly everyMs: number;
  /** Whether this process reads the stream: one of several asks. */
  readonly leads: () => boolean;
  readonly log: Log;
  readonly onOpinion?: (opinion: SecondOpinion) => void;
}

/** Tokens of each kind that are named in the log; `fencepost audit --provider` names all. */
const NAMED = 10;

/** Asks the providers of a source in turn, and tells what they and the stored events differ in. */
export function startSecondOpinionLoop(options: SecondOpinionOptions): Loop {
  const { database, source, ledgers, everyMs, leads, log, onOpinion } = options;
  const { stream } = source.chain;
  const providers = source.providers ?? [];
  let turn = 0;
  return startLoop({
    name: `second opinion ${stream}`,
    idleMs: everyMs,
    log,
    async step(signal) {
      const provider = providers[turn % providers.length];
      if (!provider || !leads()) return { waitMs: everyMs };
      turn++; // also where it cannot answer: the next one is asked then
      const opinion = await secondOpinion(database, provider, { ledgers, signal });
      onOpinion?.(opinion);
      const { agreed, notStored, notServed, different, unreadFrom, ...asked } = opinion;
      if (notStored.length + notServed.length + different.length > 0) {
        const counts = { agreed, notStored: notStored.length, notServed: notServed.length };
        const named = [...notStored, ...notServed, ...different].slice(0, NAMED);
        log.error(
          { stream, ...asked, ...counts, different: different.length, tokens: named },
          "a provider has other events than are stored",
        );
      } else log.debug({ stream, ...asked, agreed, unreadFrom }, "second opinion");
      return { waitMs: everyMs };
    },
  });
}
