import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createTestDatabase } from "../../__tests__/support/testDatabase.ts";
import { copyRows } from "./copyRows.ts";
import { type Database, openDatabase } from "./database.ts";

let drop: () => Promise<void>;
let database: Database;
beforeAll(async () => {
  const created = await createTestDatabase();
  drop = created.drop;
  database = openDatabase(created.url);
  await database.query(
    "CREATE TABLE copied (n bigint PRIMARY KEY, text text, list text[], bytes bytea, yes boolean)",
  );
});
afterAll(async () => {
  await database.close();
  await drop();
});

const COLUMNS = ["n", "text", "list", "bytes", "yes"];
/** With the characters that mean something to COPY or to an array more often than others. */
const text = fc.oneof(
  fc.string({
    unit: fc.constantFrom(..."\\\t\n\r\"{},N.' ;", "\\N", "\\.", "\\x41", "\u2028", "\u{1F980}", "NULL"),
  }),
  fc.string({ unit: "grapheme" }).filter((any) => !any.includes("\0")),
);

test("any texts, lists, bytes and big numbers come out of the table as they went in", async () => {
  const row = fc.record({
    text: fc.option(text),
    list: fc.array(text, { maxLength: 4 }),
    bytes: fc.uint8Array({ maxLength: 20 }).map((bytes) => Buffer.from(bytes)),
    yes: fc.boolean(),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.array(row, { minLength: 1, maxLength: 50 }),
      fc.bigInt(0n, 2n ** 62n),
      async (drawn, from) => {
        const rows = drawn.map((each, i) => ({ n: from + BigInt(i), ...each }));
        await database.query("TRUNCATE copied");
        await database.transaction((client) =>
          copyRows(
            client,
            "copied",
            COLUMNS,
            rows.map(({ n, text, list, bytes, yes }) => [n, text, list, bytes, yes]),
          ),
        );
        expect((await database.query("SELECT * FROM copied ORDER BY n")).rows).toEqual(rows);
      },
    ),
    { numRuns: 60 },
  );
});

test("rows of many chunks are all written", async () => {
  await database.query("TRUNCATE copied");
  const long = "x".repeat(1_000);
  const rows = Array.from({ length: 2_000 }, (_, i) => [i, long, [], Buffer.alloc(0), true] as const);
  await database.transaction((client) => copyRows(client, "copied", COLUMNS, rows));
  const { rows: sums } = await database.query(
    "SELECT count(*), sum(n)::bigint AS sum, min(length(text)) AS shortest FROM copied",
  );
  expect(sums).toEqual([{ count: 2_000n, sum: 1_999_000n, shortest: 1_000 }]);
});

test.each([
  ["a key that is there", [[1, "second", [], Buffer.alloc(0), true]], "23505"],
  ["a text with NUL", [[2, "a\0b", [], Buffer.alloc(0), true]], "22021"],
  ["a row that lacks a column", [[3, "short"]], "22P04"],
] as const)("%s fails all of it, and the connection can be used again", async (_, bad, code) => {
  await database.query("TRUNCATE copied");
  await database.query("INSERT INTO copied VALUES (1, 'first')");
  const copying = database.transaction((client) =>
    copyRows(client, "copied", COLUMNS, [[7, "good", [], Buffer.alloc(0), true], ...bad]),
  );
  await expect(copying).rejects.toMatchObject({ code });
  expect((await database.query("SELECT n, text FROM copied")).rows).toEqual([{ n: 1n, text: "first" }]);
});

test("rows that cannot be made end the transaction with their own error, and write none", async () => {
  await database.query("TRUNCATE copied");
  function* rows() {
    yield [1, "x".repeat(100_000), [], Buffer.alloc(0), true] as const;
    throw new RangeError("no more");
  }
  const copying = database.transaction((client) => copyRows(client, "copied", COLUMNS, rows()));
  await expect(copying).rejects.toThrow("no more");
  expect((await database.query("SELECT FROM copied")).rows).toEqual([]);
});
