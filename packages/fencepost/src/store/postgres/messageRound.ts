// The round that looks for bodies which may go: through the messages by their positions, from where the round before it
// left the first body.
import type { DatabaseClient } from "./database.ts";

export interface MessageRound {
  /** It begins, or goes on, behind this position. */
  readonly after: bigint;
  /** The first message that it saw and that the next one must see again; null: none yet. */
  readonly kept: bigint | null;
}

/** What a step saw; null where it saw none. */
export interface MessageStep {
  readonly last: bigint | null;
  readonly kept: bigint | null;
  readonly done: boolean;
}

/**
 * Where the round goes on, or the next one begins. That passes over messages from before a time only: of those that
 * are younger, one may be committed later than others behind it.
 */
export async function moveMessageRound(
  client: DatabaseClient,
  round: MessageRound,
  { last, kept, done }: MessageStep,
  before: Date,
): Promise<void> {
  const first = round.kept ?? kept;
  const end = last ?? round.after;
  if (done && first !== null) {
    await client.query(
      `UPDATE fencepost.prune_rounds SET kept = NULL, after = coalesce(
         (SELECT max(position) FROM fencepost.messages WHERE position < $1 AND created_at < $2), 0
       ) WHERE what = 'messages'`,
      [first, before],
    );
  } else {
    await client.query("UPDATE fencepost.prune_rounds SET after = $1, kept = $2 WHERE what = 'messages'", [
      end,
      done ? null : first,
    ]);
  }
}
