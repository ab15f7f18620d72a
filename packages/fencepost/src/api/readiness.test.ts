import { afterEach, expect, it } from "vitest";
import { createTestDatabase } from "../__tests__/support/testDatabase.ts";
import { createLog } from "../observe/log.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { notReadyBecause } from "./readiness.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function startDatabase(): Promise<Database> {
  const { url, drop } = await createTestDatabase();
  closing.push(drop);
  const database = openDatabase(url);
  closing.push(database.close);
  return database;
}

function reasons(database: Database, lines: string[] = []): Promise<readonly string[]> {
  const log = createLog("warn", { write: (line) => void lines.push(line) });
  return notReadyBecause({ database, store: postgresStore(database), log });
}

it("is not ready on a database that lacks migrations, and ready once it has them", async () => {
  const database = await startDatabase();
  expect(await reasons(database)).toEqual([
    expect.stringMatching(/^The database lacks .*0001_pipeline\.sql/),
  ]);
  await migrate(database);
  expect(await reasons(database)).toEqual([]);
});

it("names each stream that halted or lacks ledgers, and each projection that stopped", async () => {
  const database = await startDatabase();
  await migrate(database);
  await database.query(
    `INSERT INTO fencepost.streams (stream, epoch, passphrase, next_ledger, filters_hash, halted)
     VALUES ('pubnet', '20150930', 'x', 91, '', 'gap'), ('testnet', '20251217', 'x', 91, '', NULL)`,
  );
  await database.query(
    `INSERT INTO fencepost.gaps (stream, from_ledger, to_ledger, accepted_at)
     VALUES ('pubnet', 91, 95, NULL), ('testnet', 10, 20, now())`,
  );
  await database.query(
    `INSERT INTO fencepost.projections (name, version, stream, cursor, state, fingerprint, stopped_token, stopped_at)
     VALUES ('pools', 2, 'testnet', 40, 'live', '', 'testnet-20251217-1', now()), ('others', 1, 'testnet', 40, 'live', '', NULL, NULL)`,
  );
  expect(await reasons(database)).toEqual([
    "The stream pubnet has halted: gap.",
    "The stream pubnet lacks the ledgers 91 to 95.",
    "The projection pools v2 has stopped at testnet-20251217-1.",
  ]);
});

it("says that a store does not answer, to the caller without where it is, and to the log with it", async () => {
  const database = openDatabase("postgres://nobody:secret@127.0.0.1:1/nothing");
  closing.push(database.close);
  const lines: string[] = [];
  const [reason, ...others] = await reasons(database, lines);
  expect(reason).toMatch(/^A store does not answer/);
  expect(others).toEqual([]);
  expect(reason).not.toContain("127.0.0.1");
  expect(lines.join()).toContain("127.0.0.1:1");
  expect(lines.join()).not.toContain("secret");
});
