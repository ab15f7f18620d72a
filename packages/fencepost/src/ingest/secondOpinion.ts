import { type FencingToken, tokenFromRpcId } from "@fencepost/token";
import { ChainResetError } from "../source/errors.ts";
import { readAhead } from "../source/readAhead.ts";
import type { Source } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import type { LedgerRange } from "../store/postgres/gaps.ts";
import { readStoredHashes, readStream, readWatches } from "../store/postgres/streams.ts";
import { startsOf } from "./commit.ts";
import { covers, isOfOperation, tokensWithin } from "./coverage.ts";
import { StreamMismatchError } from "./errors.ts";
import { contentHash } from "./identify.ts";

/** What another provider says of ledgers that are stored. Only events of contract operations are compared. */
export interface SecondOpinion extends LedgerRange {
  /** The provider that was asked. */
  readonly provider: string;
  /** Events that are stored and that the provider has too, with the same content. */
  readonly agreed: number;
  /** The provider has them, and they are not stored: `backfill` over the range stores them. */
  readonly notStored: readonly FencingToken[];
  /** They are stored, and the provider does not have them. */
  readonly notServed: readonly FencingToken[];
  /** Both have them, with other content. */
  readonly different: readonly FencingToken[];
  /** The first ledger that the provider could not be asked about; null where it told everything. */
  readonly unreadFrom: number | null;
}

/** Tokens that one opinion lists, at the most: then it ends, at the ledger it has come to. */
const MAX_LISTED = 100_000;

/**
 * Reads the last `ledgers` ledgers of the stream again through another provider, and compares token by token. Nothing
 * is stored. Throws {@link StreamMismatchError}, `ChainResetError`, and what the provider throws.
 */
export async function secondOpinion(
  database: Database,
  provider: Source,
  { ledgers, signal }: { readonly ledgers: number; readonly signal: AbortSignal },
): Promise<SecondOpinion> {
  const { chain } = provider;
  const stream = await readStream(database, chain.stream);
  if (!stream || stream.epoch !== chain.epoch || stream.passphrase !== provider.passphrase) {
    throw new StreamMismatchError(chain.stream, stream?.epoch ?? "no network yet", chain.epoch);
  }
  const watches = await readWatches(database, chain.stream);
  const first = Math.min(...watches.map((watch) => watch.startLedger));
  const range = {
    fromLedger: Math.max(first, stream.nextLedger - ledgers),
    throughLedger: stream.nextLedger - 1,
  };
  const contractIds = watches.map((watch) => watch.contractId);
  const anchor = stream.anchor ? { anchor: stream.anchor } : {};
  const startLedgers = startsOf(watches);
  const windows = readAhead(provider, { ...range, contractIds, startLedgers, ...anchor }, signal);

  const found: Record<"notStored" | "notServed" | "different", FencingToken[]> = {
    notStored: [],
    notServed: [],
    different: [],
  };
  let agreed = 0;
  let unreadFrom: number | null = null;
  try {
    while (windows.hasNext) {
      signal.throwIfAborted();
      const { position } = windows;
      const window = await windows.next();
      if (window.kind === "reset") throw new ChainResetError(chain, window.anchor, window.found);
      const isFull = Object.values(found).some((tokens) => tokens.length > MAX_LISTED);
      if (window.kind !== "window" || isFull) {
        unreadFrom = position;
        break;
      }
      const served = new Map<FencingToken, Buffer>();
      for (const event of window.events) {
        const token = tokenFromRpcId(chain, event.id);
        const isDue = watches.some((watch) => covers(watch, stream, event));
        if (isDue && isOfOperation(token)) served.set(token, contentHash(event));
      }
      const stored = await readStoredHashes(database, tokensWithin(chain, window), contractIds);
      for (const [token, hash] of served) {
        const storedHash = stored.get(token);
        if (!storedHash) found.notStored.push(token);
        else if (storedHash.equals(hash)) agreed++;
        else found.different.push(token);
      }
      const notServed = [...stored.keys()].filter((token) => !served.has(token) && isOfOperation(token));
      found.notServed.push(...notServed.sort());
    }
  } finally {
    windows.stop();
  }
  return { provider: provider.name ?? chain.stream, ...range, agreed, ...found, unreadFrom };
}
