import { createHash } from "node:crypto";
import { RpcResponseError, SourceUnavailableError } from "../source/errors.ts";
import type { LedgerRef, Source, SourceHead } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import {
  adoptFilters,
  discoverAgain,
  insertStream,
  lockStream,
  readLastLedger,
  readStream,
  readWatches,
  type StreamRow,
  type Watch,
  writeAnchor,
  writeWatches,
} from "../store/postgres/streams.ts";
import type { DiscoveryRule } from "./discovery.ts";
import { type FilterChange, FilterSetChangedError, StreamMismatchError } from "./errors.ts";

/** A contract to watch, and from where: a ledger, the newest one, or the oldest that the source has. */
export interface WatchRequest {
  readonly contractId: string;
  readonly startLedger: number | "latest" | "oldest";
}

export interface RegisterOptions {
  /** Take over a filter set that differs from the stored one; otherwise it throws. */
  readonly adopt: boolean;
  readonly signal: AbortSignal;
  /** Rules by which events name further contracts. */
  readonly rules?: readonly DiscoveryRule[];
}

/**
 * Makes the stream's row, or checks that this process watches what its stream does, and that the source still has the
 * stream's chain. Safe from several processes at once. Throws {@link FilterSetChangedError},
 * {@link StreamMismatchError}, `ChainResetError`, `EpochMismatchError`, a `TypeError` for nothing to watch, or what
 * the source throws where its ledgers must be known.
 */
export async function registerStream(
  database: Database,
  source: Source,
  requests: readonly WatchRequest[],
  { adopt, signal, rules = [] }: RegisterOptions,
): Promise<void> {
  if (requests.length === 0) throw new TypeError("No projection of this config watches a contract.");
  const { stream, epoch } = source.chain;
  const filtersHash = hashFilters(requests, rules);
  const before = await readStream(database, stream);
  if (before) checkSameChain(before, source);
  const known = before && (before.anchor ?? (await readLastLedger(database, before)));
  const head = await headOrReason(source, known, signal);
  const anchor = known ?? (await firstAnchor(source, head, signal));
  await database.transaction(async (client) => {
    const existing = await lockStream(client, stream);
    if (!existing) {
      const watches = requests.map((request) => resolveWatch(request, requireHead(head)));
      const nextLedger = Math.min(...watches.map((watch) => watch.startLedger));
      const row = { stream, epoch, passphrase: source.passphrase, nextLedger, filtersHash };
      if (await insertStream(client, row)) {
        if (anchor) await writeAnchor(client, stream, anchor);
        return writeWatches(client, stream, watches);
      }
    }
    const stored = existing ?? (await lockStream(client, stream));
    if (!stored) throw new Error(`The row of stream ${stream} vanished while it was registered.`);
    checkSameChain(stored, source);
    if (!stored.anchor && anchor) await writeAnchor(client, stream, anchor);

    const watched = await readWatches(client, stream);
    const widens = requests.some((request) => isWidened(request, watched));
    if (stored.filtersHash === filtersHash && !widens) return;
    const change = decideWatches(watched, requests, requireHead(head), stored.nextLedger, rules);
    if (!adopt) throw new FilterSetChangedError(stream, change);
    await writeWatches(client, stream, change.watches);
    await adoptFilters(client, stream, filtersHash);
    if (rules.length > 0) await discoverAgain(client, stream);
  });
}

/**
 * A source that is away holds nobody up whose stream is on record: what is stored is still projected and
 * delivered. One of another network, or of another chain, is refused at once.
 */
async function headOrReason(
  source: Source,
  anchor: LedgerRef | undefined,
  signal: AbortSignal,
): Promise<SourceHead | Error> {
  try {
    return await source.check(signal, anchor);
  } catch (error) {
    if (isAway(error)) return error;
    throw error;
  }
}

async function firstAnchor(
  source: Source,
  head: SourceHead | Error,
  signal: AbortSignal,
): Promise<LedgerRef | undefined> {
  if (head instanceof Error) return undefined;
  try {
    return (await source.ledger?.(head.latestLedger, signal)) ?? undefined;
  } catch (error) {
    if (isAway(error)) return undefined; // the first window brings one
    throw error;
  }
}

function isAway(error: unknown): error is Error {
  return error instanceof SourceUnavailableError || error instanceof RpcResponseError;
}

function requireHead(head: SourceHead | Error): SourceHead {
  if (head instanceof Error) throw head;
  return head;
}

/**
 * What a changed filter set means for each contract. Those added read their own past before they join; those that
 * begin earlier than they did read that part of it beside. Those that an event named stay while their rule does.
 */
export function decideWatches(
  known: readonly Watch[],
  requests: readonly WatchRequest[],
  head: SourceHead,
  nextLedger: number,
  rules: readonly DiscoveryRule[] = [],
): FilterChange & { readonly watches: readonly Watch[] } {
  const knownById = new Map(known.map((watch) => [watch.contractId, watch]));
  const wanted = new Set(requests.map((request) => request.contractId));
  const ruleNames = new Set(rules.map(({ name }) => name));
  const requested = requests.map((request) => {
    const existing = knownById.get(request.contractId);
    if (existing) return widen(existing, request.startLedger, nextLedger);
    const watch = resolveWatch(request, head);
    return watch.startLedger < nextLedger ? { ...watch, nextLedger: watch.startLedger } : watch;
  });
  const found = known.filter(
    ({ contractId, foundBy }) => !wanted.has(contractId) && foundBy !== null && ruleNames.has(foundBy),
  );
  const watches = [...requested, ...found];
  const kept = new Set(watches.map((watch) => watch.contractId));
  return {
    watches,
    added: [...wanted].filter((id) => !knownById.has(id)),
    removed: known.map((watch) => watch.contractId).filter((id) => !kept.has(id)),
    widened: requests.filter((request) => isWidened(request, known)).map(({ contractId }) => contractId),
  };
}

function isWidened({ contractId, startLedger }: WatchRequest, known: readonly Watch[]): boolean {
  const watch = known.find((each) => each.contractId === contractId);
  return watch !== undefined && typeof startLedger === "number" && startLedger < watch.startLedger;
}

/** What a contract has, it has: only the ledgers before its former start are read, while it goes on with the rest. */
function widen(watch: Watch, startLedger: WatchRequest["startLedger"], nextLedger: number): Watch {
  if (typeof startLedger !== "number" || startLedger >= watch.startLedger) return watch;
  const endLedger = watch.earlier?.endLedger ?? Math.min(watch.startLedger, nextLedger);
  const earlier = startLedger < endLedger ? { nextLedger: startLedger, endLedger } : null;
  return { ...watch, startLedger, earlier };
}

function resolveWatch({ contractId, startLedger }: WatchRequest, head: SourceHead): Watch {
  const named = { latest: head.latestLedger, oldest: head.oldestLedger };
  return {
    contractId,
    startLedger: typeof startLedger === "number" ? startLedger : named[startLedger],
    nextLedger: null,
    earlier: null,
    foundBy: null,
  };
}

function checkSameChain(stored: StreamRow, source: Source): void {
  if (stored.passphrase === source.passphrase && stored.epoch === source.chain.epoch) return;
  throw new StreamMismatchError(
    stored.stream,
    `${stored.passphrase} (epoch ${stored.epoch})`,
    `${source.passphrase} (epoch ${source.chain.epoch})`,
  );
}

function hashFilters(requests: readonly WatchRequest[], rules: readonly DiscoveryRule[]): string {
  const ids = requests.map((request) => request.contractId).sort();
  const named = rules.map(({ name }) => `found by ${name}`).sort();
  return createHash("sha256")
    .update([...ids, ...named].join("\n"))
    .digest("hex");
}
