import { asToken, type EventId } from "@fencepost/token";
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { pgTable, text } from "drizzle-orm/pg-core";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type PostgresFixture, postgresFixture } from "./__tests__/postgresFixture.ts";
import { type PrismaClient, prismaClient } from "./__tests__/prismaClient.ts";
import { ATTEMPT_TIME, NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  AttemptFencedError,
  CommitBecameRollbackError,
  createReceiver,
  ensureInbox,
  fromDrizzle,
  fromPrisma,
  InboxBusyError,
  InboxTableMissingError,
  NotInTransactionError,
  postgresInbox,
  type SqlClient,
} from "./index.ts";

/** A way to PostgreSQL, as its users write it. */
interface Orm {
  /** Runs `work` in a transaction, with the client for `once`, and a way to write an effect or a mistake. */
  transaction(
    work: (client: SqlClient, run: (statement: string) => Promise<unknown>) => Promise<void>,
  ): Promise<void>;
  /** The client of what is not in a transaction. */
  readonly outside: SqlClient;
}

let fixture: PostgresFixture;
const pools: pg.Pool[] = [];
const clients: PrismaClient[] = [];

beforeAll(async () => {
  fixture = await postgresFixture();
  await fixture.pool.query("CREATE TABLE effects (inbox text)");
});

afterAll(async () => {
  for (const pool of pools) await pool.end();
  for (const client of clients) await client.$disconnect();
  await fixture.close();
});

function newPool(): pg.Pool {
  const pool = new pg.Pool({ connectionString: fixture.url, max: 2 });
  pools.push(pool);
  return pool;
}

function overDrizzle(): Orm {
  const db = drizzle(newPool());
  return {
    transaction: (work) =>
      db.transaction((tx) => work(fromDrizzle(tx, sql), (statement) => tx.execute(sql.raw(statement)))),
    outside: fromDrizzle(db, sql),
  };
}

function overPrisma(): Orm {
  const prisma = prismaClient(fixture.url);
  clients.push(prisma);
  return {
    transaction: (work) =>
      prisma.$transaction((tx) => work(fromPrisma(tx), (statement) => tx.$executeRawUnsafe(statement))),
    outside: fromPrisma(prisma),
  };
}

/**
 * The contract of Prisma 6 for raw SQL, which brings a binary of its own, over a real PostgreSQL: prepared statements,
 * one at a time, and errors that hide the SQLSTATE in another place than those of Prisma 7.
 */
function asPrisma6(): Orm {
  const pool = newPool();
  const clientOf = (on: pg.ClientBase | pg.Pool) => {
    const run = async (statement: string, values: unknown[]) => {
      try {
        return await on.query({ text: statement, values, queryMode: "extended" } as pg.QueryConfig);
      } catch (error) {
        const { code = "" } = error as pg.DatabaseError;
        throw Object.assign(new Error("Raw query failed."), { code: "P2010", meta: { code, message: "…" } });
      }
    };
    return {
      $queryRawUnsafe: async (statement: string, ...values: unknown[]) => (await run(statement, values)).rows,
      $executeRawUnsafe: async (statement: string, ...values: unknown[]) =>
        (await run(statement, values)).rowCount ?? 0,
    };
  };
  return {
    async transaction(work) {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        const tx = clientOf(client);
        await work(fromPrisma(tx), tx.$executeRawUnsafe);
        await client.query("COMMIT");
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    },
    outside: fromPrisma(clientOf(pool)),
  };
}

describe.each([
  ["Drizzle", overDrizzle],
  ["Prisma 7", overPrisma],
  ["the contract of Prisma 6", asPrisma6],
] as const)("a transaction of %s", (_, make) => {
  async function setUp() {
    const table = fixture.newTable();
    await ensureInbox(fixture.pool, table);
    const receiver = createReceiver({
      secrets: SECRET,
      inbox: postgresInbox({ pool: fixture.pool, table }),
      now: () => NOW,
    });
    const effect = `INSERT INTO effects VALUES ('${table}')`;
    const effects = async () => {
      const { rows } = await fixture.pool.query("SELECT FROM effects WHERE inbox = $1", [table]);
      return rows.length;
    };
    return { ...make(), table, receiver, effect, effects };
  }

  test("has the event and the effect in one, once", async () => {
    const { transaction, receiver, effect, effects } = await setUp();
    const outcomes: string[] = [];
    const receive = (end?: Error) =>
      transaction(async (client, run) => {
        outcomes.push((await receiver.once(client, signedRequest({}), () => run(effect))).outcome);
        if (end) throw end;
      });
    await thrown(() => receive(new Error("later")));
    expect(await effects()).toBe(0);
    for (let i = 0; i < 3; i++) await receive();
    expect(outcomes).toEqual(["applied", "applied", "already", "already"]);
    expect(await effects()).toBe(1);
  });

  test("goes on without a handler that failed", async () => {
    const { transaction, receiver, effect, effects } = await setUp();
    await transaction(async (client, run) => {
      await run(effect);
      const failing = receiver.once(client, signedRequest({}), async () => {
        await run(effect);
        await run("SELECT no_such_column");
      });
      await thrown(() => failing);
      expect((await receiver.once(client, signedRequest({ id: "evt_2" }), () => run(effect))).outcome).toBe(
        "applied",
      );
    });
    expect(await effects()).toBe(2);
  });

  test("is in progress for a query, then received; and a fence is seen in it", async () => {
    const { transaction, receiver, effect, effects } = await setUp();
    const ask = async (id: string) => {
      const events = [{ eventId: id as EventId, before: ATTEMPT_TIME }];
      const query = { type: "webhook.receipt_query" as const, queryId: "query_1", events };
      return (await receiver.answerQuery(query)).events[0]?.status;
    };
    await transaction(async (client, run) => {
      await receiver.once(client, signedRequest({}), () => run(effect));
      expect([await ask("evt_1"), await ask("evt_2")]).toEqual(["in_progress", "fenced"]);
      const late = receiver.once(client, signedRequest({ id: "evt_2" }), () => run(effect));
      expect(await thrown(() => late)).toBeInstanceOf(AttemptFencedError);
      const later = signedRequest({ id: "evt_2", timestamp: ATTEMPT_TIME + 1 });
      expect((await receiver.once(client, later, () => run(effect))).outcome).toBe("applied");
    });
    expect([await ask("evt_1"), await ask("evt_2"), await effects()]).toEqual(["received", "received", 2]);
  });

  test("keeps the latest token of a key", async () => {
    const { transaction, receiver, outside } = await setUp();
    const [first, second] = [1, 2].map((n) => asToken(`billing-20260101-${String(n).padStart(20, "0")}`));
    const orders: string[] = [];
    for (const token of [first!, second!, first!]) {
      await transaction(async (client) => {
        orders.push(await receiver.latest(client, "pool_1", token));
      });
    }
    expect(orders).toEqual(["newer", "newer", "stale"]);
    const third = asToken("billing-20260101-00000000000000000003");
    expect(await thrown(() => receiver.latest(outside, "pool_1", third))).toBeInstanceOf(
      NotInTransactionError,
    );
  });

  test("is told by name what is wrong with it", async () => {
    const { transaction, receiver, outside, effect, effects } = await setUp();
    let runs = 0;
    const withoutBegin = receiver.once(outside, signedRequest({}), () => ++runs);
    expect(await thrown(() => withoutBegin)).toBeInstanceOf(NotInTransactionError);

    const swallowing = transaction(async (client, run) => {
      await receiver.once(client, signedRequest({}), async () => {
        await run(effect);
        await run("SELECT no_such_column").catch(() => {});
      });
    });
    expect(await thrown(() => swallowing)).toBeInstanceOf(CommitBecameRollbackError);

    const inbox = postgresInbox({ pool: fixture.pool, table: "not_there" });
    const lost = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
    const withoutTable = transaction(async (client) => {
      await lost.once(client, signedRequest({}), () => ++runs);
    });
    expect(await thrown(() => withoutTable)).toBeInstanceOf(InboxTableMissingError);

    const waiting = receiver.handle(signedRequest({}), () =>
      transaction(async (client, run) => {
        await run("SET LOCAL lock_timeout = 20");
        await receiver.once(client, signedRequest({}), () => ++runs);
      }),
    );
    expect(await thrown(() => waiting)).toBeInstanceOf(InboxBusyError);
    expect([runs, await effects()]).toEqual([0, 0]);
  });
});

test("Drizzle writes the effects of a handler with its own tables", async () => {
  const table = fixture.newTable();
  await ensureInbox(fixture.pool, table);
  const inbox = postgresInbox({ pool: fixture.pool, table });
  const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
  const effects = pgTable("effects", { inbox: text() });
  const db = drizzle(fixture.pool);
  for (let i = 0; i < 2; i++) {
    await db.transaction(async (tx) => {
      await receiver.once(fromDrizzle(tx, sql), signedRequest({}), () =>
        tx.insert(effects).values({ inbox: table }),
      );
    });
  }
  expect(await db.select().from(effects).where(sql`inbox = ${table}`)).toHaveLength(1);
});
