import type { FencingToken } from "@fencepost/token";
import type { LedgerRef } from "../../source/source.ts";
import { type CopyValue, copyRows } from "./copyRows.ts";
import { type DatabaseClient, type Queryable, storableText } from "./database.ts";

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
  /** A ledger of the chain that is read, by which another life of it is told; null: none yet. */
  readonly anchor: LedgerRef | null;
  /** Every event up to this seq was looked at for contracts that it names. */
  readonly discoveredSeq: bigint;
}

export interface Watch {
  readonly contractId: string;
  readonly startLedger: number;
  /** Where a contract added later has got to; null once it has joined the stream's cursor. */
  readonly nextLedger: number | null;
  /** What of its past is still to be read since its start was set back; `endLedger` is not in it. */
  readonly earlier: { readonly nextLedger: number; readonly endLedger: number } | null;
  /** The rule that found it; null where the config names it. */
  readonly foundBy: string | null;
}

export type NewWatch = Pick<Watch, "contractId" | "startLedger" | "nextLedger"> &
  Partial<Pick<Watch, "earlier">>;

const STREAM_COLUMNS = `stream, epoch, passphrase, next_ledger::int AS "nextLedger", filters_hash AS "filtersHash",
  seq, term, latest_ledger::int AS "latestLedger", halted, discovered_seq AS "discoveredSeq",
  CASE WHEN anchor_ledger IS NOT NULL THEN
    json_build_object('ledger', anchor_ledger, 'hash', anchor_hash, 'closedAt', anchor_closed_at) END AS anchor`;

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
    `SELECT contract_id AS "contractId", start_ledger::int AS "startLedger", next_ledger::int AS "nextLedger",
            found_by AS "foundBy",
            CASE WHEN earlier_next IS NOT NULL THEN
              json_build_object('nextLedger', earlier_next, 'endLedger', earlier_end) END AS earlier
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

/**
 * Writes the watched contracts as they are to be: new ones added, others kept where they are but for a start that was
 * set back, the rest removed.
 */
export async function writeWatches(
  client: DatabaseClient,
  stream: string,
  watches: readonly NewWatch[],
): Promise<void> {
  const ids = watches.map((watch) => watch.contractId);
  await client.query("DELETE FROM fencepost.watches WHERE stream = $1 AND contract_id <> ALL($2)", [
    stream,
    ids,
  ]);
  await client.query(
    `INSERT INTO fencepost.watches (stream, contract_id, start_ledger, next_ledger, earlier_next, earlier_end)
     SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
     ON CONFLICT (stream, contract_id) DO UPDATE
       SET start_ledger = excluded.start_ledger, earlier_next = excluded.earlier_next, earlier_end = excluded.earlier_end`,
    [
      stream,
      ids,
      watches.map((w) => w.startLedger),
      watches.map((w) => w.nextLedger),
      watches.map((w) => w.earlier?.nextLedger ?? null),
      watches.map((w) => w.earlier?.endLedger ?? null),
    ],
  );
}

/** A contract that an event named, and the ledger from which it is watched. */
export interface FoundWatch {
  readonly contractId: string;
  readonly ledger: number;
  readonly rule: string;
  readonly token: FencingToken;
}

/**
 * Records what was found, and watches it, each from the ledger that named it. Those watched already stay as they are;
 * those that an event of an earlier epoch names are recorded only: their chain is gone.
 */
export async function insertFoundWatches(
  client: DatabaseClient,
  stream: string,
  found: readonly FoundWatch[],
): Promise<void> {
  if (found.length === 0) return;
  await client.query(
    `WITH found AS (
       SELECT * FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[]) AS f(id, ledger, rule, token)
     ), recorded AS (
       INSERT INTO fencepost.discoveries AS d (contract_id, rule, stream, epoch, ledger)
       SELECT id, rule, $1, split_part(token, '-', 2), min(ledger) FROM found GROUP BY 1, 2, 4
       ON CONFLICT (contract_id, rule, stream, epoch) DO UPDATE SET ledger = excluded.ledger
         WHERE d.ledger > excluded.ledger
     )
     INSERT INTO fencepost.watches (stream, contract_id, start_ledger, next_ledger, found_by, found_in)
     SELECT DISTINCT ON (id) $1, id, ledger, ledger, rule, token
     FROM found JOIN fencepost.streams s ON s.stream = $1 AND s.epoch = split_part(token, '-', 2) ORDER BY id, token
     ON CONFLICT (stream, contract_id) DO NOTHING`,
    [
      stream,
      found.map((f) => f.contractId),
      found.map((f) => f.ledger),
      found.map((f) => f.rule),
      found.map((f) => f.token),
    ],
  );
}

/** Sets aside events that a rule expects to name a contract, and that do not, each with its reason. */
export async function insertUnnamed(
  client: DatabaseClient,
  unnamed: readonly { readonly token: FencingToken; readonly rule: string; readonly reason: string }[],
): Promise<void> {
  if (unnamed.length === 0) return;
  await client.query(
    `INSERT INTO fencepost.quarantine (token, projection, reason)
     SELECT t, 'discovery:' || r, why FROM unnest($1::text[], $2::text[], $3::text[]) AS i(t, r, why)
     ON CONFLICT DO NOTHING`,
    [unnamed.map((u) => u.token), unnamed.map((u) => u.rule), unnamed.map((u) => storableText(u.reason))],
  );
}

/** Which rule found a contract, for those of the stream that were found. */
export async function readFoundContracts(
  db: Queryable,
  stream: string,
): Promise<ReadonlyMap<string, string>> {
  const { rows } = await db.query<{ id: string; rule: string }>(
    "SELECT contract_id AS id, found_by AS rule FROM fencepost.watches WHERE stream = $1 AND found_by IS NOT NULL",
    [stream],
  );
  return new Map(rows.map(({ id, rule }) => [id, rule]));
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
 * The content hashes of those of these tokens that are stored already. Mostly nothing is between the first and the last
 * of a window, and that is all that is looked at then.
 */
export async function readContentHashes(
  db: Queryable,
  tokens: readonly FencingToken[],
): Promise<ReadonlyMap<FencingToken, Buffer>> {
  const { rows } = await db.query<{ token: FencingToken; hash: Buffer }>(
    `SELECT token, content_hash AS hash FROM fencepost.events
     WHERE token = ANY($1) AND EXISTS (
       SELECT FROM fencepost.events
       WHERE token >= (SELECT min(t COLLATE "C") FROM unnest($1::text[]) t)
         AND token <= (SELECT max(t COLLATE "C") FROM unnest($1::text[]) t)
     )`,
    [tokens],
  );
  return new Map(rows.map((row) => [row.token, row.hash]));
}

/**
 * Stores events that are not stored yet, in the order given, with the seq that follow that of the row. The caller holds
 * its lock since before it looked for them, so nobody else has stored one.
 */
export async function insertEvents(
  client: DatabaseClient,
  stream: Pick<StreamRow, "stream" | "seq" | "nextLedger">,
  events: readonly NewEvent[],
): Promise<void> {
  if (events.length === 0) return;
  await copyRows(client, "fencepost.events", EVENT_COLUMNS, rowsOf(stream, events));
  await insertQuarantine(client, events);
}

const EVENT_COLUMNS =
  "token stream seq type contract_id tx_hash ledger closed_at topics value content_hash late".split(" ");

function* rowsOf(
  { stream, seq, nextLedger }: Pick<StreamRow, "stream" | "seq" | "nextLedger">,
  events: readonly NewEvent[],
): Generator<readonly CopyValue[]> {
  let last = seq;
  for (const e of events) {
    const ofChain = [e.type, e.contractId, e.txHash, e.ledger, e.closedAt, e.topics, e.value] as const;
    yield [e.token, stream, ++last, ...ofChain, e.contentHash, e.ledger < nextLedger];
  }
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
     SET next_ledger = $5, seq = $6, latest_ledger = greatest(latest_ledger, $7), updated_at = now(),
         discovered_seq = CASE WHEN discovered_seq = seq THEN $6 ELSE discovered_seq END,
         halted = nullif(nullif(halted, 'gap'), 'reset'),
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

/** Moves the cursor of contracts whose start was set back; where it ends, they have all of their past. */
export async function moveEarlier(
  client: DatabaseClient,
  stream: string,
  contractIds: readonly string[],
  from: number,
  to: number,
): Promise<boolean> {
  const { rowCount } = await client.query(
    `UPDATE fencepost.watches
     SET earlier_next = CASE WHEN $4::bigint < earlier_end THEN $4::bigint END,
         earlier_end = CASE WHEN $4::bigint < earlier_end THEN earlier_end END
     WHERE stream = $1 AND contract_id = ANY($2) AND earlier_next = $3`,
    [stream, contractIds, from, to],
  );
  return rowCount === contractIds.length;
}

/**
 * Ends a commit of a backfill, which is not the stream's leader: the caller holds the row's lock, so seq is its own.
 * The term and the lease stay the leader's.
 */
export async function moveBackfilled(
  client: DatabaseClient,
  stream: string,
  to: { readonly nextLedger: number; readonly seq: bigint },
): Promise<void> {
  await client.query(
    `UPDATE fencepost.streams
     SET next_ledger = $2, seq = $3, updated_at = now(),
         discovered_seq = CASE WHEN discovered_seq = seq THEN $3 ELSE discovered_seq END,
         halted = CASE WHEN next_ledger = $2 THEN halted ELSE nullif(halted, 'gap') END
     WHERE stream = $1`,
    [stream, to.nextLedger, to.seq],
  );
}

export async function writeAnchor(client: DatabaseClient, stream: string, anchor: LedgerRef): Promise<void> {
  await client.query(
    "UPDATE fencepost.streams SET anchor_ledger = $2, anchor_hash = $3, anchor_closed_at = $4 WHERE stream = $1",
    [stream, anchor.ledger, anchor.hash, anchor.closedAt],
  );
}

/** The newest ledger of which an event is stored, as an anchor for a stream that has none. */
export async function readLastLedger(
  db: Queryable,
  { stream, epoch }: Pick<StreamRow, "stream" | "epoch">,
): Promise<LedgerRef | undefined> {
  const { rows } = await db.query<LedgerRef>(
    `SELECT ledger::int AS ledger, NULL AS hash, floor(extract(epoch FROM closed_at))::int AS "closedAt"
     FROM fencepost.events WHERE token < $1 COLLATE "C" AND token > $2 COLLATE "C" ORDER BY token DESC LIMIT 1`,
    [`${stream}-${epoch}.`, `${stream}-${epoch}-`],
  );
  return rows[0];
}

/** Records that the source has another chain than the one that was read. */
export async function haltForReset(client: DatabaseClient, stream: string): Promise<void> {
  await client.query(
    "UPDATE fencepost.streams SET halted = 'reset' WHERE stream = $1 AND halted IS DISTINCT FROM 'conflict'",
    [stream],
  );
}

/** Begins the next life of the chain: the cursor and what names the old one. The term is bumped. */
export async function moveToEpoch(
  client: DatabaseClient,
  stream: string,
  to: { readonly epoch: string; readonly nextLedger: number; readonly anchor: LedgerRef | null },
): Promise<void> {
  await client.query(
    `UPDATE fencepost.streams
     SET epoch = $2, next_ledger = $3, latest_ledger = NULL, halted = NULL, term = term + 1, lease_until = NULL,
         holder = NULL, anchor_ledger = $4, anchor_hash = $5, anchor_closed_at = $6, updated_at = now()
     WHERE stream = $1`,
    [stream, to.epoch, to.nextLedger, to.anchor?.ledger, to.anchor?.hash, to.anchor?.closedAt],
  );
  await client.query("DELETE FROM fencepost.watches WHERE stream = $1 AND found_by IS NOT NULL", [stream]);
  await client.query(
    `UPDATE fencepost.watches SET start_ledger = $2, next_ledger = NULL, earlier_next = NULL, earlier_end = NULL
     WHERE stream = $1`,
    [stream, to.nextLedger],
  );
}

/** What of a stored event is looked at for a contract that it names. */
export interface NamingEvent {
  readonly token: FencingToken;
  readonly contractId: string | null;
  readonly ledger: number;
  readonly topics: readonly string[];
  readonly value: string;
}

/** Stored events of these contracts, of every epoch, with a seq after `after` and up to `through`, in their order. */
export async function readEventsBetween(
  db: Queryable,
  { stream }: Pick<StreamRow, "stream">,
  { after, through }: { readonly after: bigint; readonly through: bigint },
  contractIds: readonly string[],
): Promise<readonly NamingEvent[]> {
  const { rows } = await db.query<NamingEvent>(
    `SELECT token, contract_id AS "contractId", ledger::int AS ledger, topics, value FROM fencepost.events
     WHERE stream = $1 AND seq > $2 AND seq <= $3 AND contract_id = ANY($4) ORDER BY seq`,
    [stream, after, through, contractIds],
  );
  return rows;
}

/** Records how far stored events were looked at for contracts. False: another one has looked meanwhile. */
export async function moveDiscovered(
  client: DatabaseClient,
  stream: string,
  from: bigint,
  to: bigint,
): Promise<boolean> {
  const { rowCount } = await client.query(
    "UPDATE fencepost.streams SET discovered_seq = $3 WHERE stream = $1 AND discovered_seq = $2",
    [stream, from, to],
  );
  return rowCount === 1;
}

/** Has every stored event looked at again for contracts that it names. */
export async function discoverAgain(client: DatabaseClient, stream: string): Promise<void> {
  await client.query("UPDATE fencepost.streams SET discovered_seq = 0 WHERE stream = $1", [stream]);
}

/** The stored events of these contracts from one token to another, both inclusive: their content hashes. */
export async function readStoredHashes(
  db: Queryable,
  range: { readonly from: FencingToken; readonly through: FencingToken },
  contractIds: readonly string[],
): Promise<ReadonlyMap<FencingToken, Buffer>> {
  const { rows } = await db.query<{ token: FencingToken; hash: Buffer }>(
    `SELECT token, content_hash AS hash FROM fencepost.events
     WHERE token >= $1 COLLATE "C" AND token <= $2 COLLATE "C" AND contract_id = ANY($3)`,
    [range.from, range.through, contractIds],
  );
  return new Map(rows.map((row) => [row.token, row.hash]));
}
