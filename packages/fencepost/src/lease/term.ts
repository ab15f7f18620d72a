/**
 * What a leader believes when it commits, against what its row says under the row's lock. The whole decision of
 * whether a stage may write: production and the exhaustive check both import it.
 */
export interface Position {
  readonly term: bigint;
  /** The cursor of the stage: next ledger of a stream, last seq of a projection. */
  readonly cursor: bigint;
}

export type CommitDecision = "commit" | "stale_term" | "moved_cursor";

export function decideCommit(stored: Position | undefined, mine: Position): CommitDecision {
  if (stored === undefined || stored.term !== mine.term) return "stale_term";
  return stored.cursor === mine.cursor ? "commit" : "moved_cursor";
}

/**
 * Another process took this stage over, or moved its cursor: everything in the transaction was rolled back.
 * The runner goes back to waiting for the lease; no action is needed.
 */
export class StaleTermError extends Error {
  override readonly name = "StaleTermError";
  readonly stage: string;
  readonly term: bigint;

  constructor(stage: string, term: bigint, why: Exclude<CommitDecision, "commit">) {
    super(
      `${stage}: the commit under term ${term} was refused (${why === "stale_term" ? "another process leads now" : "the cursor was moved"}). ` +
        "Nothing was written; the process waits for the lease again.",
    );
    this.stage = stage;
    this.term = term;
  }
}
