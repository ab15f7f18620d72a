import type { DatabaseClient, Queryable } from "./database.ts";

/** Ledgers, both inclusive. */
export interface LedgerRange {
  readonly fromLedger: number;
  readonly throughLedger: number;
}

/** Ledgers that a source no longer had when a stream came to them. */
export interface Gap extends LedgerRange {
  readonly stream: string;
  readonly epoch: string;
  readonly foundAt: Date;
  /** When the owner let the stream go on beyond it; null where it waits. */
  readonly acceptedAt: Date | null;
  /** When a source gave the ledgers after all, and which; null while they are missing. */
  readonly healedAt: Date | null;
  readonly healedBy: string | null;
}

/** Gaps that are listed, at the most. */
const LISTED = 1_000;

/** The gaps on record, those that are open first, then the newest. */
export async function readGaps(db: Queryable): Promise<readonly Gap[]> {
  const { rows } = await db.query<Gap>(
    `SELECT stream, epoch, from_ledger::int AS "fromLedger", to_ledger::int AS "throughLedger",
            found_at AS "foundAt", accepted_at AS "acceptedAt", healed_at AS "healedAt", healed_by AS "healedBy"
     FROM fencepost.gaps
     ORDER BY healed_at DESC NULLS FIRST, found_at DESC, stream, from_ledger LIMIT ${LISTED}`,
  );
  return rows;
}

/** Ledgers of a range that are missing, in order, and those of neighbouring gaps together. */
export async function readMissingLedgers(
  db: Queryable,
  { stream, epoch }: Chain,
  { fromLedger, throughLedger }: LedgerRange,
): Promise<readonly LedgerRange[]> {
  const { rows } = await db.query<LedgerRange>(
    `SELECT lower(r)::int AS "fromLedger", (upper(r) - 1)::int AS "throughLedger"
     FROM unnest((
       SELECT range_agg(int8range(greatest(from_ledger, $3), least(to_ledger, $4), '[]')) FROM fencepost.gaps
       WHERE stream = $1 AND epoch = $2 AND healed_at IS NULL AND from_ledger <= $4 AND to_ledger >= $3
     )) AS r`,
    [stream, epoch, fromLedger, throughLedger],
  );
  return rows;
}

type Chain = { readonly stream: string; readonly epoch: string };

/** Names a hole. `accepted`: the owner told the stream to go on beyond it. False: it was named like this before. */
export async function insertGap(
  client: DatabaseClient,
  { stream, epoch }: Chain,
  { fromLedger, throughLedger }: LedgerRange,
  accepted: boolean,
): Promise<boolean> {
  // Until the stream goes on, the hole is what the source says now; after that it can only be more.
  const { rowCount } = await client.query(
    `INSERT INTO fencepost.gaps AS g (stream, epoch, from_ledger, to_ledger, accepted_at)
     VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN now() END)
     ON CONFLICT (stream, epoch, from_ledger) WHERE healed_at IS NULL DO UPDATE
       SET to_ledger = CASE WHEN g.accepted_at IS NULL THEN excluded.to_ledger
                            ELSE greatest(g.to_ledger, excluded.to_ledger) END,
           accepted_at = coalesce(g.accepted_at, excluded.accepted_at)
       WHERE g.to_ledger < excluded.to_ledger OR (g.accepted_at IS NULL AND (excluded.accepted_at IS NOT NULL
             OR g.to_ledger <> excluded.to_ledger))`,
    [stream, epoch, fromLedger, throughLedger, accepted],
  );
  if (!accepted)
    await client.query("UPDATE fencepost.streams SET halted = 'gap' WHERE stream = $1", [stream]);
  return rowCount === 1;
}

/**
 * Records that `by` gave these ledgers: what is left of a gap before and after them stays open. Those beyond which
 * the stream went are healed only where `accepted`: they need every contract to have been read. The caller holds the
 * lock of the stream's row. Returns how many missing ledgers are missing no more.
 */
export async function healGaps(
  client: DatabaseClient,
  { stream, epoch }: Chain,
  { fromLedger, throughLedger }: LedgerRange,
  { by, accepted }: { readonly by: string; readonly accepted: boolean },
): Promise<number> {
  const { rows } = await client.query<LedgerRange & { id: bigint; foundAt: Date; acceptedAt: Date | null }>(
    `DELETE FROM fencepost.gaps
     WHERE stream = $1 AND epoch = $2 AND healed_at IS NULL AND from_ledger <= $4 AND to_ledger >= $3
       AND (accepted_at IS NULL OR $5)
     RETURNING from_ledger::int AS "fromLedger", to_ledger::int AS "throughLedger", found_at AS "foundAt",
               accepted_at AS "acceptedAt"`,
    [stream, epoch, fromLedger, throughLedger, accepted],
  );
  let healed = 0;
  let counted = fromLedger - 1;
  for (const gap of rows.sort((a, b) => a.fromLedger - b.fromLedger)) {
    const from = Math.max(gap.fromLedger, fromLedger);
    const through = Math.min(gap.throughLedger, throughLedger);
    const left = [
      { fromLedger: gap.fromLedger, throughLedger: from - 1 },
      { fromLedger: through + 1, throughLedger: gap.throughLedger },
    ];
    for (const range of left.filter((part) => part.fromLedger <= part.throughLedger)) {
      await client.query(
        `INSERT INTO fencepost.gaps AS g (stream, epoch, from_ledger, to_ledger, found_at, accepted_at)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (stream, epoch, from_ledger) WHERE healed_at IS NULL
           DO UPDATE SET to_ledger = greatest(g.to_ledger, excluded.to_ledger)`,
        [stream, epoch, range.fromLedger, range.throughLedger, gap.foundAt, gap.acceptedAt],
      );
    }
    // A gap is healed a window at a time: what the same source gave just before it is one row with it.
    const { rowCount } = await client.query(
      `UPDATE fencepost.gaps SET to_ledger = $4, healed_at = now()
       WHERE stream = $1 AND epoch = $2 AND healed_by = $5 AND to_ledger = $3::bigint - 1 AND found_at = $6`,
      [stream, epoch, from, through, by, gap.foundAt],
    );
    if (rowCount === 0) {
      await client.query(
        `INSERT INTO fencepost.gaps (stream, epoch, from_ledger, to_ledger, found_at, accepted_at, healed_at, healed_by)
         VALUES ($1, $2, $3, $4, $5, $6, now(), $7)`,
        [stream, epoch, from, through, gap.foundAt, gap.acceptedAt, by],
      );
    }
    healed += Math.max(0, through - Math.max(counted, from - 1));
    counted = Math.max(counted, through);
  }
  return healed;
}

/** The life of a chain that has ended takes its gaps with it: nobody has those ledgers any more. */
export async function acceptGaps(client: DatabaseClient, { stream, epoch }: Chain): Promise<void> {
  await client.query(
    "UPDATE fencepost.gaps SET accepted_at = now() WHERE stream = $1 AND epoch = $2 AND accepted_at IS NULL",
    [stream, epoch],
  );
}
