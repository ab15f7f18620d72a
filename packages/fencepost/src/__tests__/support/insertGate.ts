import { Client } from "pg";
import type { Queryable } from "../../store/postgres/database.ts";
import { waitUntil } from "./waitUntil.ts";

const HELD = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/** Waits until so many statements in this database wait for locks. `db` must not be in a transaction. */
export function waitForHeld(db: Pick<Queryable, "query">, count: number): Promise<void> {
  return waitUntil(async () => (await db.query(`SELECT pid ${HELD}`)).rows.length >= count, {
    what: `${count} statements wait for locks`,
  });
}

/** Holds inserts into one table in the middle of their transactions until it is opened. */
export interface InsertGate {
  /** Waits until so many statements are held up: at the gate, or by one that is. */
  waitForHeld(count: number): Promise<void>;
  /** Ends the connections that are held up, as a crash of their processes would. */
  killHeld(): Promise<void>;
  /** Lets all through, those of later too. */
  open(): Promise<void>;
  /** Opens it and takes it away. */
  close(): Promise<void>;
}

/** Puts a gate on a table of this database. `when` narrows it: an SQL condition on NEW. */
export async function gateInserts(
  url: string,
  table: string,
  when = "true",
  held: "INSERT" | "UPDATE" = "INSERT",
): Promise<InsertGate> {
  const client = new Client({ connectionString: url });
  await client.connect();
  await client.query("SELECT pg_advisory_lock(1)");
  await client.query(
    `CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
     CREATE TRIGGER gate BEFORE ${held} ON ${table} FOR EACH ROW WHEN (${when}) EXECUTE FUNCTION wait_at_gate()`,
  );
  const open = async (): Promise<void> => {
    await client.query("SELECT pg_advisory_unlock_all()");
  };
  return {
    waitForHeld: (count) => waitForHeld(client, count),
    async killHeld() {
      await client.query(`SELECT pg_terminate_backend(pid) ${HELD}`);
    },
    open,
    async close() {
      await open();
      await client.query("DROP FUNCTION wait_at_gate() CASCADE");
      await client.end();
    },
  };
}
