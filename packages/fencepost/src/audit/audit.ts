import { deriveEventId, type FencingToken, tokenFromRpcId } from "@fencepost/token";
import { startsOf } from "../ingest/commit.ts";
import { covers, isOfOperation, tokensWithin } from "../ingest/coverage.ts";
import { StreamMismatchError } from "../ingest/errors.ts";
import { contentHash } from "../ingest/identify.ts";
import { ChainResetError } from "../source/errors.ts";
import { readAhead } from "../source/readAhead.ts";
import type { Source, SourceWindow } from "../source/source.ts";
import type { DeliveryStore } from "../store/deliveryStore.ts";
import { readProjectionPlaces, readSilentEvents, type TokenRange } from "../store/postgres/audit.ts";
import type { Database } from "../store/postgres/database.ts";
import type { LedgerRange } from "../store/postgres/gaps.ts";
import { readStoredEvents, type StoredSourceEvent } from "../store/postgres/storedEvents.ts";
import { readStream, readWatches, type StreamRow, type Watch } from "../store/postgres/streams.ts";
import { auditMessages } from "./messages.ts";
import {
  type AuditReport,
  countDifferences,
  type EventsAudit,
  Finding,
  type NamedMessage,
} from "./report.ts";
import { auditHandlers, type RerunOptions } from "./rerun.ts";

export interface AuditOptions extends LedgerRange {
  /** What is read again: that of the stream, or another provider of its chain. */
  readonly source: Source;
  /** Where the deliveries live. */
  readonly store: Pick<DeliveryStore, "listWebhooks" | "deliveriesOf">;
  /** Compare the events of contract operations only: fees are an option of each node. All unless given. */
  readonly operationsOnly?: boolean;
  /** Run the handlers of these projections again, from their first event: it takes as long as to build them. */
  readonly rerun?: RerunOptions;
  readonly signal: AbortSignal;
}

/** The range has no ledger that the stream has read. */
export class AuditRangeError extends Error {
  override readonly name = "AuditRangeError";
}

/** Events read from the database at once. */
const PAGE = 5_000;
/** Events without a message that are looked up, at the most. */
const MAX_SILENT = 10_000;

/**
 * Reads a range of ledgers again, and holds against it what every stage made of it: stored events, live projections,
 * messages, and a delivery for each webhook that was due it. Nothing is changed. Ledgers that the stream has not read
 * yet are left out. What runs meanwhile does not disturb it, but a message that a projection emits at that moment may
 * not be looked at. Throws {@link AuditRangeError}, `StreamMismatchError`, `ChainResetError`, `SharedConnectionError`
 * where handlers are to run again behind a pooler, and what the source and the stores throw.
 */
export async function audit(
  database: Database,
  { source, store, operationsOnly = false, rerun: rerunOptions, signal, ...wanted }: AuditOptions,
): Promise<AuditReport> {
  const { chain } = source;
  const stream = await readStream(database, chain.stream);
  if (!stream || stream.epoch !== chain.epoch || stream.passphrase !== source.passphrase) {
    throw new StreamMismatchError(chain.stream, stream?.epoch ?? "no network yet", chain.epoch);
  }
  const watches = await readWatches(database, chain.stream);
  const range = {
    fromLedger: Math.max(wanted.fromLedger, Math.min(...watches.map(({ startLedger }) => startLedger))),
    throughLedger: Math.min(wanted.throughLedger, stream.nextLedger - 1),
  };
  if (!(range.fromLedger <= range.throughLedger)) {
    throw new AuditRangeError(
      `${chain.stream} has read no watched ledger from ${wanted.fromLedger} to ${wanted.throughLedger}.`,
    );
  }
  const tokens = tokensWithin(chain, range);
  const isCompared = operationsOnly ? isOfOperation : () => true;
  // First: what it needs of the connection is refused before anything long is done.
  const rerun = rerunOptions
    ? await auditHandlers(
        database,
        await readProjectionPlaces(database, chain.stream, tokens),
        tokens,
        rerunOptions,
        signal,
      )
    : null;
  const compared = await auditEvents(database, source, { stream, watches, range, isCompared, signal });
  const proven = (rerun?.projections ?? []).filter(({ unproven }) => unproven === null);
  const missing = await findMissingMessages(
    database,
    store,
    { stream: chain.stream, tokens, except: proven.map(({ name }) => name) },
    signal,
  );
  const { messages, webhooks } = await auditMessages(database, store, tokens, signal);
  const stages = {
    events: compared.events,
    projections: await readProjectionPlaces(database, chain.stream, tokens),
    messages: { ...messages, ...missing },
    rerun,
    webhooks,
  };
  return {
    stream: chain.stream,
    source: source.name ?? chain.stream,
    ...range,
    unreadFrom: compared.unreadFrom,
    ...stages,
    differences: countDifferences(stages),
  };
}

interface Comparison {
  readonly stream: StreamRow;
  readonly watches: readonly Watch[];
  readonly range: LedgerRange;
  readonly isCompared: (token: FencingToken) => boolean;
  readonly signal: AbortSignal;
}

async function auditEvents(
  database: Database,
  source: Source,
  { stream, watches, range, isCompared, signal }: Comparison,
): Promise<{ readonly events: EventsAudit; readonly unreadFrom: number | null }> {
  const contractIds = watches.map(({ contractId }) => contractId);
  const request = { ...range, contractIds, startLedgers: startsOf(watches) };
  const windows = readAhead(source, { ...request, ...(stream.anchor && { anchor: stream.anchor }) }, signal);
  const watchOf = new Map(watches.map((watch) => [watch.contractId, watch]));
  const isDue = (event: SourceWindowEvent): boolean => {
    const watch = watchOf.get(event.contractId ?? "");
    return watch !== undefined && covers(watch, stream, event);
  };
  const found = {
    missing: new Finding<FencingToken>(),
    extra: new Finding<FencingToken>(),
    different: new Finding<FencingToken>(),
    doubled: new Finding<FencingToken>(),
  };
  let agreed = 0;
  try {
    while (windows.hasNext) {
      signal.throwIfAborted();
      const unreadFrom = windows.position;
      const window = await windows.next();
      if (window.kind === "reset") throw new ChainResetError(source.chain, window.anchor, window.found);
      if (window.kind !== "window") return { events: { agreed, ...found }, unreadFrom };

      const served = new Map<FencingToken, SourceWindowEvent>();
      for (const event of window.events) {
        const token = tokenFromRpcId(source.chain, event.id);
        if (isCompared(token)) served.set(token, event);
      }
      const tokens = tokensWithin(source.chain, window);
      const stored = new Set<FencingToken>();
      for await (const event of storedWithin(database, tokens, contractIds)) {
        if (!isCompared(event.token)) continue;
        const original = served.get(event.token);
        if (stored.has(event.token)) found.doubled.add(event.token);
        else if (!original) found.extra.add(event.token);
        else if (isSame(event, contentHash(original))) agreed++;
        else found.different.add(event.token);
        stored.add(event.token);
      }
      for (const [token, event] of served) {
        if (!stored.has(token) && isDue(event)) found.missing.add(token);
      }
    }
  } finally {
    windows.stop();
  }
  return { events: { agreed, ...found }, unreadFrom: null };
}

type SourceWindowEvent = Extract<SourceWindow, { kind: "window" }>["events"][number];

/** Not only the hash that was stored: what is stored beside it, too. */
function isSame(stored: StoredSourceEvent, hash: Buffer): boolean {
  return stored.contentHash.equals(hash) && contentHash(stored).equals(hash);
}

async function* storedWithin(
  database: Database,
  { from, through }: TokenRange,
  contractIds: readonly string[],
): AsyncGenerator<StoredSourceEvent> {
  let after: string = from.slice(0, -1); // before the first token
  for (;;) {
    const page = await readStoredEvents(database, { after, through }, contractIds, PAGE);
    yield* page;
    const last = page.at(-1);
    if (!last || page.length < PAGE) return;
    after = last.token;
  }
}

/**
 * A message's id is derived from its token and type: where deliveries of that id are on record and the message is not,
 * it was there once.
 */
async function findMissingMessages(
  database: Database,
  store: AuditOptions["store"],
  range: { readonly stream: string; readonly tokens: TokenRange; readonly except: readonly string[] },
  signal: AbortSignal,
): Promise<{
  readonly missing: Finding<NamedMessage>;
  readonly silent: Finding<Omit<NamedMessage, "eventId">>;
}> {
  const missing = new Finding<NamedMessage>();
  const silent = new Finding<Omit<NamedMessage, "eventId">>();
  for (const { token, type } of await readSilentEvents(database, range, MAX_SILENT)) {
    signal.throwIfAborted();
    const eventId = deriveEventId(token, type);
    const deliveries = await store.deliveriesOf(eventId);
    if (deliveries.length > 0) missing.add({ token, eventId, type });
    else silent.add({ token, type });
  }
  return { missing, silent };
}
