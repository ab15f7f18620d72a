import { asToken } from "@fencepost/token";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import {
  bigint,
  bigserial,
  boolean,
  char,
  check,
  cidr,
  customType,
  date,
  doublePrecision,
  foreignKey,
  index,
  inet,
  integer,
  interval,
  json,
  jsonb,
  macaddr,
  numeric,
  type PgTable,
  pgEnum,
  pgPolicy,
  pgSchema,
  pgTable,
  point,
  primaryKey,
  real,
  serial,
  smallint,
  text,
  time,
  timestamp,
  unique,
  uniqueIndex,
  uuid,
  varchar,
} from "drizzle-orm/pg-core";
import { Client } from "pg";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { address, i128, token, u64 } from "../../config/columns.ts";
import { createVersionSchema, tableStatements, UnsupportedTableError } from "./projectionTables.ts";

let testDatabase: TestDatabase;
let client: Client;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  client = new Client({ connectionString: testDatabase.url });
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await testDatabase.drop();
});

let version = 0;
beforeEach(() => {
  version++;
});

/** Makes the tables as a projection has them, and leaves the search path at them. */
async function create(...tables: readonly PgTable[]): Promise<void> {
  await client.query("BEGIN");
  await createVersionSchema(client, { name: "p", version }, tableStatements(tables), { anew: false });
  await client.query("COMMIT");
  await client.query(`SET search_path = p_v${version}, public`);
}

const db = () => drizzle(client);

async function codeOf(promise: PromiseLike<unknown>): Promise<string | undefined> {
  try {
    await promise;
  } catch (error) {
    const { cause = error } = error as { cause?: unknown };
    return (cause as { code?: string }).code;
  }
  throw new Error("It was accepted.");
}

/** Name, type, nullability and default of each column, as PostgreSQL has them. */
async function columnsOf(table: string): Promise<Record<string, string>> {
  const { rows } = await client.query<{ name: string; definition: string }>(
    `SELECT attname AS name,
            concat_ws(' ', format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END,
                      pg_get_expr(adbin, adrelid)) AS definition
     FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
     WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attnum`,
    [table],
  );
  return Object.fromEntries(rows.map((row) => [row.name, row.definition]));
}

const bytea = customType<{ data: Buffer }>({ dataType: () => "bytea" });

test("every kind of column keeps its values", async () => {
  const kinds = pgTable("kinds", {
    text: text(),
    varchar: varchar({ length: 10 }),
    char: char({ length: 3 }),
    boolean: boolean(),
    smallint: smallint(),
    integer: integer(),
    bigintNumber: bigint("bigint_number", { mode: "number" }),
    bigint: bigint({ mode: "bigint" }),
    numeric: numeric({ precision: 40, scale: 5 }),
    numericBigint: numeric("numeric_bigint", { mode: "bigint", precision: 30 }),
    real: real(),
    double: doublePrecision(),
    json: json(),
    jsonb: jsonb(),
    uuid: uuid(),
    date: date(),
    dateDate: date("date_date", { mode: "date" }),
    time: time({ precision: 3 }),
    timestamp: timestamp({ withTimezone: true, mode: "date" }),
    timestampText: timestamp("timestamp_text", { mode: "string", precision: 6 }),
    interval: interval(),
    inet: inet(),
    cidr: cidr(),
    macaddr: macaddr(),
    point: point({ mode: "xy" }),
    bytes: bytea(),
    texts: text().array(),
    matrix: integer().array().array(),
    i128s: i128().array(),
    tokens: token().array(),
  });
  await create(kinds);
  const row = {
    text: 'O\'Brien "ü€" \\ {a,b}',
    varchar: "ten chars.",
    char: "abc",
    boolean: true,
    smallint: -32_768,
    integer: 2_147_483_647,
    bigintNumber: Number.MAX_SAFE_INTEGER,
    bigint: -(2n ** 63n),
    numeric: "12345678901234567890123456789012345.00001",
    numericBigint: 10n ** 29n,
    real: 0.5,
    double: 0.1,
    json: { a: [1, null, "x"] },
    jsonb: { a: { b: "x" } },
    uuid: "0190a0f4-5b5e-7e3c-8f5b-0123456789ab",
    date: "2026-06-19",
    dateDate: new Date("2026-06-19T00:00:00Z"),
    time: "12:34:56.789",
    timestamp: new Date("2026-06-19T00:21:26.123Z"),
    timestampText: "2026-06-19 00:21:26.123456",
    interval: "1 day 02:03:04",
    inet: "10.0.0.1",
    cidr: "10.0.0.0/8",
    macaddr: "08:00:2b:01:02:03",
    point: { x: 1, y: -2.5 },
    bytes: Buffer.from([0, 255]),
    texts: ["a", 'b,"', "O'B", ""],
    matrix: [
      [1, 2],
      [3, 4],
    ],
    i128s: [2n ** 127n - 1n, -(2n ** 127n)],
    tokens: [asToken("testnet-20251217-0063092990-0000027-0006-0000000002")],
  };
  await db().insert(kinds).values(row);
  expect(await db().select().from(kinds)).toEqual([row]);
  await db().insert(kinds).values({});
  const [, empty] = await db().select().from(kinds);
  expect(new Set(Object.values(empty ?? {}))).toEqual(new Set([null]));
});

test("the columns for chain values hold their limits, and refuse what is beyond their digits", async () => {
  const chain = pgTable("chain", { id: integer().primaryKey(), signed: i128(), unsigned: u64() });
  await create(chain);
  const limits = [
    { id: 1, signed: 2n ** 127n - 1n, unsigned: 2n ** 64n - 1n },
    { id: 2, signed: -(2n ** 127n), unsigned: 0n },
    { id: 3, signed: 0n, unsigned: 2n ** 53n + 1n },
  ];
  await db().insert(chain).values(limits);
  expect(await db().select().from(chain).orderBy(chain.id)).toEqual(limits);
  expect(
    await db()
      .select({ id: chain.id })
      .from(chain)
      .where(eq(chain.signed, 2n ** 127n - 1n)),
  ).toEqual([{ id: 1 }]);
  expect(
    await db()
      .select({ sum: sql<string>`sum(${chain.signed})` })
      .from(chain),
  ).toEqual([{ sum: "-1" }]);
  expect(
    await codeOf(
      db()
        .insert(chain)
        .values({ id: 4, unsigned: 10n ** 20n }),
    ),
  ).toBe("22003");
});

test("tokens and addresses are ordered by their bytes, whatever the database's own order is", async () => {
  const chain = pgTable("chain", {
    token: token().primaryKey(),
    who: address().notNull(),
    log: token().array(),
  });
  await create(chain);
  const { rows } = await client.query<{ attname: string; collname: string }>(
    `SELECT attname, collname FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation
     WHERE attrelid = 'chain'::regclass AND attnum > 0 ORDER BY attnum`,
  );
  expect(rows.map((row) => [row.attname, row.collname])).toEqual([
    ["token", "C"],
    ["who", "C"],
    ["log", "C"],
  ]);
  await db()
    .insert(chain)
    .values([
      { token: asToken("testnet-20251217-0000000002-0000001-0000-0000000000"), who: "b" },
      { token: asToken("testnet-20251217-0000000001-0000001-0000-0000000000"), who: "B" },
    ]);
  expect((await db().select().from(chain).orderBy(chain.who)).map((row) => row.who)).toEqual(["B", "b"]);
});

test("defaults are what Drizzle was told: values of every kind, and SQL", async () => {
  const defaults = pgTable("defaults", {
    id: serial().primaryKey(),
    text: text().default('it\'s; a \\ "text"'),
    integer: integer().notNull().default(-5),
    bigint: bigint({ mode: "bigint" }).default(2n ** 60n),
    i128: i128().default(-(2n ** 127n)),
    double: doublePrecision().default(0.25),
    boolean: boolean().default(false),
    now: timestamp({ withTimezone: true }).notNull().defaultNow(),
    date: timestamp("date", { mode: "date", withTimezone: true }).default(new Date("2026-06-19T00:00:00Z")),
    random: uuid().defaultRandom(),
    json: jsonb().default({ a: ["it's"] }),
    list: text().array().default(["a", "b'c"]),
    empty: integer().array().notNull().default([]),
    expression: integer().default(sql`1 + 1`),
    nothing: text().default(sql`NULL`),
  });
  await create(defaults);
  await db().insert(defaults).values({});
  expect(await db().select().from(defaults)).toEqual([
    {
      id: 1,
      text: 'it\'s; a \\ "text"',
      integer: -5,
      bigint: 2n ** 60n,
      i128: -(2n ** 127n),
      double: 0.25,
      boolean: false,
      now: expect.any(Date),
      date: new Date("2026-06-19T00:00:00Z"),
      random: expect.stringMatching(/^[0-9a-f-]{36}$/),
      json: { a: ["it's"] },
      list: ["a", "b'c"],
      empty: [],
      expression: 2,
      nothing: null,
    },
  ]);
});

test("generated columns and identities are made, with their sequences as asked for", async () => {
  const generated = pgTable("generated", {
    id: bigserial({ mode: "bigint" }).primaryKey(),
    always: integer().generatedAlwaysAsIdentity({ startWith: 100, increment: 10 }),
    other: bigint({ mode: "number" }).generatedByDefaultAsIdentity({
      name: "my_sequence",
      minValue: 5,
      maxValue: 6,
      cycle: true,
    }),
    amount: integer().notNull(),
    double: integer().generatedAlwaysAs(sql`amount * 2`),
    label: text().generatedAlwaysAs((): ReturnType<typeof sql> => sql`'n' || ${generated.amount}`),
  });
  await create(generated);
  await db()
    .insert(generated)
    .values([{ amount: 1 }, { amount: 2 }, { amount: 3 }]);
  expect(await db().select().from(generated).orderBy(generated.id)).toEqual([
    { id: 1n, always: 100, other: 5, amount: 1, double: 2, label: "n1" },
    { id: 2n, always: 110, other: 6, amount: 2, double: 4, label: "n2" },
    { id: 3n, always: 120, other: 5, amount: 3, double: 6, label: "n3" },
  ]);
  expect(await codeOf(client.query("INSERT INTO generated (amount, always) VALUES (1, 1)"))).toBe("428C9");
  expect((await client.query("SELECT last_value FROM my_sequence")).rows).toHaveLength(1);
});

test("keys, unique constraints and checks hold, under the names that Drizzle gives them", async () => {
  const members = pgTable(
    "members",
    {
      pool: text().notNull(),
      who: text().notNull(),
      email: text().unique(),
      code: text().unique("members_code", { nulls: "not distinct" }),
      amount: i128().notNull().default(0n),
    },
    (t) => [
      primaryKey({ columns: [t.pool, t.who] }),
      unique("members_who_amount").on(t.who, t.amount),
      check("members_amount", sql`${t.amount} >= 0 AND ${t.pool} <> 'it''s'`),
    ],
  );
  await create(members);
  const { rows } = await client.query(
    "SELECT conname FROM pg_constraint WHERE conrelid = 'members'::regclass AND contype <> 'n' ORDER BY 1",
  );
  expect(rows.map(({ conname }) => conname)).toEqual([
    "members_amount",
    "members_code",
    "members_email_unique",
    "members_pool_who_pk",
    "members_who_amount",
  ]);
  await db().insert(members).values({ pool: "a", who: "x", email: "e" });
  const insert = (more: Partial<typeof members.$inferInsert>) =>
    codeOf(
      db()
        .insert(members)
        .values({ pool: "b", who: "y", code: "c", ...more }),
    );
  expect(await insert({ pool: "a", who: "x" })).toBe("23505");
  expect(await insert({ email: "e" })).toBe("23505");
  expect(await insert({ code: null })).toBe("23505");
  expect(await insert({ who: "x" })).toBe("23505");
  expect(await insert({ amount: -1n })).toBe("23514");
  expect(await insert({ pool: "it's" })).toBe("23514");
  expect(await insert({ who: null as never })).toBe("23502");
});

test("indexes are made as they are declared: unique, partial, on expressions, in their order and method", async () => {
  const sales = pgTable(
    "sales",
    {
      id: text().primaryKey(),
      who: text().notNull(),
      amount: i128().notNull(),
      tags: text().array(),
      done: boolean(),
    },
    (t) => [
      index("sales_plain").on(t.who),
      index("sales_order").on(t.amount.desc().nullsLast(), t.who.asc().nullsFirst()),
      uniqueIndex("sales_open").on(t.who).where(sql`${t.done} IS NOT TRUE`),
      index("sales_lower").on(sql`lower(${t.who})`, t.id),
      index("sales_tags").using("gin", t.tags),
      index("sales_hash").using("hash", t.who),
      index("sales_operators").on(t.who.op("text_pattern_ops")),
      index("sales_filled").on(t.id).with({ fillfactor: 70 }),
      index().on(t.done),
    ],
  );
  await create(sales);
  const { rows } = await client.query<{ indexname: string; indexdef: string }>(
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema AND tablename = 'sales'",
  );
  const definitions = Object.fromEntries(
    rows.map((row) => [row.indexname, row.indexdef.replace(/^.* USING /, "")]),
  );
  expect(definitions).toEqual({
    sales_pkey: "btree (id)",
    sales_plain: "btree (who)",
    sales_order: "btree (amount DESC NULLS LAST, who NULLS FIRST)",
    sales_open: "btree (who) WHERE (done IS NOT TRUE)",
    sales_lower: "btree (lower(who), id)",
    sales_tags: "gin (tags)",
    sales_hash: "hash (who)",
    sales_operators: "btree (who text_pattern_ops)",
    sales_filled: "btree (id) WITH (fillfactor='70')",
    sales_done_idx: "btree (done)",
  });
  expect(rows.find((row) => row.indexname === "sales_open")?.indexdef).toMatch(/^CREATE UNIQUE INDEX/);
});

test("foreign keys between the tables of a projection hold, whichever is declared first", async () => {
  const children = pgTable(
    "a_children",
    {
      id: text().primaryKey(),
      parent: text().references(() => parents.id, { onDelete: "cascade", onUpdate: "no action" }),
      a: text(),
      b: text(),
      next: text(),
    },
    (t) => [
      foreignKey({ columns: [t.a, t.b], foreignColumns: [parents.a, parents.b], name: "pair" }).onDelete(
        "set null",
      ),
      foreignKey({ columns: [t.next], foreignColumns: [t.id] }),
    ],
  );
  const parents = pgTable("b_parents", { id: text().primaryKey(), a: text(), b: text() }, (t) => [
    unique().on(t.a, t.b),
  ]);
  await create(children, parents);
  expect(await codeOf(db().insert(children).values({ id: "1", parent: "nobody" }))).toBe("23503");
  expect(await codeOf(db().insert(children).values({ id: "1", next: "9" }))).toBe("23503");
  await db()
    .insert(parents)
    .values([{ id: "p" }, { id: "q", a: "x", b: "y" }]);
  await db()
    .insert(children)
    .values([
      { id: "1", parent: "p" },
      { id: "2", a: "x", b: "y", next: "1" },
    ]);
  await db().update(children).set({ next: null });
  await db().delete(parents);
  expect(await db().select().from(children)).toEqual([
    { id: "2", parent: null, a: null, b: null, next: null },
  ]);
});

test("names that need quotes get them", async () => {
  const odd = pgTable(
    'Odd "table"',
    { id: integer('The "id"').primaryKey(), select: text(), ü: text() },
    (t) => [index('Odd "index"').on(t.select), check("odd check", sql`${t.ü} <> ''`)],
  );
  await create(odd);
  await db().insert(odd).values({ id: 1, select: "x", ü: "y" });
  expect(await db().select().from(odd)).toEqual([{ id: 1, select: "x", ü: "y" }]);
  expect(Object.keys(await columnsOf('"Odd ""table"""'))).toEqual(['The "id"', "select", "ü"]);
});

test("the same tables give the same statements, in whatever order they come", () => {
  const build = () => [
    pgTable("b", { id: text().primaryKey(), n: i128().default(5n) }, (t) => [index("n").on(t.n)]),
    pgTable("a", { id: text().primaryKey() }),
  ];
  expect(tableStatements(build())).toEqual(tableStatements(build().reverse()));
});

const elsewhere = pgTable("elsewhere", { id: text().primaryKey() });
const level = pgEnum("level", ["low", "high"]);
test.each<[string, () => readonly PgTable[], RegExp]>([
  [
    "an enum",
    () => [pgTable("t", { level: level() })],
    /table t cannot be created: its column level is an enum/,
  ],
  ["a list of an enum", () => [pgTable("t", { levels: level().array() })], /column levels is an enum/],
  [
    "an enum of an object",
    () => [pgTable("t", { l: pgEnum("o", { A: "a" } as const)() })],
    /column l is an enum/,
  ],
  [
    "a table of another schema",
    () => [pgSchema("s").table("t", { id: text() })],
    /table t .* names a schema/,
  ],
  [
    "a foreign key to a table that is not the projection's",
    () => [pgTable("t", { id: text().references(() => elsewhere.id) })],
    /table t .* refers to elsewhere/,
  ],
  [
    "a foreign key to another table of the same name",
    () => [pgTable("t", { id: text().references(() => elsewhere.id) }), pgTable("elsewhere", { id: text() })],
    /refers to elsewhere/,
  ],
  ["row level security", () => [pgTable("t", { id: text() }).enableRLS()], /row level security/],
  ["a policy", () => [pgTable("t", { id: text() }, () => [pgPolicy("p")])], /row level security/],
  [
    "two tables of one name",
    () => [pgTable("t", { a: text() }), pgTable("t", { b: text() })],
    /two tables have this/,
  ],
  [
    "a default without an SQL form",
    () => [pgTable("t", { raw: bytea().default(Buffer.from("a")) })],
    /default of its column raw has no SQL form/,
  ],
])("%s is refused by name", (_, tables, message) => {
  expect(() => tableStatements(tables())).toThrow(UnsupportedTableError);
  expect(() => tableStatements(tables())).toThrow(message);
});
