import type { LedgerRef, Source } from "../source/source.ts";
import type { Database } from "../store/postgres/database.ts";
import { acceptGaps } from "../store/postgres/gaps.ts";
import { lockStream, moveToEpoch } from "../store/postgres/streams.ts";
import { StreamMismatchError } from "./errors.ts";

export interface BeginEpochOptions {
  /** The first ledger of the new chain that is read; the oldest one that the source has unless given. */
  readonly fromLedger?: number;
  readonly signal: AbortSignal;
}

export interface BegunEpoch {
  /** The epoch before. */
  readonly before: string;
  readonly epoch: string;
  readonly nextLedger: number;
}

/**
 * Goes on with the chain that a reset network began: the epoch of the source's config, which must be a later day than
 * the stream's. What is stored stays, under tokens of the epoch before; every watched contract begins anew on the new
 * chain, and those that events named are found again. Whoever led the stream can commit no more. Throws
 * {@link StreamMismatchError}, and what `check` of the source throws.
 */
export async function beginEpoch(
  database: Database,
  source: Source,
  { fromLedger, signal }: BeginEpochOptions,
): Promise<BegunEpoch> {
  const { stream, epoch } = source.chain;
  const head = await source.check(signal);
  const anchor: LedgerRef | null = (await source.ledger?.(head.latestLedger, signal)) ?? null;
  const nextLedger = fromLedger ?? head.oldestLedger;
  return database.transaction(async (client) => {
    const stored = await lockStream(client, stream);
    if (stored?.passphrase !== source.passphrase || stored.epoch >= epoch) {
      const found = stored ? `${stored.passphrase} (epoch ${stored.epoch})` : "no network yet";
      throw new StreamMismatchError(
        stream,
        found,
        `${source.passphrase} (epoch ${epoch}), which is no later one`,
      );
    }
    await acceptGaps(client, stored);
    await moveToEpoch(client, stream, { epoch, nextLedger, anchor });
    return { before: stored.epoch, epoch, nextLedger };
  });
}
