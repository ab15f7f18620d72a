import { randomUUID } from "node:crypto";
import pg from "pg";
import type { Holder, LeaseKey } from "../../lease/holder.ts";
import type { Queryable } from "./database.ts";
import { DatabaseUnreachableError } from "./errors.ts";

const LEASED = {
  stream: { table: "fencepost.streams", where: "stream = $1 AND $2::int = 0" },
  projection: { table: "fencepost.projections", where: "name = $1 AND version = $2" },
} as const;

function keyOf(key: LeaseKey): readonly [string, number] {
  return key.kind === "stream" ? [key.stream, 0] : [key.name, key.version];
}

/**
 * Takes the lease of a cursor row by bumping its term, where it is free, expired, our own, or held by a backend
 * that is gone. Returns the new term, or null while another holder is alive.
 */
export async function acquireLease(
  db: Queryable,
  key: LeaseKey,
  holder: Holder,
  leaseMs: number,
): Promise<bigint | null> {
  const { table, where } = LEASED[key.kind];
  // SKIP LOCKED: a row that is locked is being committed by a leader that is alive. backend_start is hidden
  // from other database users; then the pid alone must do.
  const { rows } = await db.query<{ term: bigint }>(
    `WITH free AS MATERIALIZED (
       SELECT ctid FROM ${table} t
       WHERE ${where}
         AND (lease_until IS NULL OR lease_until <= clock_timestamp() OR holder = $3
              OR NOT EXISTS (SELECT FROM pg_stat_activity a
                             WHERE a.pid = t.holder_pid
                               AND (a.backend_start IS NULL OR a.backend_start = t.holder_started)))
       FOR UPDATE SKIP LOCKED
     )
     UPDATE ${table} t
     SET term = term + 1, holder = $3, holder_pid = $4, holder_started = $5::timestamptz,
         lease_until = clock_timestamp() + $6 * interval '1 millisecond'
     FROM free WHERE t.ctid = free.ctid
     RETURNING t.term`,
    [...keyOf(key), holder.id, holder.pid, holder.startedAt, leaseMs],
  );
  return rows[0]?.term ?? null;
}

/** Extends the lease while nobody took it over. False: it is lost. */
export async function renewLease(
  db: Queryable,
  key: LeaseKey,
  holder: Holder,
  term: bigint,
  leaseMs: number,
): Promise<boolean> {
  const { table, where } = LEASED[key.kind];
  const { rowCount } = await db.query(
    `UPDATE ${table}
     SET lease_until = clock_timestamp() + $5 * interval '1 millisecond', holder_pid = $6, holder_started = $7::timestamptz
     WHERE ${where} AND term = $3 AND holder = $4`,
    [...keyOf(key), term, holder.id, leaseMs, holder.pid, holder.startedAt],
  );
  return rowCount === 1;
}

/** Gives the lease back at a clean stop, so that a successor need not wait. */
export async function releaseLease(db: Queryable, key: LeaseKey, term: bigint): Promise<void> {
  const { table, where } = LEASED[key.kind];
  await db.query(`UPDATE ${table} SET lease_until = NULL, holder = NULL WHERE ${where} AND term = $3`, [
    ...keyOf(key),
    term,
  ]);
}

/** A connection that lives as long as its process: while its backend is there, leases are waited out. */
export interface HolderConnection {
  /** The holder as it is now; reconnects when the connection broke. */
  current(): Promise<Holder>;
  close(): Promise<void>;
}

export function openHolder(url: string): HolderConnection {
  const id = randomUUID();
  let live: { client: pg.Client; holder: Holder } | undefined;
  let opening: Promise<Holder> | undefined;

  async function open(): Promise<Holder> {
    const client = new pg.Client({
      connectionString: url,
      keepAlive: true,
      connectionTimeoutMillis: 10_000,
      application_name: "fencepost leader",
    });
    let gone = false;
    const onGone = (): void => {
      gone = true;
      if (live?.client === client) live = undefined;
    };
    client.on("error", onGone);
    client.on("end", onGone);
    try {
      await client.connect();
    } catch (error) {
      throw new DatabaseUnreachableError(url, error);
    }
    try {
      const { rows } = await client.query<{ pid: number; started: string }>(
        "SELECT pid, backend_start::text AS started FROM pg_stat_activity WHERE pid = pg_backend_pid()",
      );
      const row = rows[0];
      if (!row) throw new Error("pg_stat_activity does not show our own backend.");
      const holder = { id, pid: row.pid, startedAt: row.started };
      if (!gone) live = { client, holder };
      return holder;
    } catch (error) {
      await client.end().catch(() => {});
      throw error;
    }
  }

  return {
    async current() {
      if (live) return live.holder;
      opening ??= open().finally(() => {
        opening = undefined;
      });
      return opening;
    },
    async close() {
      await opening?.catch(() => {});
      await live?.client.end();
    },
  };
}
