import type { FencingToken } from "@fencepost/token";
import type { DatabaseClient, Queryable } from "./database.ts";

/** The cursor row of a stream. Ledgers are 31-bit numbers; seq and term are not. */
export interface StreamRow {
  readonly stream: string;
  readonly epoch: string;
  readonly passphrase: string;
  readonly nextLedger: number;
  readonly filtersHash: string;
  readonly seq: bigint;
  readonly term: bigint;
  readonly latestLedger: number | null;
  readonly halted: string | null;
}

export interface Watch {
  readonly contractId: string;
  readonly startLedger: number;
  /** Where a contract added later has got to; null once it has joined the stream's cursor. */
  readonly nextLedger: number | null;
}

const STREAM_COLUMNS = `stream, epoch, passphrase, next_ledger::int AS "nextLedger", filters_hash AS "filtersHash",
  seq, term, latest_ledger::int AS "latestLedger", halted`;

export async function readStream(db: Queryable, stream: string): Promise<StreamRow | undefined> {
  const { rows } = await db.query<StreamRow>(
    `SELECT ${STREAM_COLUMNS} FROM fencepost.streams WHERE stream = $1`,
    [stream],
  );
  return rows[0];
}

/** Locks the row for the rest of the transaction: every writer of a stream's events goes through it. */
export async function lockStream(client: DatabaseClient, stream: string): Promise<StreamRow | undefined> {
  const { rows } = await client.query<StreamRow>(
    `SELECT ${STREAM_COLUMNS} FROM fencepost.streams WHERE stream = $1 FOR UPDATE`,
    [stream],
  );
  return rows[0];
}

export async function readWatches(db: Queryable, stream: string): Promise<readonly Watch[]> {
  const { rows } = await db.query<Watch>(
    `SELECT contract_id AS "contractId", start_ledger::int AS "startLedger", next_ledger::int AS "nextLedger"
     FROM fencepost.watches WHERE stream = $1 ORDER BY contract_id`,
    [stream],
  );
  return rows;
}

/** Makes the stream's row. False where another process was first. */
export async function insertStream(
  client: DatabaseClient,
  row: Pick<StreamRow, "stream" | "epoch" | "passphrase" | "nextLedger" | "filtersHash">,
): Promise<boolean> {
  const { rowCount } = await client.query(
    `INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash)
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (stream) DO NOTHING`,
    [row.stream, row.epoch, row.passphrase, row.nextLedger, row.filtersHash],
  );
  return rowCount === 1;
}

/** Writes the watched contracts as they are to be: new ones added, others kept where they are, the rest removed. */
export async function writeWatches(
  client: DatabaseClient,
  stream: string,
  watches: readonly Watch[],
): Promise<void> {
  const ids = watches.map((watch) => watch.contractId);
  await client.query("DELETE FROM fencepost.watches WHERE stream = $1 AND contract_id <> ALL($2)", [
    stream,
    ids,
  ]);
  await client.query(
    `INSERT INTO fencepost.watches (stream, contract_id, start_ledger, next_ledger)
     SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[])
     ON CONFLICT (stream, contract_id) DO NOTHING`,
    [stream, ids, watches.map((w) => w.startLedger), watches.map((w) => w.nextLedger)],
  );
}

/** Takes the new filter set over. The term is bumped, so a leader with the old one cannot commit any more. */
export async function adoptFilters(
  client: DatabaseClient,
  stream: string,
  filtersHash: string,
): Promise<void> {
  await client.query(
    "UPDATE fencepost.streams SET filters_hash = $2, term = term + 1, lease_until = NULL, holder = NULL WHERE stream = $1",
    [stream, filtersHash],
  );
}

export interface NewEvent {
  readonly token: FencingToken;
  readonly type: string;
  readonly contractId: string | null;
  readonly txHash: string;
  readonly ledger: number;
  readonly closedAt: string;
  readonly topics: readonly string[];
  readonly value: string;
  readonly contentHash: Buffer;
  readonly quarantineReason: string | null;
}

/**
 * Stores the events that are not stored yet, in chain order, with the seq that follow `seq`. The caller holds
 * the lock of the stream's row, so nobody else can store one between the look and the insert.
 * Returns the tokens stored.
 */
export async function insertEvents(
  client: DatabaseClient,
  stream: Pick<StreamRow, "stream" | "seq" | "nextLedger">,
  events: readonly NewEvent[],
): Promise<readonly FencingToken[]> {
  const { rows } = await client.query<{ token: FencingToken }>(
    `WITH fresh AS (
       SELECT i.*, row_number() OVER (ORDER BY i.token COLLATE "C") AS n
       FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::timestamptz[], $10::text[],
                   $11::text[], $12::bytea[])
         AS i(token, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash)
       WHERE NOT EXISTS (SELECT FROM fencepost.events e WHERE e.token = i.token COLLATE "C")
     )
     INSERT INTO fencepost.events
       (token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash, late)
     SELECT token, $1, $2::bigint + n, type, contract_id, tx_hash, ledger, closed_at,
            ARRAY(SELECT t FROM jsonb_array_elements_text(topics::jsonb) WITH ORDINALITY AS x(t, i) ORDER BY i),
            value, content_hash, ledger < $3
     FROM fresh ORDER BY n
     ON CONFLICT (token) DO NOTHING
     RETURNING token`,
    [
      stream.stream,
      stream.seq,
      stream.nextLedger,
      events.map((e) => e.token),
      events.map((e) => e.type),
      events.map((e) => e.contractId),
      events.map((e) => e.txHash),
      events.map((e) => e.ledger),
      events.map((e) => e.closedAt),
      events.map((e) => JSON.stringify(e.topics)),
      events.map((e) => e.value),
      events.map((e) => e.contentHash),
    ],
  );
  await insertQuarantine(client, events);
  return rows.map((row) => row.token);
}

export async function readContentHashes(
  db: Queryable,
  tokens: readonly FencingToken[],
): Promise<ReadonlyMap<FencingToken, Buffer>> {
  const { rows } = await db.query<{ token: FencingToken; hash: Buffer }>(
    "SELECT token, content_hash AS hash FROM fencepost.events WHERE token = ANY($1)",
    [tokens],
  );
  return new Map(rows.map((row) => [row.token, row.hash]));
}

/** Sets aside what nobody could decode, each with its reason. It belongs to no projection, so theirs is ''. */
async function insertQuarantine(client: DatabaseClient, events: readonly NewEvent[]): Promise<void> {
  const set = events.filter((event) => event.quarantineReason !== null);
  if (set.length === 0) return;
  await client.query(
    `INSERT INTO fencepost.quarantine (token, projection, reason)
     SELECT t, '', r FROM unnest($1::text[], $2::text[]) AS i(t, r) ON CONFLICT DO NOTHING`,
    [set.map((event) => event.token), set.map((event) => event.quarantineReason)],
  );
}

/** The compare-and-set that ends a commit of ingest. False: the row is not as it was; roll back. */
export async function moveStream(
  client: DatabaseClient,
  from: Pick<StreamRow, "stream" | "term" | "nextLedger" | "filtersHash">,
  to: {
    readonly nextLedger: number;
    readonly seq: bigint;
    readonly latestLedger: number;
    readonly leaseMs: number;
  },
): Promise<boolean> {
  const { rowCount } = await client.query(
    `UPDATE fencepost.streams
     SET next_ledger = $5, seq = $6, latest_ledger = greatest(latest_ledger, $7), halted = nullif(halted, 'gap'), updated_at = now(),
         lease_until = clock_timestamp() + $8 * interval '1 millisecond'
     WHERE stream = $1 AND term = $2 AND next_ledger = $3 AND filters_hash = $4`,
    [
      from.stream,
      from.term,
      from.nextLedger,
      from.filtersHash,
      to.nextLedger,
      to.seq,
      to.latestLedger,
      to.leaseMs,
    ],
  );
  return rowCount === 1;
}

/** Moves contracts that lag behind the stream's cursor; they join it at `joinAt`. False: they are not where they were. */
export async function moveWatches(
  client: DatabaseClient,
  stream: string,
  contractIds: readonly string[],
  from: number,
  to: number,
  joinAt: number,
): Promise<boolean> {
  const { rowCount } = await client.query(
    `UPDATE fencepost.watches SET next_ledger = CASE WHEN $4::bigint < $5::bigint THEN $4::bigint END
     WHERE stream = $1 AND contract_id = ANY($2) AND next_ledger = $3`,
    [stream, contractIds, from, to, joinAt],
  );
  return rowCount === contractIds.length;
}

export async function insertConflict(
  client: DatabaseClient,
  stream: string,
  conflict: { token: FencingToken; storedHash: Buffer; seenHash: Buffer; seen: object },
): Promise<void> {
  await client.query(
    `INSERT INTO fencepost.conflicts (token, stored_hash, seen_hash, seen) VALUES ($1, $2, $3, $4)
     ON CONFLICT DO NOTHING`,
    [conflict.token, conflict.storedHash, conflict.seenHash, JSON.stringify(conflict.seen)],
  );
  await client.query("UPDATE fencepost.streams SET halted = 'conflict' WHERE stream = $1", [stream]);
}

/** Names a hole. `accepted`: the owner told the stream to go on beyond it. */
export async function insertGap(
  client: DatabaseClient,
  gap: { stream: string; fromLedger: number; throughLedger: number; accepted: boolean },
): Promise<void> {
  await client.query(
    `INSERT INTO fencepost.gaps (stream, from_ledger, to_ledger, accepted_at)
     VALUES ($1, $2, $3, CASE WHEN $4 THEN now() END)
     ON CONFLICT (stream, from_ledger) DO UPDATE
       SET to_ledger = greatest(gaps.to_ledger, excluded.to_ledger),
           accepted_at = coalesce(gaps.accepted_at, excluded.accepted_at)`,
    [gap.stream, gap.fromLedger, gap.throughLedger, gap.accepted],
  );
  if (!gap.accepted) {
    await client.query("UPDATE fencepost.streams SET halted = 'gap' WHERE stream = $1", [gap.stream]);
  }
}

/** Forgets holes from which the stream did not go on, and which a source has filled now: nothing was lost. */
export async function closeGaps(
  client: DatabaseClient,
  stream: string,
  fromLedger: number,
  throughLedger: number,
): Promise<void> {
  await client.query(
    "DELETE FROM fencepost.gaps WHERE stream = $1 AND from_ledger BETWEEN $2 AND $3 AND accepted_at IS NULL",
    [stream, fromLedger, throughLedger],
  );
}
