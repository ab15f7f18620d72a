import { createHash } from "node:crypto";
import { type Random, seededRandom } from "./random.ts";

/**
 * One thing that goes wrong with one request. All but `dropRows` are survivable: a client that keeps its own
 * cursor, ignores what it has, and retries, ends with every event once.
 *
 * To any method:
 * - `status`: this HTTP status without a JSON-RPC body (429 carries `retry-after` in seconds);
 * - `error`: this JSON-RPC error, with HTTP 200;
 * - `html`: 200 with a page of HTML; `truncate`: 200 with half of the JSON;
 * - `hang`: no answer until the client gives up;
 * - `reset`: the connection is reset, before the answer or in the middle of it;
 * - `lag`: the node is this many ledgers behind for this answer, so `latestLedger` goes back.
 *
 * To `getEvents` only:
 * - `samePage`: the page that led to this cursor, once more; `oldPage`: one from further back (with no such page
 *   the answer is right);
 * - `shortPage`: fewer rows than asked for, so ledgers, transactions and operations are split;
 * - `emptyPage`: a window that ends before its first match, with its honest cursor;
 * - `shortWindow`: a window of this many ledgers (2 or more);
 * - `shuffle`: rows out of order; `repeatRows`: some rows twice in the page;
 * - `latestBack`: only the field `latestLedger` goes back;
 * - `dropRows`: rows are missing and nothing says so. Not survivable: for audits.
 */
export type Fault =
  | { readonly kind: "status"; readonly status: number; readonly retryAfter?: number }
  | { readonly kind: "error"; readonly code: number; readonly message: string }
  | { readonly kind: "html" | "truncate" | "hang" }
  | { readonly kind: "reset"; readonly when: "before" | "middle" }
  | { readonly kind: "lag" | "latestBack" | "shortWindow"; readonly ledgers: number }
  | { readonly kind: "shortPage"; readonly rows: number }
  | { readonly kind: "samePage" | "oldPage" | "emptyPage" | "shuffle" | "repeatRows" | "dropRows" };

/** What a plan can draw: a name for each fault with its usual parameters. */
export type FaultName =
  | "tooManyRequests"
  | "unavailable"
  | "gatewayTimeout"
  | "processingLimit"
  | "internalError"
  | "html"
  | "truncate"
  | "hang"
  | "resetBefore"
  | "resetMiddle"
  | "lag"
  | "latestBack"
  | "samePage"
  | "oldPage"
  | "shortPage"
  | "emptyPage"
  | "shortWindow"
  | "shuffle"
  | "repeatRows"
  | "dropRows";

/** A probability from 0 to 1 for each fault; what is absent does not happen. */
export type FaultRates = Partial<Readonly<Record<FaultName, number>>>;

export interface FaultPlan {
  readonly seed: number;
  readonly rates: FaultRates;
}

const MAKE: Readonly<Record<FaultName, (random: Random) => Fault>> = {
  tooManyRequests: () => ({ kind: "status", status: 429, retryAfter: 1 }),
  unavailable: () => ({ kind: "status", status: 503 }),
  gatewayTimeout: () => ({ kind: "status", status: 504 }),
  processingLimit: () => ({
    kind: "error",
    code: -32001,
    message: "request exceeded processing limit threshold",
  }),
  internalError: () => ({ kind: "error", code: -32603, message: "internal error" }),
  html: () => ({ kind: "html" }),
  truncate: () => ({ kind: "truncate" }),
  hang: () => ({ kind: "hang" }),
  resetBefore: () => ({ kind: "reset", when: "before" }),
  resetMiddle: () => ({ kind: "reset", when: "middle" }),
  lag: (random) => ({ kind: "lag", ledgers: random.int(1, 20) }),
  latestBack: (random) => ({ kind: "latestBack", ledgers: random.int(1, 20) }),
  samePage: () => ({ kind: "samePage" }),
  oldPage: () => ({ kind: "oldPage" }),
  // From 1 to about 1000 rows, small ones as often as large ones.
  shortPage: (random) => ({ kind: "shortPage", rows: Math.floor(2 ** (random.next() * 10)) }),
  emptyPage: () => ({ kind: "emptyPage" }),
  shortWindow: (random) => ({ kind: "shortWindow", ledgers: random.int(2, 20) }),
  shuffle: () => ({ kind: "shuffle" }),
  repeatRows: () => ({ kind: "repeatRows" }),
  dropRows: () => ({ kind: "dropRows" }),
};

const NAMES = Object.keys(MAKE) as FaultName[];

/** The same probability for every survivable fault except `hang`, which costs the client a time-out each time. */
export function everyFault(rate: number): FaultRates {
  return Object.fromEntries(
    NAMES.filter((n) => n !== "dropRows" && n !== "hang").map((name) => [name, rate]),
  );
}

/** The faults of the next request, drawn for each name in turn: the same seed gives the same sequence. */
export function drawFaults(plan: FaultPlan): { draw: () => Fault[]; random: Random } {
  const random = seededRandom(plan.seed);
  const draw = (): Fault[] =>
    NAMES.filter((name) => random.next() < (plan.rates[name] ?? 0)).map((name) => MAKE[name](random));
  return { draw, random };
}

/**
 * Rows that a node lost, for its setting `hides`: each with this probability, by its id and the seed alone, so the
 * same ones are missing whenever they are asked for. Nothing says so: for audits.
 */
export function losesRows({ seed, rate }: { readonly seed: number; readonly rate: number }) {
  return ({ id }: { readonly id: string }): boolean => {
    const draw = createHash("sha256").update(`${seed} ${id}`).digest().readUInt32BE() / 2 ** 32;
    return draw < rate;
  };
}
