import { createHash } from "node:crypto";
import { RpcResponseError, SourceUnavailableError } from "../source/errors.ts";
import type { Source, SourceHead } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import {
  adoptFilters,
  insertStream,
  lockStream,
  readWatches,
  type StreamRow,
  type Watch,
  writeWatches,
} from "../store/postgres/streams.ts";
import { FilterSetChangedError, StreamMismatchError } from "./errors.ts";

/** A contract to watch, and from where: a ledger, the newest one, or the oldest that the source has. */
export interface WatchRequest {
  readonly contractId: string;
  readonly startLedger: number | "latest" | "oldest";
}

export interface RegisterOptions {
  /** Take over a filter set that differs from the stored one; otherwise it throws. */
  readonly adopt: boolean;
  readonly signal: AbortSignal;
}

/**
 * Makes the stream's row, or checks that this process watches what its stream does. Safe from several processes
 * at once. Throws {@link FilterSetChangedError}, {@link StreamMismatchError}, a `TypeError` for nothing to watch, or
 * what the source throws where its ledgers must be known.
 */
export async function registerStream(
  database: Database,
  source: Source,
  requests: readonly WatchRequest[],
  { adopt, signal }: RegisterOptions,
): Promise<void> {
  if (requests.length === 0) throw new TypeError("No projection of this config watches a contract.");
  const { stream, epoch } = source.chain;
  const filtersHash = hashFilters(requests.map((request) => request.contractId));
  const head = await headOrReason(source, signal);
  await database.transaction(async (client) => {
    const existing = await lockStream(client, stream);
    if (!existing) {
      const watches = requests.map((request) => resolveWatch(request, requireHead(head)));
      const nextLedger = Math.min(...watches.map((watch) => watch.startLedger));
      const row = { stream, epoch, passphrase: source.passphrase, nextLedger, filtersHash };
      if (await insertStream(client, row)) return writeWatches(client, stream, watches);
    }
    const stored = existing ?? (await lockStream(client, stream));
    if (!stored) throw new Error(`The row of stream ${stream} vanished while it was registered.`);
    checkSameChain(stored, source);
    if (stored.filtersHash === filtersHash) return;

    const known = await readWatches(client, stream);
    const change = decideWatches(known, requests, requireHead(head), stored.nextLedger);
    if (!adopt) throw new FilterSetChangedError(stream, change.added, change.removed);
    await writeWatches(client, stream, change.watches);
    await adoptFilters(client, stream, filtersHash);
  });
}

/**
 * A source that is away holds nobody up whose stream is on record: what is stored is still projected and
 * delivered. One of another network is refused at once.
 */
async function headOrReason(source: Source, signal: AbortSignal): Promise<SourceHead | Error> {
  try {
    return await source.check(signal);
  } catch (error) {
    if (error instanceof SourceUnavailableError || error instanceof RpcResponseError) return error;
    throw error;
  }
}

function requireHead(head: SourceHead | Error): SourceHead {
  if (head instanceof Error) throw head;
  return head;
}

/** What a changed filter set means for each contract. Those added read their own past before they join. */
export function decideWatches(
  known: readonly Watch[],
  requests: readonly WatchRequest[],
  head: SourceHead,
  nextLedger: number,
): {
  readonly watches: readonly Watch[];
  readonly added: readonly string[];
  readonly removed: readonly string[];
} {
  const knownById = new Map(known.map((watch) => [watch.contractId, watch]));
  const wanted = new Set(requests.map((request) => request.contractId));
  const watches = requests.map((request) => {
    const existing = knownById.get(request.contractId);
    if (existing) return existing;
    const watch = resolveWatch(request, head);
    return watch.startLedger < nextLedger ? { ...watch, nextLedger: watch.startLedger } : watch;
  });
  return {
    watches,
    added: [...wanted].filter((id) => !knownById.has(id)),
    removed: known.map((watch) => watch.contractId).filter((id) => !wanted.has(id)),
  };
}

function resolveWatch({ contractId, startLedger }: WatchRequest, head: SourceHead): Watch {
  const named = { latest: head.latestLedger, oldest: head.oldestLedger };
  return {
    contractId,
    startLedger: typeof startLedger === "number" ? startLedger : named[startLedger],
    nextLedger: null,
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

function hashFilters(contractIds: readonly string[]): string {
  return createHash("sha256")
    .update([...contractIds].sort().join("\n"))
    .digest("hex");
}
