import type { OnUnknown } from "../../store/webhook.ts";
import type { Guards } from "./guards.ts";
import type { State } from "./state.ts";

export const STAGES = ["ingest", "project", "dispatch", "deliver"] as const;
export type Stage = (typeof STAGES)[number];

/** What is explored, and up to which size. */
export interface Configuration {
  readonly name: string;
  /** The stages that run. What the one before the first would give comes by itself, at any moment. */
  readonly first: Stage;
  readonly last: Stage;
  readonly events: number;
  /** Commits of one stage that are under way at once, of whatever term: one for each worker. */
  readonly workers: number;
  /** Claims in the memory of workers at once. How many are made in a run has no limit. */
  readonly claims: number;
  readonly onUnknown: OnUnknown;
  /** The source may show an event that is stored with other content. */
  readonly forgery: boolean;
  readonly webhook: "there" | "late";
  /** The last event is a caller's: it comes through dispatch(), from as many callers at once as there are workers. */
  readonly caller: boolean;
  /** Rows of the outbox and of the queue that were worked off may come back. */
  readonly reoffers: boolean;
  /** A person may send again what ended. */
  readonly redelivers: boolean;
  /** The inbox may forget an event while the sender is in doubt about it. */
  readonly prunes: boolean;
}

/** The events that come from the chain; a caller's comes after them. */
export function chainEvents({ events, caller }: Configuration): number {
  return events - Number(caller);
}

export interface World extends Configuration {
  readonly guards: Guards;
}

/** One thing that can happen next. */
export interface Step {
  readonly label: string;
  readonly to: State;
  /** What workers that go on, without a fault, would do: following it must lead to the end. */
  readonly progress?: boolean;
  /** Done by a worker that has lost its term or its claim. */
  readonly stale?: boolean;
  /** The same input once more: it must change no record. */
  readonly again?: (state: State) => State;
  /** A person's decision, which may undo an end. */
  readonly redeliver?: boolean;
  /** Bytes left; whether their attempt was on record. */
  readonly sentOnRecord?: boolean;
  /** Another attempt was put on record after one of unknown outcome, under ask. */
  readonly sentAgain?: { readonly event: number };
  /** The receiver applied this attempt of an event. */
  readonly applied?: { readonly event: number; readonly number: number };
  /** Other content under a known id; whether it was refused by name. */
  readonly refused?: boolean;
}
