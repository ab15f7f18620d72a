import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import type { Database, Queryable } from "./database.ts";
import { MigrationError } from "./errors.ts";
import { stageTransaction } from "./stageTransaction.ts";

// Any number that no other program is likely to lock: "fence" in ASCII.
const MIGRATION_LOCK = "439804551013";
/** A process that is paused in its migration loses the lock after half of it, in milliseconds. */
const LOCK_LEASE_MS = 60_000;

/**
 * Brings the schema `fencepost` up to date: the files of `migrations/`, in order, each once, in one transaction
 * under a lock. Safe from several processes at once, and twice. Returns the names that it applied.
 *
 * Throws {@link MigrationError} when the database is newer than this code or a file was changed after it ran.
 */
export async function migrate(database: Database): Promise<readonly string[]> {
  const files = await readMigrations();
  return stageTransaction(database, LOCK_LEASE_MS, async (client) => {
    // A transaction lock, not a session lock: it works behind PgBouncer and goes when the process is killed.
    await client.query("SELECT pg_advisory_xact_lock($1)", [MIGRATION_LOCK]);
    await client.query("CREATE SCHEMA IF NOT EXISTS fencepost");
    await client.query(
      "CREATE TABLE IF NOT EXISTS fencepost.migrations (name text PRIMARY KEY, hash text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
    );
    const { rows } = await client.query<{ name: string; hash: string }>(
      "SELECT name, hash FROM fencepost.migrations ORDER BY name",
    );
    const applied = new Map(rows.map((row) => [row.name, row.hash]));
    const pending = decideMigrations(files, applied);
    for (const file of pending) {
      await client.query(file.sql);
      await client.query("INSERT INTO fencepost.migrations (name, hash) VALUES ($1, $2)", [
        file.name,
        file.hash,
      ]);
    }
    return pending.map((file) => file.name);
  });
}

/**
 * How a database stands towards this code, without changing it: how many migrations it has, and the names of those
 * it lacks. Throws {@link MigrationError} as {@link migrate} does.
 */
export async function readMigrationState(
  db: Queryable,
): Promise<{ readonly applied: number; readonly pending: readonly string[] }> {
  const files = await readMigrations();
  const { rows: found } = await db.query<{ made: boolean }>(
    "SELECT to_regclass('fencepost.migrations') IS NOT NULL AS made",
  );
  const { rows } = found[0]?.made
    ? await db.query<{ name: string; hash: string }>("SELECT name, hash FROM fencepost.migrations")
    : { rows: [] };
  const pending = decideMigrations(files, new Map(rows.map((row) => [row.name, row.hash])));
  return { applied: rows.length, pending: pending.map((file) => file.name) };
}

interface MigrationFile {
  readonly name: string;
  readonly hash: string;
  readonly sql: string;
}

/** Which files are still to be applied. Throws for a database that this code must not touch. */
export function decideMigrations<File extends { name: string; hash: string }>(
  files: readonly File[],
  applied: ReadonlyMap<string, string>,
): readonly File[] {
  const known = new Map(files.map((file) => [file.name, file]));
  for (const [name, hash] of applied) {
    const file = known.get(name);
    if (!file) {
      throw new MigrationError(
        `The database has migration ${name}, which this version of Fencepost does not know. Install the newer version.`,
      );
    }
    if (file.hash !== hash) {
      throw new MigrationError(
        `Migration ${name} was changed after it was applied. Restore the file, and write a new migration for the change.`,
      );
    }
  }
  return files.filter((file) => !applied.has(file.name));
}

async function readMigrations(): Promise<readonly MigrationFile[]> {
  const folder = new URL("./migrations/", import.meta.url);
  const names = (await readdir(folder)).filter((name) => name.endsWith(".sql")).sort();
  return Promise.all(
    names.map(async (name) => {
      const sql = await readFile(new URL(name, folder), "utf8");
      return { name, sql, hash: createHash("sha256").update(sql).digest("hex") };
    }),
  );
}
