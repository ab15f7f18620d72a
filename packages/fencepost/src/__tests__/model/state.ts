import type { DeliveryState } from "../../store/deliveryStore.ts";

/** A leader that read the row and has not committed yet, or died on the way. Some are of an earlier term. */
export interface PendingCommit {
  /** The term it read is still the row's. Terms only grow and are compared with `=`: more need not be known. */
  readonly fresh: boolean;
  /** The cursor that it read. */
  readonly from: number;
  /** The cursor that it writes. */
  readonly through: number;
}

export interface WindowCommit extends PendingCommit {
  /** What the source gave besides: nothing, every earlier event again, or those with other content. */
  readonly earlier: "none" | "again" | "forged";
}

/** A statement or transaction of dispatch between what it saw and its commit. Events are a bit mask. */
export type Dispatching =
  | { readonly kind: "fanOut"; readonly events: number; readonly sawWebhook: boolean }
  | { readonly kind: "catchUp"; readonly events: number }
  | { readonly kind: "call"; readonly events: number; readonly forged: boolean };

/** A message on its way to the one webhook: its row, its row in the queue, its live attempts. */
export interface ModelDelivery {
  /** Rows of the pair. */
  readonly rows: number;
  readonly state: DeliveryState;
  readonly tries: number;
  /** The queue row: none, nobody's, or under a fence. Leases have no clock: any may lapse at any moment. */
  readonly queue: "none" | "free" | "held";
  readonly attempted: boolean;
  /** Its endpoint is to be asked. */
  readonly asking: boolean;
  /** Attempts on record without an outcome. */
  readonly live: number;
  /** Under hold: copies that left, less one for each redeliver. */
  readonly sent: number;
  /** Under hold, where copies are counted, a person sends again once. */
  readonly redelivered: boolean;
  /** Under ask: the number of the last attempt, which stands for its signed time; questions since then. */
  readonly attempts: number;
  readonly asks: number;
  /** Under ask: the outcome of the last attempt was unknown. */
  readonly doubted: boolean;
}

/** A worker's memory of a claim. `receiving` and `answered` are about the connection that it waits on. */
export interface ModelClaim {
  readonly event: number;
  /** Its fence is still that of the queue row. Fences are compared with `=`: more need not be known. */
  readonly holds: boolean;
  readonly phase: (typeof PHASES)[number];
  /** Under ask: the attempt that it is about, or the last one that its question names. */
  readonly number: number;
}

const PHASES = [
  ...["claimed", "interrupted", "recorded", "unsent", "waiting", "receiving", "answered", "refused"],
  // It is to ask, waits for an answer, or has one; `forgotten`: fenced, by an inbox that does not go back that far.
  ...["doubting", "asked", "told received", "told in_progress", "told fenced", "told forgotten"],
] as const;

/** The customer's side of one event, and the network before it. */
interface ModelInbox {
  readonly present: boolean;
  readonly effects: number;
  /** Open transactions of requests that no worker waits for any more: the numbers of their attempts. */
  readonly orphans: readonly number[];
  /**
   * Attempts of which copies are on the network, as a bit mask: any number of each, for ever, each may arrive at any
   * moment or never. Only under ask is one attempt told from another.
   */
  readonly copies: number;
  /** The same of questions, by the attempt up to which they ask. */
  readonly queries: number;
  /** Attempts up to it are fenced off; 0: none. */
  readonly fence: number;
  /** The sender was told so of attempts up to it. */
  readonly promised: number;
  /** Attempts up to it are too old for their signature to be accepted. */
  readonly expired: number;
  /** The inbox has pruned what it had of this event. */
  readonly forgotten: boolean;
}

export interface State {
  readonly nextLedger: number;
  readonly halted: boolean;
  /** Whether a living worker leads the stage. */
  readonly streamLed: boolean;
  readonly streamCommits: readonly WindowCommit[];
  /** Event numbers in the order of their seq; the first has seq 1. */
  readonly stored: readonly number[];
  readonly cursor: number;
  readonly projectionLed: boolean;
  readonly projectionCommits: readonly PendingCommit[];
  /** How often each event was applied to the tables. */
  readonly applied: readonly number[];
  /** Rows of each event id. */
  readonly messages: readonly number[];
  readonly outbox: readonly boolean[];
  readonly webhook: boolean;
  readonly catchUp: boolean;
  readonly dispatching: readonly Dispatching[];
  readonly deliveries: readonly ModelDelivery[];
  readonly claims: readonly ModelClaim[];
  readonly inboxes: readonly ModelInbox[];
}

const NO_DELIVERY: ModelDelivery = {
  rows: 0,
  state: "pending",
  tries: 0,
  queue: "none",
  attempted: false,
  asking: false,
  live: 0,
  sent: 0,
  redelivered: false,
  attempts: 0,
  asks: 0,
  doubted: false,
};

const EMPTY_INBOX: ModelInbox = {
  present: false,
  effects: 0,
  orphans: [],
  copies: 0,
  queries: 0,
  fence: 0,
  promised: 0,
  expired: 0,
  forgotten: false,
};

/** Nothing has happened. `late`: the webhook is added later, while messages are dispatched. */
export function initialState(events: number, webhook: "there" | "late"): State {
  const each = <T>(value: T): readonly T[] => Array.from({ length: events }, () => value);
  return {
    nextLedger: 0,
    halted: false,
    streamLed: false,
    streamCommits: [],
    stored: [],
    cursor: 0,
    projectionLed: false,
    projectionCommits: [],
    applied: each(0),
    messages: each(0),
    outbox: each(false),
    webhook: webhook === "there",
    catchUp: false,
    dispatching: [],
    deliveries: each(NO_DELIVERY),
    claims: [],
    inboxes: each(EMPTY_INBOX),
  };
}

/** A doubt that is asked about has not. */
export function hasEnded({ state, asking }: ModelDelivery): boolean {
  return state === "success" || state === "failed" || (state === "in_doubt" && !asking);
}

/** `items` with one replaced. */
export function put<T>(items: readonly T[], index: number, item: T): readonly T[] {
  return items.with(index, item);
}

/** `items` without one. */
export function without<T>(items: readonly T[], index: number): readonly T[] {
  return items.toSpliced(index, 1);
}

/** The attempts in a bit mask. Where they are told apart, a schedule has no third. */
export function numbersOf(mask: number): readonly number[] {
  return [0, 1, 2].filter((number) => (mask >> number) & 1);
}

/** More copies than this need not be told apart. */
export const MANY_SENT = 3;

const STATES: readonly DeliveryState[] = ["pending", "sending", "success", "failed", "in_doubt"];
const QUEUE = { none: 0, free: 1, held: 2 } as const;
const EARLIER = { none: 0, again: 1, forged: 2 } as const;
const DISPATCHING = { fanOut: 0, catchUp: 1, call: 2 } as const;

/** Every table, ours and the customer's, as a short text: what a worker without a right to it must not change. */
export function recordsKey(s: State): string {
  const codes: number[] = [];
  addRecords(codes, s);
  return String.fromCharCode.apply(null, codes);
}

/** The whole state as a short text. Workers are interchangeable: what they remember is sorted. */
export function stateKey(s: State): string {
  const codes: number[] = [];
  addRecords(codes, s);
  codes.push(Number(s.streamLed) + Number(s.projectionLed) * 2);
  for (const { orphans, copies, queries, promised } of s.inboxes) {
    codes.push(orphans.length, ...orphans, copies * 8 + queries, promised);
  }
  addSorted(codes, s.streamCommits, (c) => commitCode(c) * 3 + EARLIER[c.earlier]);
  addSorted(codes, s.projectionCommits, commitCode);
  addSorted(codes, s.dispatching, dispatchingCode);
  addSorted(
    codes,
    s.claims,
    (c) => ((c.event * 2 + Number(c.holds)) * 16 + PHASES.indexOf(c.phase)) * 4 + c.number,
  );
  return String.fromCharCode.apply(null, codes);
}

function addRecords(codes: number[], s: State): void {
  codes.push(s.nextLedger, s.cursor, Number(s.halted) + Number(s.webhook) * 2 + Number(s.catchUp) * 4);
  codes.push(s.stored.length, ...s.stored);
  for (let e = 0; e < s.applied.length; e++) {
    const delivery = s.deliveries[e]!;
    const inbox = s.inboxes[e]!;
    codes.push(
      s.applied[e]! * 8 + s.messages[e]! * 2 + Number(s.outbox[e]),
      delivery.rows * 8 + STATES.indexOf(delivery.state),
      delivery.tries * 8 + delivery.live,
      (QUEUE[delivery.queue] * 2 + Number(delivery.attempted)) * 2 + Number(delivery.asking),
      (delivery.sent + MANY_SENT) * 2 + Number(delivery.redelivered),
      (delivery.attempts * 4 + delivery.asks) * 2 + Number(delivery.doubted),
      (inbox.effects * 2 + Number(inbox.present)) * 2 + Number(inbox.forgotten),
      inbox.fence * 4 + inbox.expired,
    );
  }
}

function addSorted<T>(codes: number[], memories: readonly T[], code: (memory: T) => number): void {
  codes.push(memories.length);
  if (memories.length === 1) codes.push(code(memories[0]!));
  else if (memories.length > 1) codes.push(...memories.map(code).sort((a, b) => a - b));
}

function commitCode({ from, through, fresh }: PendingCommit): number {
  return (from * 4 + through) * 2 + Number(fresh);
}

function dispatchingCode(work: Dispatching): number {
  const flag = work.kind === "fanOut" ? work.sawWebhook : work.kind === "call" && work.forged;
  return (work.events * 3 + DISPATCHING[work.kind]) * 2 + Number(flag);
}
