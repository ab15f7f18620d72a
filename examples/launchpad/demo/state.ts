import type pg from "pg";

/** How far the pipeline is, from its own database. */
export interface PipelineState {
  readonly stored: number;
  readonly projected: number;
  readonly messages: number;
  readonly deliveries: number;
  readonly delivered: number;
  /** Projections that have not seen every stored event. */
  readonly behind: number;
  /** Messages that wait for their deliveries, and deliveries that wait for their turn. */
  readonly waiting: number;
}

const STATE = `SELECT
  (SELECT count(*) FROM fencepost.events)::int AS stored,
  ((SELECT coalesce(sum(events), 0) FROM tokens.tokens)
    + (SELECT coalesce(sum(events), 0) FROM campaigns.campaigns)
    + (SELECT coalesce(sum(events), 0) FROM streams.streams))::int AS projected,
  (SELECT count(*) FROM fencepost.messages)::int AS messages,
  (SELECT count(*) FROM fencepost.deliveries)::int AS deliveries,
  (SELECT count(*) FROM fencepost.deliveries WHERE state = 'success')::int AS delivered,
  (SELECT count(*) FROM fencepost.projections JOIN fencepost.streams USING (stream)
    WHERE cursor < seq)::int AS behind,
  ((SELECT count(*) FROM fencepost.outbox) + (SELECT count(*) FROM fencepost.catch_ups)
    + (SELECT count(*) FROM fencepost.delivery_queue))::int AS waiting`;

/** Reads it in one statement, so that its figures are of one moment. */
export async function readState(fencepost: pg.Pool): Promise<PipelineState> {
  const { rows } = await fencepost.query<PipelineState>(STATE);
  const [state] = rows;
  if (!state) throw new Error("The database gave no state of the pipeline.");
  return state;
}

/** Whether nothing is left to do for so many events. */
export function isSettled(state: PipelineState, events: number): boolean {
  return state.stored >= events && state.behind === 0 && state.waiting === 0;
}
