import { Client } from "pg";
import { expect, it } from "vitest";
import { createTestDatabase } from "./testDatabase.ts";

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(sql)).rows;
  } finally {
    await client.end();
  }
}

it("gives each test an empty database of its own, with durable commits, and takes it away", async () => {
  const [one, two] = await Promise.all([createTestDatabase(), createTestDatabase()]);
  try {
    await query(one.url, "CREATE TABLE t AS SELECT 1 AS n");
    expect(await query(two.url, "SELECT to_regclass('t') AS t")).toEqual([{ t: null }]);
    expect(await query(one.url, "SELECT current_setting('fsync') AS fsync")).toEqual([{ fsync: "on" }]);
  } finally {
    await Promise.all([one.drop(), two.drop()]);
  }
  await expect(query(one.url, "SELECT 1")).rejects.toMatchObject({ code: "3D000" });
});
