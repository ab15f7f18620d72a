import { randomBytes } from "node:crypto";
import { Client } from "pg";
import { inject } from "vitest";

/** A database of one test's own. */
export interface TestDatabase {
  readonly url: string;
  /** Removes it, cutting off whoever is still connected. */
  drop(): Promise<void>;
}

/** Makes an empty database with a random name on the server of the test run. The caller drops it. */
export async function createTestDatabase(): Promise<TestDatabase> {
  const name = `fencepost_test_${randomBytes(8).toString("hex")}`;
  // From template0, so that the collation and encoding are the same on any server that DATABASE_URL names.
  await asAdmin(`CREATE DATABASE ${name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`);
  const url = new URL(inject("postgresUrl"));
  url.pathname = `/${name}`;
  return { url: url.href, drop: () => asAdmin(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`) };
}

async function asAdmin(statement: string): Promise<void> {
  const client = new Client({ connectionString: inject("postgresUrl") });
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}
