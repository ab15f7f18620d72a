import type { FencingToken } from "@fencepost/token";
import { type DatabaseClient, type Queryable, storableText } from "./database.ts";

export interface ProjectionRow {
  readonly name: string;
  readonly version: number;
  readonly stream: string;
  readonly cursor: bigint;
  /** Messages of events up to this seq are kept silent; null while the version is built: all are. */
  readonly emitAfter: bigint | null;
  readonly state: "live" | "building" | "retired";
  readonly fingerprint: string;
  readonly term: bigint;
  readonly stoppedToken: FencingToken | null;
}

/** A stored event, as projections read it. */
export interface StoredEvent {
  readonly token: FencingToken;
  readonly seq: bigint;
  readonly contractId: string;
  /** The rules by which the contract was found, of those asked about. */
  readonly foundBy: readonly string[];
  readonly txHash: string;
  readonly ledger: number;
  readonly closedAt: Date;
  readonly topics: readonly string[];
  readonly value: string;
  /** A person told this projection to pass over it. */
  readonly skipped: boolean;
}

const PROJECTION_COLUMNS = `name, version, stream, cursor, emit_after AS "emitAfter", state, fingerprint, term,
  stopped_token AS "stoppedToken"`;

/**
 * The row of a version with the seq that its stream has got to, and whether every event up to there was looked at for
 * contracts that it names.
 */
export async function readProjection(
  db: Queryable,
  name: string,
  version: number,
): Promise<(ProjectionRow & { readonly newestSeq: bigint; readonly discovered: boolean }) | undefined> {
  const { rows } = await db.query<ProjectionRow & { newestSeq: bigint; discovered: boolean }>(
    `SELECT p.*, coalesce(s.seq, 0) AS "newestSeq", coalesce(s.discovered_seq = s.seq, true) AS discovered
     FROM (SELECT ${PROJECTION_COLUMNS} FROM fencepost.projections WHERE name = $1 AND version = $2) p
     LEFT JOIN fencepost.streams s ON s.stream = p.stream`,
    [name, version],
  );
  return rows[0];
}

/** The cursor of the version that is live; undefined where none is. */
export async function readLiveCursor(db: Queryable, name: string): Promise<bigint | undefined> {
  const { rows } = await db.query<{ cursor: bigint }>(
    "SELECT cursor FROM fencepost.projections WHERE name = $1 AND state = 'live'",
    [name],
  );
  return rows[0]?.cursor;
}

export async function lockProjection(
  client: DatabaseClient,
  name: string,
  version: number,
): Promise<ProjectionRow | undefined> {
  const { rows } = await client.query<ProjectionRow>(
    `SELECT ${PROJECTION_COLUMNS} FROM fencepost.projections WHERE name = $1 AND version = $2 FOR UPDATE`,
    [name, version],
  );
  return rows[0];
}

/** All versions of a projection, locked, the highest first: registering and switching go one at a time. */
export async function lockVersions(client: DatabaseClient, name: string): Promise<readonly ProjectionRow[]> {
  // Where no row is there yet there is nothing to lock: the name is.
  await client.query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", [
    `fencepost projection ${name}`,
  ]);
  const { rows } = await client.query<ProjectionRow>(
    `SELECT ${PROJECTION_COLUMNS} FROM fencepost.projections WHERE name = $1 ORDER BY version DESC FOR UPDATE`,
    [name],
  );
  return rows;
}

export async function insertProjection(
  client: DatabaseClient,
  row: Pick<ProjectionRow, "name" | "version" | "stream" | "emitAfter" | "state" | "fingerprint">,
): Promise<void> {
  await client.query(
    `INSERT INTO fencepost.projections (name, version, stream, emit_after, state, fingerprint)
     VALUES ($1, $2, $3, $4, $5, $6)`,
    [row.name, row.version, row.stream, row.emitAfter, row.state, row.fingerprint],
  );
}

/** Starts a version over, silent up to where it was: what it emitted is not emitted again. */
export async function resetProjection(
  client: DatabaseClient,
  { name, version }: Pick<ProjectionRow, "name" | "version">,
  fingerprint: string,
): Promise<void> {
  await client.query(
    `UPDATE fencepost.projections
     SET emit_after = CASE WHEN state = 'building' THEN NULL ELSE greatest(cursor, emit_after) END,
         cursor = 0, fingerprint = $3, term = term + 1, lease_until = NULL, holder = NULL,
         stopped_token = NULL, stopped_event = NULL, stopped_error = NULL, stopped_at = NULL
     WHERE name = $1 AND version = $2`,
    [name, version, fingerprint],
  );
  await client.query("DELETE FROM fencepost.quarantine WHERE projection = $1 AND version = $2", [
    name,
    version,
  ]);
}

/**
 * Makes a version the live one, which emits what comes after `emitAfter`, and retires those below it under their
 * locks: from here on their leaders cannot commit. What they set aside is no longer counted.
 */
export async function promoteProjection(
  client: DatabaseClient,
  { name, version }: Pick<ProjectionRow, "name" | "version">,
  emitAfter: bigint,
): Promise<void> {
  await client.query(
    `UPDATE fencepost.projections SET state = 'retired', term = term + 1, lease_until = NULL, holder = NULL
     WHERE name = $1 AND version < $2 AND state <> 'retired'`,
    [name, version],
  );
  await client.query(
    "UPDATE fencepost.projections SET state = 'live', emit_after = $3 WHERE name = $1 AND version = $2",
    [name, version, emitAfter],
  );
  await client.query("DELETE FROM fencepost.quarantine WHERE projection = $1 AND version < $2", [
    name,
    version,
  ]);
}

/**
 * The next events of these contracts, and of those that the rules found, after a seq, up to `limit`, and how far was looked: the last seq of a
 * full batch, otherwise the newest one. Seq are committed in their order, so nothing can appear below it later.
 */
export async function readEventsAfter(
  db: Queryable,
  query: {
    readonly stream: string;
    readonly projection: string;
    readonly after: bigint;
    /** Not beyond this seq, nor beyond the newest one. */
    readonly through: bigint;
    readonly contractIds: readonly string[];
    readonly rules: readonly string[];
    readonly limit: number;
  },
): Promise<{ readonly events: readonly StoredEvent[]; readonly lookedThrough: bigint }> {
  // A bound on the rows looked at as well as on those returned: most of a stream may be of other contracts.
  const { rows: heads } = await db.query<{ through: bigint }>(
    "SELECT least(seq, $2, $3::bigint + $4) AS through FROM fencepost.streams WHERE stream = $1",
    [query.stream, query.through, query.after, query.limit * 10],
  );
  const through = heads[0]?.through ?? query.after;
  if (through <= query.after) return { events: [], lookedThrough: query.after };
  const { rows } = await db.query<StoredEvent>(
    `SELECT token, seq, contract_id AS "contractId", tx_hash AS "txHash", ledger::int AS ledger,
            closed_at AS "closedAt", topics, value, coalesce(f.rules, '{}') AS "foundBy",
            EXISTS (SELECT FROM fencepost.skips s WHERE s.projection = $2 AND s.token = e.token) AS skipped
     FROM fencepost.events e
     LEFT JOIN LATERAL (
       SELECT array_agg(rule) AS rules FROM fencepost.discoveries d
       WHERE d.contract_id = e.contract_id AND d.rule = ANY($7) AND d.stream = e.stream AND d.ledger <= e.ledger
         AND d.epoch = split_part(e.token, '-', 2)
     ) f ON cardinality($7::text[]) > 0
     WHERE stream = $1 AND seq > $3 AND seq <= $4 AND (contract_id = ANY($5) OR f.rules IS NOT NULL)
       AND type IN ('contract', 'produced')
       AND NOT EXISTS (SELECT FROM fencepost.quarantine q WHERE q.token = e.token AND q.projection = '')
     ORDER BY seq LIMIT $6`,
    [query.stream, query.projection, query.after, through, query.contractIds, query.limit, query.rules],
  );
  const last = rows.length === query.limit ? rows.at(-1)?.seq : undefined;
  return { events: rows, lookedThrough: last ?? through };
}

/** The compare-and-set that ends a commit of a projection. False: the row is not as it was; roll back. */
export async function moveProjection(
  client: DatabaseClient,
  from: Pick<ProjectionRow, "name" | "version" | "term" | "cursor">,
  to: { readonly cursor: bigint; readonly leaseMs: number },
): Promise<boolean> {
  const { rowCount } = await client.query(
    `UPDATE fencepost.projections
     SET cursor = $5, updated_at = now(), lease_until = clock_timestamp() + $6 * interval '1 millisecond',
         stopped_token = NULL, stopped_event = NULL, stopped_error = NULL, stopped_at = NULL
     WHERE name = $1 AND version = $2 AND term = $3 AND cursor = $4`,
    [from.name, from.version, from.term, from.cursor, to.cursor, to.leaseMs],
  );
  return rowCount === 1;
}

/** Sets events aside that do not fit what a version declares, each with its reason. */
export async function insertMisfits(
  client: DatabaseClient,
  { name, version }: Pick<ProjectionRow, "name" | "version">,
  misfits: readonly { readonly token: FencingToken; readonly reason: string }[],
): Promise<void> {
  if (misfits.length === 0) return;
  await client.query(
    `INSERT INTO fencepost.quarantine (token, projection, version, reason)
     SELECT token, $1, $2, reason FROM unnest($3::text[], $4::text[]) AS m(token, reason) ON CONFLICT DO NOTHING`,
    [name, version, misfits.map(({ token }) => token), misfits.map(({ reason }) => storableText(reason))],
  );
}

/** Records where a projection stands still, and why. */
export async function recordStop(
  db: Queryable,
  row: Pick<ProjectionRow, "name" | "version" | "term">,
  stop: { readonly token: FencingToken; readonly event: string; readonly error: string },
): Promise<void> {
  await db.query(
    `UPDATE fencepost.projections
     SET stopped_token = $4, stopped_event = $5, stopped_error = $6,
         stopped_at = CASE WHEN stopped_token = $4 THEN stopped_at ELSE now() END
     WHERE name = $1 AND version = $2 AND term = $3`,
    [row.name, row.version, row.term, stop.token, storableText(stop.event), storableText(stop.error)],
  );
}

/** The named act of passing over one event in one projection. False: this token is not stored. */
export async function insertSkip(
  db: Queryable,
  projection: string,
  token: FencingToken,
  reason: string,
): Promise<boolean> {
  const { rowCount } = await db.query(
    `INSERT INTO fencepost.skips (projection, token, reason)
     SELECT $1, token, $3 FROM fencepost.events WHERE token = $2
     ON CONFLICT (projection, token) DO UPDATE SET reason = excluded.reason`,
    [projection, token, reason],
  );
  return rowCount === 1;
}
