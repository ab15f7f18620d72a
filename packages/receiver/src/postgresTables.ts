import { InvalidOptionError } from "./errors.ts";
import type { SqlClient } from "./sqlClient.ts";

const DEFAULT_TABLE = "fencepost_inbox";
// Any number, the same in all processes.
const ENSURE_LOCK = 5_720_116_341;
// PostgreSQL cuts a name at 63 characters; the longest ending is added to this.
const MAX_NAME = 50;

/** The tables of an inbox, quoted for use in SQL. */
export interface InboxTables {
  /** Events that were received, and fences. */
  readonly inbox: string;
  /** How far back the inbox of a consumer is complete. */
  readonly retained: string;
  /** The last token of each key. */
  readonly latest: string;
}

/** The statements that create the tables of the inbox, for the customer's own migrations. Harmless when repeated. */
export function inboxMigration(table: string = DEFAULT_TABLE): string {
  const { inbox, retained, latest } = inboxTables(table);
  const name = table.split(".").at(-1);
  return `CREATE TABLE IF NOT EXISTS ${inbox} (
  consumer      text        NOT NULL,
  event_id      text        NOT NULL,
  type          text,
  fencing_token text        COLLATE "C",
  attempted_at  timestamptz,
  received_at   timestamptz,
  fenced_before bigint,
  fenced_until  timestamptz,
  PRIMARY KEY (consumer, event_id),
  CHECK (received_at IS NOT NULL OR fenced_until IS NOT NULL)
);
CREATE INDEX IF NOT EXISTS "${name}_attempted" ON ${inbox} (consumer, attempted_at);
CREATE INDEX IF NOT EXISTS "${name}_fenced" ON ${inbox} (fenced_until) WHERE received_at IS NULL;
CREATE TABLE IF NOT EXISTS ${retained} (
  consumer       text        PRIMARY KEY,
  retained_since timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS ${latest} (
  consumer text NOT NULL,
  key      text NOT NULL,
  token    text COLLATE "C",
  PRIMARY KEY (consumer, key)
);`;
}

/** Creates the tables of the inbox that are not there; several processes may do so at once. */
export async function ensureInbox(client: SqlClient, table: string = DEFAULT_TABLE): Promise<void> {
  // Several statements in one query are one transaction. CREATE TABLE IF NOT EXISTS alone fails when it races.
  await client.query(`SELECT pg_advisory_xact_lock(${ENSURE_LOCK}); ${inboxMigration(table)}`);
}

/** The tables that belong to the name of an inbox. Throws {@link InvalidOptionError}. */
export function inboxTables(table: string = DEFAULT_TABLE): InboxTables {
  const name = /^(?:([A-Za-z_][A-Za-z0-9_]{0,62})\.)?([A-Za-z_][A-Za-z0-9_]*)$/.exec(table);
  const [, schema, own = ""] = name ?? [];
  if (name === null || own.length > MAX_NAME) {
    const rule = `a table or schema.table of letters, digits and _, the table of 1 to ${MAX_NAME}`;
    throw new InvalidOptionError("table", rule, table);
  }
  const quoted = (ending: string) => `${schema === undefined ? "" : `"${schema}".`}"${own}${ending}"`;
  return { inbox: quoted(""), retained: quoted("_retained"), latest: quoted("_latest") };
}
