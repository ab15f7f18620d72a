import { afterAll, beforeAll, expect, it } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { createApiKey, findApiKey, listApiKeys, revokeApiKey } from "./apiKeys.ts";
import { type Database, openDatabase } from "./database.ts";
import { migrate } from "./migrate.ts";

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

it("makes keys of 32 random bytes, each of which is found under its own id", async () => {
  const first = await createApiKey(database, "first");
  const second = await createApiKey(database, "second");
  expect(first.key).toMatch(/^fp_[\w-]{43}$/);
  expect(first.key).not.toBe(second.key);
  expect(await findApiKey(database, first.key)).toBe(first.apiKey.id);
  expect(await findApiKey(database, second.key)).toBe(second.apiKey.id);
});

it("finds nothing under another text, nor under what is stored", async () => {
  const { key, apiKey } = await createApiKey(database, "hashed");
  const { rows } = await database.query<{ stored: string; key_hash: Buffer }>(
    "SELECT k::text AS stored, key_hash FROM fencepost.api_keys k WHERE id = $1",
    [apiKey.id],
  );
  expect(rows[0]?.stored).not.toContain(key.slice("fp_".length));
  const guesses = [
    "",
    "fp_",
    `${key}A`,
    key.slice(0, -1),
    apiKey.id,
    rows[0]?.key_hash.toString("hex") ?? "",
  ];
  for (const guess of guesses) expect(await findApiKey(database, guess), guess).toBeUndefined();
});

it("a revoked key opens nothing, and stays in the list with the time of its end", async () => {
  const { key, apiKey } = await createApiKey(database, "leaked");
  expect((await listApiKeys(database)).find(({ id }) => id === apiKey.id)).toEqual(apiKey);
  const revoked = await revokeApiKey(database, apiKey.id);
  expect(revoked?.revokedAt).toBeInstanceOf(Date);
  expect(await findApiKey(database, key)).toBeUndefined();
  expect(await revokeApiKey(database, apiKey.id)).toEqual(revoked);
  expect((await listApiKeys(database)).find(({ id }) => id === apiKey.id)).toEqual(revoked);
  expect(await revokeApiKey(database, "key_nobody")).toBeUndefined();
});
