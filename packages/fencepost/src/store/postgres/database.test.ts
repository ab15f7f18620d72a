import { createServer } from "node:net";
import { startProxy, type TcpProxy } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import { type Database, openDatabase } from "./database.ts";
import {
  CommitBecameRollbackError,
  ConnectionLostError,
  DatabaseFullError,
  DatabaseUnreachableError,
} from "./errors.ts";
import { openScratch } from "./scratch.ts";
import { stageTransaction } from "./stageTransaction.ts";

let testDatabase: TestDatabase;
let proxy: TcpProxy;
let direct: Database;
/** Through the proxy, with two connections at the most. */
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  const url = new URL(testDatabase.url);
  proxy = await startProxy({ targetPort: Number(url.port), targetHost: url.hostname });
  url.hostname = "127.0.0.1";
  url.port = `${proxy.port}`;
  database = openDatabase(url.href, { maxConnections: 2 });
  direct = openDatabase(testDatabase.url);
});
beforeEach(() => direct.query("CREATE TABLE kept (n int PRIMARY KEY)"));
afterEach(() => direct.query("DROP TABLE kept"));
afterAll(async () => {
  await database.close();
  await proxy.close();
  await direct.close();
  await testDatabase.drop();
});

const kept = async (): Promise<number[]> => {
  const { rows } = await direct.query<{ n: number }>("SELECT n FROM kept ORDER BY n");
  return rows.map(({ n }) => n);
};

async function failure(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => {
      throw new Error("It did not fail.");
    },
    (error: Error) => error,
  );
}

test("dates are read whatever the style is in which the server shows them", async () => {
  const url = new URL(testDatabase.url);
  url.searchParams.set("options", "-c datestyle=SQL,DMY -c timezone=Asia/Kolkata");
  const other = openDatabase(url.href);
  try {
    const moment = new Date("2026-11-30T12:34:56.789Z");
    const { rows } = await other.query("SELECT $1::timestamptz AS moment, $1::timestamptz::text AS text", [
      moment,
    ]);
    expect(rows).toEqual([{ moment, text: "2026-11-30 18:04:56.789+05:30" }]);
    // Handlers that run again see the same.
    const scratch = await openScratch(url.href, []);
    const again = await scratch.transaction((client) =>
      client.query("SELECT $1::timestamptz AS moment", [moment]),
    );
    await scratch.close();
    expect(again.rows).toEqual([{ moment }]);
  } finally {
    await other.close();
  }
});

test("a transaction sees what others commit meanwhile, whatever the server makes of one by itself", async () => {
  const url = new URL(testDatabase.url);
  url.searchParams.set("options", "-c default_transaction_isolation=serializable");
  const strict = openDatabase(url.href);
  try {
    const { rows } = await strict.query("SHOW transaction_isolation");
    expect(rows).toEqual([{ transaction_isolation: "serializable" }]);
    const seen = await strict.transaction(async (client) => {
      const read = async () => (await client.query("SELECT FROM kept")).rows.length;
      const before = await read();
      await direct.query("INSERT INTO kept VALUES (1)");
      return [before, await read()];
    });
    expect(seen).toEqual([0, 1]);
  } finally {
    await strict.close();
  }
});

test("a transaction that ends is committed, one that throws is rolled back and throws the same", async () => {
  expect(
    await database.transaction(
      async (client) => (await client.query("INSERT INTO kept VALUES (1)")).rowCount,
    ),
  ).toBe(1);
  const mistake = new Error("a mistake");
  const failed = database.transaction(async (client) => {
    await client.query("INSERT INTO kept VALUES (2)");
    throw mistake;
  });
  expect(await failure(failed)).toBe(mistake);
  expect(await kept()).toEqual([1]);
});

test("an SQL error that was swallowed is noticed at the COMMIT", async () => {
  const swallowed = database.transaction(async (client) => {
    await client.query("INSERT INTO kept VALUES (1)");
    await client.query("INSERT INTO kept VALUES (1)").catch(() => {});
  });
  expect(await failure(swallowed)).toBeInstanceOf(CommitBecameRollbackError);
  expect(await kept()).toEqual([]);
});

test("numbers of 64 bits keep every bit, in statements and in transactions", async () => {
  const text = `SELECT ${2n ** 63n - 1n}::int8 AS n, count(*) FROM kept`;
  expect((await database.query(text)).rows).toEqual([{ n: 2n ** 63n - 1n, count: 0n }]);
  expect(await database.transaction(async (client) => (await client.query(text)).rows)).toEqual([
    { n: 2n ** 63n - 1n, count: 0n },
  ]);
});

test.each<[string, () => void, readonly number[]]>([
  ["before its first statement", () => proxy.cutWhen((chunk) => chunk.includes("BEGIN")), []],
  ["in a statement", () => proxy.cutWhen((chunk) => chunk.includes("VALUES (2)")), []],
  ["behind a statement", () => proxy.cutWhen((chunk) => chunk.includes("VALUES (2)"), { deliver: true }), []],
  ["before its COMMIT", () => proxy.cutWhen((chunk) => chunk.includes("COMMIT\0")), []],
  [
    "behind its COMMIT",
    () => proxy.cutWhen((chunk) => chunk.includes("COMMIT\0"), { deliver: true }),
    [1, 2],
  ],
])(
  "a connection that breaks %s is a lost connection, by name, and the next one is whole",
  async (_, arm, written) => {
    arm();
    const broken = database.transaction(async (client) => {
      await client.query("INSERT INTO kept VALUES (1)");
      await client.query("INSERT INTO kept VALUES (2)");
    });
    const error = await failure(broken);
    expect(error).toBeInstanceOf(ConnectionLostError);
    expect(error.message).toContain("unless it broke during the COMMIT itself");
    // The server notices in its own time.
    await waitUntil(
      async () =>
        (
          await direct.query(
            "SELECT FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()",
          )
        ).rows.length === 0,
      { what: "the cut transaction is over" },
    );
    expect(await kept()).toEqual(written);
    await database.transaction((client) => client.query("INSERT INTO kept VALUES (3)"));
    expect(await kept()).toEqual([...written, 3]);
  },
);

test("a lost connection tells what was thrown when it was lost", async () => {
  const mistake = new Error("a mistake");
  const error = await failure(
    database.transaction(async (client) => {
      proxy.cut();
      await client.query("SELECT 1").catch(() => {});
      throw mistake;
    }),
  );
  expect(error).toBeInstanceOf(ConnectionLostError);
  expect(error.cause).toBe(mistake);
});

test("a backend that is told to end is a lost connection", async () => {
  const error = await failure(
    database.transaction(async (client) => {
      const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      await direct.query("SELECT pg_terminate_backend($1)", [rows[0]?.pid]);
      await client.query("SELECT 1");
    }),
  );
  expect(error).toBeInstanceOf(ConnectionLostError);
});

test("a full disk is named, in a statement and in a transaction, also where what is thrown only has it as its cause", async () => {
  const refuse = "DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = 'disk_full'; END $$";
  const wrapped = (cause: unknown) => Promise.reject(new Error("a mistake", { cause }));
  const failing: (() => Promise<unknown>)[] = [
    () => direct.query(refuse),
    () => direct.hot(refuse),
    () => direct.transaction((client) => client.query(refuse)),
    () => direct.transaction((client) => client.query(refuse).catch(wrapped).catch(wrapped)),
    () => direct.transaction(() => direct.query(refuse)),
  ];
  for (const fail of failing) {
    const error = await failure(fail());
    expect(error).toBeInstanceOf(DatabaseFullError);
    expect(error.message).toMatch(
      /^The disk of PostgreSQL at [^ ]+ is full: no room\. Nothing is half-stored\. Free/,
    );
  }
});

test("idle connections that broke are replaced", async () => {
  await Promise.all([database.query("SELECT 1"), database.query("SELECT 1")]);
  proxy.cut();
  await waitUntil(
    () =>
      database.query("SELECT 1").then(
        () => true,
        (error: Error) => {
          expect(error).toBeInstanceOf(DatabaseUnreachableError);
          return false;
        },
      ),
    { what: "the pool has a whole connection" },
  );
});

test("transactions that fail, of whatever cause, give their connections back", async () => {
  for (let i = 0; i < 6; i++) {
    await failure(database.transaction(() => Promise.reject(new Error("a mistake"))));
    await failure(
      database.transaction(async (client) => {
        if (i % 2 === 0) proxy.cut();
        await client.query("SELECT 1/0");
      }),
    );
  }
  expect(
    await Promise.all(
      [1, 2, 3, 4].map((n) => database.query("SELECT $1::int AS n", [n]).then(({ rows }) => rows)),
    ),
  ).toEqual([1, 2, 3, 4].map((n) => [{ n }]));
});

test("a leader that is paused inside its transaction is cut off before its lease ends", async () => {
  const error = await failure(
    stageTransaction(direct, 400, async (client) => {
      const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      await waitUntil(
        async () =>
          (await database.query("SELECT FROM pg_stat_activity WHERE pid = $1", [rows[0]?.pid])).rows
            .length === 0,
        { what: "its backend is gone" },
      );
      await client.query("INSERT INTO kept VALUES (1)");
    }),
  );
  expect(error).toBeInstanceOf(ConnectionLostError);
  expect((error as ConnectionLostError).code).toBe("25P03");
  expect(await kept()).toEqual([]);
});

async function unreachable(change: (url: URL) => void): Promise<Error> {
  const url = new URL(testDatabase.url);
  url.password = "secret-password";
  change(url);
  const wrong = openDatabase(url.href);
  const error = await failure(wrong.query("SELECT 1"));
  expect(await failure(wrong.transaction(async () => {}))).toBeInstanceOf(DatabaseUnreachableError);
  await wrong.close();
  expect(error).toBeInstanceOf(DatabaseUnreachableError);
  expect(error.message).not.toContain("secret-password");
  expect(error.message).toContain(
    `PostgreSQL at ${url.hostname}:${url.port}${url.pathname} cannot be used: `,
  );
  return error;
}

test("a server that cannot be reached is named, without the password", async () => {
  const listener = createServer();
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const { port } = listener.address() as { port: number };
  await new Promise((resolve) => listener.close(resolve));
  const error = await unreachable((url) => {
    url.hostname = "127.0.0.1";
    url.port = `${port}`;
  });
  expect(error.message).toContain("ECONNREFUSED");
});

test("a database that does not exist is named", async () => {
  const error = await unreachable((url) => {
    url.password = new URL(testDatabase.url).password;
    url.pathname = "/no_such_database";
  });
  expect(error.message).toContain('database "no_such_database" does not exist');
});

const INSERT = "INSERT INTO kept VALUES ($1::int)";

test.each([
  ["a statement", (own: Database, n: number) => own.hot(INSERT, [n])],
  ["a transaction", (own: Database, n: number) => own.hotTransaction((db) => db.query(INSERT, [n]))],
])(
  "%s that runs often goes on, once each, where a pooler gives it a connection that knows nothing of it",
  async (_, run) => {
    const own = openDatabase(testDatabase.url, { maxConnections: 1 });
    try {
      await run(own, 1);
      expect((await own.query("SELECT FROM pg_prepared_statements")).rows.length).toBe(1);
      await own.query("DEALLOCATE ALL");
      await run(own, 2);
      await run(own, 3);
      expect((await own.query("SELECT FROM pg_prepared_statements")).rows.length).toBe(0);
      await expect(run(own, 3)).rejects.toMatchObject({ code: "23505" });
    } finally {
      await own.close();
    }
    expect(await kept()).toEqual([1, 2, 3]);
  },
);
