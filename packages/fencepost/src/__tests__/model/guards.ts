// What keeps the promises. The decisions are the functions that production runs; what SQL decides instead is
// named here, with the statement that does it.
import { decideQuery, decideReceipt } from "@fencepost/receiver";
import { decideStored } from "../../ingest/decideStored.ts";
import { decideCommit } from "../../lease/term.ts";
import { decideMessage } from "../../message/decideMessage.ts";
import { decideAnswer, decideClaimed, decideOutcome } from "../../store/decideDelivery.ts";

export interface Guards {
  /** lease/term.ts, under the lock of the stream's row (ingest/ingestStep.ts), and the WHERE of moveStream. */
  readonly commitStream: typeof decideCommit;
  /** lease/term.ts, under the lock of the projection's row (project/projectStep.ts). */
  readonly commitProjection: typeof decideCommit;
  /** `events`: PRIMARY KEY (token), and what decideBatch asks under the lock of the stream's row (ingest/decideStored.ts). */
  readonly decideStored: typeof decideStored;
  /** `messages`: PRIMARY KEY (event_id), and ON CONFLICT DO NOTHING in insertMessages (store/postgres/messages.ts). */
  readonly decideMessage: typeof decideMessage;
  readonly decideClaimed: typeof decideClaimed;
  readonly decideOutcome: typeof decideOutcome;
  readonly decideAnswer: typeof decideAnswer;
  readonly decideReceipt: typeof decideReceipt;
  readonly decideQuery: typeof decideQuery;
  /** A commit clears a gap or a reset and no conflict: `nullif` of `halted` in moveStream and moveBackfilled (store/postgres/streams.ts). */
  readonly alarmStays: boolean;
  /** The events of a window and the cursor are one transaction (ingest/commit.ts, commitBatch). */
  readonly atomicIngest: boolean;
  /** The rows and messages of a batch and the cursor are one transaction (project/projectStep.ts, apply). */
  readonly atomicProject: boolean;
  /** `deliveries`: UNIQUE (event_id, webhook_id), and ON CONFLICT DO NOTHING in fanOut, catchUp and dispatch. */
  readonly uniquePair: boolean;
  /** A webhook and its row in `catch_ups` are one transaction (store/postgres/webhooks.ts, addWebhook). */
  readonly catchUpWithWebhook: boolean;
  /** nextval('fencepost.delivery_fence') for each claim (store/postgres/claims.ts, claimStatement). */
  readonly fencePerClaim: boolean;
  /** `q.fence = $2` in recordAttempts. */
  readonly fenceOnRecord: boolean;
  /** `NOT q.attempted` in recordAttempts. */
  readonly recordOnce: boolean;
  /** `d.state = 'pending'` in recordAttempts. */
  readonly recordPendingOnly: boolean;
  /** Only what recordAttempts returned is sent (deliver/deliverLoop.ts, attempt). */
  readonly recordBeforeSend: boolean;
  /** `q.fence = $2` in writeOutcomes, for finish. */
  readonly fenceOnFinish: boolean;
  /** `q.fence = $2` in settle. */
  readonly fenceOnSettle: boolean;
  /** The inbox key makes a second transaction wait for the first (receiver/src/postgresInbox.ts, insert). */
  readonly inboxKey: boolean;
  /** The inbox row and the handler's effects are one transaction (receiver/src/postgresInbox.ts). */
  readonly atomicReceive: boolean;
  /** A query takes the key of an event before it looks (receiver/src/postgresInbox.ts, fenceOff). */
  readonly queryTakesKey: boolean;
  /** The fence is stored before the answer is given (receiver/src/postgresInbox.ts, storeFences). */
  readonly fenceBeforeAnswer: boolean;
}

export const INTACT: Guards = {
  commitStream: decideCommit,
  commitProjection: decideCommit,
  decideStored,
  decideMessage,
  decideClaimed,
  decideOutcome,
  decideAnswer,
  decideReceipt,
  decideQuery,
  alarmStays: true,
  atomicIngest: true,
  atomicProject: true,
  uniquePair: true,
  catchUpWithWebhook: true,
  fencePerClaim: true,
  fenceOnRecord: true,
  recordOnce: true,
  recordPendingOnly: true,
  recordBeforeSend: true,
  fenceOnFinish: true,
  fenceOnSettle: true,
  inboxKey: true,
  atomicReceive: true,
  queryTakesKey: true,
  fenceBeforeAnswer: true,
};
