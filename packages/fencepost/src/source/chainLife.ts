// What tells one life of a chain from another. After a reset the passphrase stays and ledger numbers, contract ids,
// even transaction hashes recur; ledger hashes and close times do not.
import type { LedgerRef, SourceHead } from "./source.ts";

/** Whether two answers about one ledger number are of two chains: other close times, or other hashes. */
export function differs(anchor: LedgerRef, found: LedgerRef): boolean {
  if (anchor.closedAt !== found.closedAt) return true;
  return anchor.hash !== null && found.hash !== null && anchor.hash !== found.hash;
}

/**
 * Whether a ledger cannot be on the chain of the anchor: close times never go back, so one that is earlier in the
 * chain cannot have closed later, nor a later one earlier. It finds a reset also when the new chain has grown past
 * the anchor: all of it closed after the anchor did.
 */
export function contradicts(anchor: LedgerRef, { ledger, hash, closedAt }: LedgerRef): boolean {
  if (ledger === anchor.ledger) return differs(anchor, { ledger, hash, closedAt });
  return ledger < anchor.ledger ? closedAt > anchor.closedAt : closedAt < anchor.closedAt;
}

/** The end of a node's range that contradicts the anchor, if one does. */
export function contradiction(anchor: LedgerRef, head: SourceHead): LedgerRef | undefined {
  return endsOf(head).find((end) => contradicts(anchor, end));
}

function endsOf({ latestLedger, latestClosedAt, oldestLedger, oldestClosedAt }: SourceHead): LedgerRef[] {
  const end = (ledger: number, closedAt: number | undefined): LedgerRef[] =>
    closedAt === undefined ? [] : [{ ledger, hash: null, closedAt }];
  return [...end(latestLedger, latestClosedAt), ...end(oldestLedger, oldestClosedAt)];
}

/** When the ledger of the anchor was looked at last, and what the node said last that it has. */
export interface Look {
  /** Milliseconds, on any steady clock. */
  readonly lookedAt: number;
  readonly seenAt: number;
  readonly latestLedger: number;
}

/** A node is looked at again after this long in any case, in milliseconds. */
const LOOK_AGAIN_MS = 300_000;
/** Ledgers by which a node may have moved since it was seen last, beside one for each second. */
const EXPECTED_LEDGERS = 12;
/** Ledgers by which it may be behind what it said last: answers overtake each other, and behind one url are several. */
const EXPECTED_BACK = 3;

/**
 * Whether the ledger of the anchor is to be looked at before this node is believed: for the first time, after a
 * while, and where its newest ledger went back or jumped, as it does when the chain is another one.
 */
export function needsLook(look: Look | undefined, latestLedger: number, now: number): boolean {
  if (!look || now - look.lookedAt > LOOK_AGAIN_MS) return true;
  const moved = latestLedger - look.latestLedger;
  return moved < -EXPECTED_BACK || moved > EXPECTED_LEDGERS + (now - look.seenAt) / 1_000;
}

const DAY_S = 86_400;

/** How long a ledger takes on the known networks, over years: 5 to 6 seconds, with room for what may come. */
const LEAST_S = 2.5;
const MOST_S = 8;
/** An epoch is a day, and a network may stand still around a reset. */
const EARLIER_S = 2 * DAY_S;
const LATER_S = 7 * DAY_S;

/**
 * Whether a chain whose ledger `newest` closed when it did can have begun on the day `epoch` (yyyymmdd); if not,
 * the days between which it began. A network of one's own has its own pace: only an epoch after its newest
 * ledger cannot be.
 */
export function decideEpoch(
  epoch: string,
  newest: LedgerRef,
  hasKnownPace: boolean,
): { readonly earliest: string; readonly latest: string } | "plausible" {
  const { ledger, closedAt } = newest;
  const age = closedAt - startOfDay(epoch);
  const [least, most] = hasKnownPace ? [ledger * LEAST_S, ledger * MOST_S] : [0, Number.POSITIVE_INFINITY];
  if (age >= least - EARLIER_S && age <= most + LATER_S) return "plausible";
  const earliest = Number.isFinite(most) ? closedAt - most : 0;
  return { earliest: dayOf(earliest), latest: dayOf(closedAt - least) };
}

function startOfDay(epoch: string): number {
  return Date.UTC(Number(epoch.slice(0, 4)), Number(epoch.slice(4, 6)) - 1, Number(epoch.slice(6))) / 1000;
}

function dayOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}
