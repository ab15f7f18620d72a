import { type EventId, sequenceToken } from "@fencepost/token";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { inboxConformance } from "./__tests__/inboxConformance.ts";
import { withoutCommitAnswers } from "./__tests__/lostCommit.ts";
import { type PostgresFixture, postgresFixture } from "./__tests__/postgresFixture.ts";
import { ATTEMPT_TIME, NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  AttemptFencedError,
  CommitBecameRollbackError,
  createReceiver,
  ensureInbox,
  type Inbox,
  InboxTableMissingError,
  InvalidOptionError,
  inboxMigration,
  NotInTransactionError,
  postgresInbox,
  type SqlClient,
  type WebhookMessage,
} from "./index.ts";

let fixture: PostgresFixture;
let pool: pg.Pool;

beforeAll(async () => {
  fixture = await postgresFixture();
  pool = fixture.pool;
  await pool.query("CREATE TABLE effects (inbox text, event_id text)");
});

afterAll(() => fixture.close());

async function newInbox(options: { waitMs?: number; pool?: pg.Pool } = {}) {
  const table = fixture.newTable();
  await ensureInbox(pool, table);
  return { table, inbox: postgresInbox({ pool, table, ...options }) };
}

/** A receiver with an empty inbox, and a handler with an effect that can be counted. */
async function newReceiver(options: { pool?: pg.Pool } = {}) {
  const { inbox, table } = await newInbox(options);
  const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
  const apply = async (message: WebhookMessage, tx: pg.ClientBase) => {
    await tx.query("INSERT INTO effects VALUES ($1, $2)", [table, message.eventId]);
  };
  const count = async (from: string, column: string) => {
    const { rows } = await pool.query(`SELECT count(*)::int FROM ${from} WHERE ${column} = $1`, [
      from === table ? "evt_1" : table,
    ]);
    return rows[0]?.count as number;
  };
  return {
    receiver,
    table,
    apply,
    effects: () => count("effects", "inbox"),
    recorded: () => count(table, "event_id"),
  };
}

/** The pool, with `action` carried out before statement number `at` of all that its clients are given. */
function interrupted(at: number, action: () => Promise<void>) {
  let statements = 0;
  const connect = async () => {
    const client = await pool.connect();
    return new Proxy(client, {
      get: (target, key) => {
        const value = Reflect.get(target, key);
        if (key !== "query") return typeof value === "function" ? value.bind(target) : value;
        return async (...statement: [string]) => {
          if (statements++ === at) await action();
          return target.query(...statement);
        };
      },
    });
  };
  return { pool: { connect }, count: () => statements };
}

/** Runs `work` between BEGIN and `end`, on a client of the test's own. */
async function inOwnTransaction(work: (client: pg.PoolClient) => Promise<void>, end: "COMMIT" | "ROLLBACK") {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    await work(client);
    await client.query(end);
  } finally {
    client.release();
  }
}

describe("a PostgreSQL inbox", () => {
  inboxConformance({
    create: async (options) => (await newInbox(options)).inbox,
    untilWaiting: (count) => fixture.untilWaiting(count),
    transactional: true,
  });

  test("stores the token, the type and the time of what was received", async () => {
    const { receiver, table, apply } = await newReceiver();
    const { message } = await receiver.handle(signedRequest({}), apply);
    const { rows } = await pool.query(`SELECT *, received_at <= clock_timestamp() AS past FROM ${table}`);
    expect(rows).toEqual([
      {
        consumer: "default",
        event_id: "evt_1",
        fencing_token: message.fencingToken,
        type: "pool.assets_locked",
        attempted_at: NOW,
        received_at: expect.any(Date),
        fenced_before: null,
        fenced_until: null,
        past: true,
      },
    ]);
  });
});

describe("a request that is posted again", () => {
  test("has one effect, and is told that it was handled already", async () => {
    const { receiver, apply, effects } = await newReceiver();
    const outcomes = [];
    for (let i = 0; i < 3; i++) outcomes.push((await receiver.handle(signedRequest({}), apply)).outcome);
    expect(outcomes).toEqual(["applied", "already", "already"]);
    expect(await effects()).toBe(1);
  });

  test("eight times at once has one effect", async () => {
    const { receiver, apply, effects } = await newReceiver();
    const receipts = await Promise.all(
      Array.from({ length: 8 }, () => receiver.handle(signedRequest({}), apply)),
    );
    const outcomes = receipts.map(({ outcome }) => outcome).sort();
    expect(outcomes).toEqual([...Array(7).fill("already"), "applied"]);
    expect(await effects()).toBe(1);
  });

  test("eight times at once has one effect where transactions are serializable by default", async () => {
    const url = new URL(fixture.url);
    url.searchParams.set("options", "-c default_transaction_isolation=serializable");
    const serializable = new pg.Pool({ connectionString: url.href, max: 8 });
    try {
      const { receiver, apply, effects } = await newReceiver({ pool: serializable });
      const results = await Promise.allSettled(
        Array.from({ length: 8 }, () => receiver.handle(signedRequest({}), apply)),
      );
      const failures = results.filter((r) => r.status === "rejected").map((r) => r.reason.code);
      expect(new Set(failures)).toEqual(new Set(failures.length > 0 ? ["40001"] : []));
      expect(await effects()).toBe(1);
      expect((await receiver.handle(signedRequest({}), apply)).outcome).toBe("already");
    } finally {
      await serializable.end();
    }
  });

  test("has one effect for each consumer of a shared table", async () => {
    const { inbox } = await newInbox();
    const applied: string[] = [];
    for (const consumer of ["billing", "mail", "billing", "mail"]) {
      const receiver = createReceiver({ secrets: SECRET, inbox, consumer, now: () => NOW });
      await receiver.handle(signedRequest({}), () => applied.push(consumer));
    }
    expect(applied).toEqual(["billing", "mail"]);
  });
});

describe("a handler that fails", () => {
  test("leaves nothing behind, and the next attempt applies", async () => {
    const { receiver, apply, effects, recorded } = await newReceiver();
    const error = new Error("no");
    const attempt = receiver.handle(signedRequest({}), async (message, tx) => {
      await apply(message, tx);
      throw error;
    });
    expect(await thrown(() => attempt)).toBe(error);
    expect([await effects(), await recorded()]).toEqual([0, 0]);
    expect((await receiver.handle(signedRequest({}), apply)).outcome).toBe("applied");
    expect(await effects()).toBe(1);
  });

  test("and swallows a SQL error is found out: nothing is written, and the next attempt applies", async () => {
    const { receiver, apply, effects, recorded } = await newReceiver();
    const swallow = async (message: WebhookMessage, tx: pg.ClientBase) => {
      await apply(message, tx);
      await tx.query("INSERT INTO no_such_table VALUES (1)").catch(() => {});
    };
    const error = await thrown(() => receiver.handle(signedRequest({}), swallow));
    expect(error).toBeInstanceOf(CommitBecameRollbackError);
    expect(error).toMatchObject({ eventId: "evt_1" });
    await inOwnTransaction(async (client) => {
      expect(await thrown(() => receiver.once(client, signedRequest({}), swallow))).toBeInstanceOf(
        CommitBecameRollbackError,
      );
    }, "COMMIT");
    expect([await effects(), await recorded()]).toEqual([0, 0]);
    expect((await receiver.handle(signedRequest({}), apply)).outcome).toBe("applied");
  });

  test("and recovers from a SQL error with its own savepoint is not in the way", async () => {
    const { receiver, apply, effects } = await newReceiver();
    await receiver.handle(signedRequest({}), async (message, tx) => {
      await tx.query("SAVEPOINT mine");
      await tx.query("INSERT INTO no_such_table VALUES (1)").catch(() => {});
      await tx.query("ROLLBACK TO SAVEPOINT mine");
      await apply(message, tx);
    });
    expect(await effects()).toBe(1);
  });

  test.each(["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])(
    "by ending the transaction with %s is told so",
    async (end) => {
      const { receiver, apply } = await newReceiver();
      const attempt = receiver.handle(signedRequest({}), async (message, tx) => {
        await apply(message, tx);
        await tx.query(end);
      });
      const error = await thrown(() => attempt);
      expect(error).toBeInstanceOf(NotInTransactionError);
      expect(error).toMatchObject({ eventId: "evt_1", message: expect.stringContaining("handler ended") });
    },
  );
});

describe("a fence", () => {
  const query = (eventId: string, before = ATTEMPT_TIME) => ({
    type: "webhook.receipt_query" as const,
    queryId: "query_1",
    events: [{ eventId: eventId as EventId, before }],
  });

  test("is seen by a transaction of any isolation whose snapshot is older: it is refused, or must be retried", async () => {
    for (const [isolation, refusal] of [
      ["READ COMMITTED", { name: "AttemptFencedError" }],
      ["REPEATABLE READ", { code: "40001" }],
      ["SERIALIZABLE", { code: "40001" }],
    ] as const) {
      const { receiver, apply, effects } = await newReceiver();
      await inOwnTransaction(async (client) => {
        await client.query(`SET TRANSACTION ISOLATION LEVEL ${isolation}`);
        await client.query("SELECT count(*) FROM effects"); // takes the snapshot
        expect((await receiver.answerQuery(query("evt_1"))).events[0]?.status).toBe("fenced");
        expect(await thrown(() => receiver.once(client, signedRequest({}), apply))).toMatchObject(refusal);
      }, "COMMIT");
      expect(await effects()).toBe(0);
      expect(await thrown(() => receiver.handle(signedRequest({}), apply))).toBeInstanceOf(
        AttemptFencedError,
      );
    }
  });

  test("and an attempt never miss each other, whichever statements of one fall between those of the other", async () => {
    const seen = new Set<string>();
    for (const inner of ["attempt", "query"] as const) {
      for (let at = 0, statements = 1; at < statements; at++) {
        const { table, inbox } = await newInbox({ waitMs: 100 });
        const happened: Record<"attempt" | "query", string> = { attempt: "", query: "" };
        const run = async (what: "attempt" | "query", over: Inbox<pg.PoolClient, SqlClient>) => {
          const receiver = createReceiver({ secrets: SECRET, inbox: over, now: () => NOW });
          happened[what] =
            what === "query"
              ? (await receiver.answerQuery(query("evt_1"))).events[0]!.status
              : await receiver
                  .handle(signedRequest({}), () => {})
                  .then(
                    ({ outcome }) => outcome,
                    ({ name }) => name,
                  );
        };
        const { pool: stepped, count } = interrupted(at, () => run(inner, inbox));
        const outer = inner === "query" ? "attempt" : "query";
        await run(outer, postgresInbox({ pool: stepped, table }));
        statements = count();
        seen.add(`${happened.query}, and the attempt: ${happened.attempt}`);
      }
    }
    expect([...seen].sort()).toEqual([
      "fenced, and the attempt: AttemptFencedError",
      "fenced, and the attempt: InboxBusyError",
      "in_progress, and the attempt: applied",
      "received, and the attempt: applied",
    ]);
  });

  test("is not made while a transaction of any isolation handles the event", async () => {
    for (const isolation of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
      const { receiver, apply, effects } = await newReceiver();
      await inOwnTransaction(async (client) => {
        await client.query(`SET TRANSACTION ISOLATION LEVEL ${isolation}`);
        await receiver.once(client, signedRequest({}), apply);
        expect((await receiver.answerQuery(query("evt_1"))).events[0]?.status).toBe("in_progress");
      }, "COMMIT");
      expect((await receiver.answerQuery(query("evt_1"))).events[0]?.status).toBe("received");
      expect(await effects()).toBe(1);
    }
  });

  test("is made when the connection of the handler is lost, and its late copy is refused", async () => {
    const { receiver, apply, effects } = await newReceiver();
    const attempt = receiver.handle(signedRequest({}), async (message, tx) => {
      await apply(message, tx);
      expect((await receiver.answerQuery(query("evt_1"))).events[0]?.status).toBe("in_progress");
      const { rows } = await tx.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      const lost = new Promise<void>((resolve) => tx.once("end", resolve));
      await pool.query("SELECT pg_terminate_backend($1)", [rows[0]?.pid]);
      await lost;
    });
    await thrown(() => attempt);
    expect((await receiver.answerQuery(query("evt_1"))).events[0]?.status).toBe("fenced");
    expect(await thrown(() => receiver.handle(signedRequest({}), apply))).toBeInstanceOf(AttemptFencedError);
    expect(await effects()).toBe(0);
  });

  test("holds whatever name of the table each side uses", async () => {
    const { table, inbox } = await newInbox();
    const named = postgresInbox({ pool, table: `public.${table}` });
    const asking = createReceiver({ secrets: SECRET, inbox: named, now: () => NOW });
    const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
    await receiver.handle(signedRequest({}), async () => {
      expect((await asking.answerQuery(query("evt_1"))).events[0]?.status).toBe("in_progress");
    });
  });

  test("does not stay in the table when its time is over", async () => {
    const { table, inbox } = await newInbox();
    const at = (seconds: number) =>
      createReceiver({ secrets: SECRET, inbox, now: () => new Date(NOW.getTime() + seconds * 1_000) });
    await at(0).answerQuery(query("evt_1"));
    await at(0).answerQuery(query("evt_2"));
    await at(0).handle(signedRequest({ id: "evt_2", timestamp: ATTEMPT_TIME + 1 }), () => {});
    await at(3_901).answerQuery(query("evt_3"));
    const { rows } = await pool.query(`SELECT event_id FROM ${table} ORDER BY event_id`);
    expect(rows).toEqual([{ event_id: "evt_2" }, { event_id: "evt_3" }]);
  });

  test("needs the tables, and says so", async () => {
    const inbox = postgresInbox({ pool, table: "not_there" });
    const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
    expect(await thrown(() => receiver.answerQuery(query("evt_1")))).toBeInstanceOf(InboxTableMissingError);
  });
});

describe("a connection that is lost", () => {
  test("while the handler runs takes nothing with it: not the process, not the event", async () => {
    const { receiver, apply, effects, recorded } = await newReceiver();
    const attempt = receiver.handle(signedRequest({}), async (message, tx) => {
      await apply(message, tx);
      const { rows } = await tx.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      const lost = new Promise<void>((resolve) => tx.once("end", resolve));
      await pool.query("SELECT pg_terminate_backend($1)", [rows[0]?.pid]);
      await lost;
    });
    expect(await thrown(() => attempt)).toBeInstanceOf(Error);
    expect([await effects(), await recorded()]).toEqual([0, 0]);
    expect((await receiver.handle(signedRequest({}), apply)).outcome).toBe("applied");
    expect(await effects()).toBe(1);
  });

  test("because a statement timed out on it does not go back to the pool", async () => {
    const impatient = new pg.Pool({ connectionString: fixture.url, max: 1, query_timeout: 500 });
    try {
      const { receiver } = await newReceiver({ pool: impatient });
      const stuck = (_: WebhookMessage, tx: pg.ClientBase) => tx.query("SELECT pg_sleep(60)");
      expect(String(await thrown(() => receiver.handle(signedRequest({}), stuck)))).toContain("timeout");
      expect((await receiver.handle(signedRequest({ id: "evt_2" }), () => {})).outcome).toBe("applied");
    } finally {
      await impatient.end();
    }
  });

  test("in mid-commit is an error, and the next attempt finds the event applied", async () => {
    const way = await withoutCommitAnswers(fixture.url);
    const unlucky = new pg.Pool({ connectionString: way.url });
    try {
      const { table, receiver, apply, effects } = await newReceiver();
      const inbox = postgresInbox({ pool: unlucky, table });
      const cut = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
      expect(await thrown(() => cut.handle(signedRequest({}), apply))).toBeInstanceOf(Error);
      expect((await receiver.handle(signedRequest({}), apply)).outcome).toBe("already");
      expect(await effects()).toBe(1);
    } finally {
      await unlucky.end();
      await way.close();
    }
  });
});

describe("once", () => {
  test("leaves the end of the transaction to the caller, and the row and the effect share it", async () => {
    const { receiver, apply, effects, recorded } = await newReceiver();
    for (const [end, outcome, seen] of [
      ["ROLLBACK", "applied", 0],
      ["COMMIT", "applied", 1],
      ["COMMIT", "already", 1],
    ] as const) {
      await inOwnTransaction(async (client) => {
        expect((await receiver.once(client, signedRequest({}), apply)).outcome).toBe(outcome);
      }, end);
      expect([await effects(), await recorded()]).toEqual([seen, seen]);
    }
  });

  test("takes a message that was verified before", async () => {
    const { receiver, apply, effects } = await newReceiver();
    const message = receiver.verify(signedRequest({}));
    await inOwnTransaction(async (client) => {
      expect(await receiver.once(client, message, apply)).toEqual({ outcome: "applied", message });
    }, "COMMIT");
    expect(await effects()).toBe(1);
  });

  test("undoes what a failing handler wrote even if the caller commits the rest", async () => {
    const { receiver, apply, effects, recorded } = await newReceiver();
    await inOwnTransaction(async (client) => {
      await apply(receiver.verify(signedRequest({})), client); // the caller's own
      await thrown(() =>
        receiver.once(client, signedRequest({}), async (message, tx) => {
          await apply(message, tx);
          throw new Error("no");
        }),
      );
    }, "COMMIT");
    expect([await effects(), await recorded()]).toEqual([1, 0]);
  });

  test("refuses a pool, or a client without BEGIN, before the handler runs", async () => {
    const { receiver, recorded } = await newReceiver();
    let runs = 0;
    const client = await pool.connect();
    try {
      for (const tx of [client, pool as unknown as pg.PoolClient]) {
        const error = await thrown(() => receiver.once(tx, signedRequest({}), () => ++runs));
        expect(error).toBeInstanceOf(NotInTransactionError);
        expect(error).toMatchObject({ eventId: "evt_1", message: expect.stringContaining("BEGIN") });
      }
    } finally {
      client.release();
    }
    expect([runs, await recorded()]).toEqual([0, 0]);
  });

  test("says how to make the table that is missing", async () => {
    const inbox = postgresInbox({ pool, table: "not_there" });
    const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
    const error = await thrown(() => receiver.handle(signedRequest({}), () => {}));
    expect(error).toBeInstanceOf(InboxTableMissingError);
    expect(error).toMatchObject({ eventId: "evt_1", message: expect.stringContaining("ensureInbox") });
  });
});

describe("the latest of a key", () => {
  const token = (n: bigint) => sequenceToken({ stream: "billing", epoch: "20260101", n });

  test("is refused on a pool, or a client without BEGIN, and nothing is remembered", async () => {
    const { receiver } = await newReceiver();
    const client = await pool.connect();
    try {
      for (const tx of [client, pool]) {
        const error = await thrown(() => receiver.latest(tx, "pool_1", token(5n)));
        expect(error).toBeInstanceOf(NotInTransactionError);
        expect(error).toMatchObject({ message: expect.stringContaining("latest() was called") });
      }
    } finally {
      client.release();
    }
    await inOwnTransaction(async (own) => {
      expect(await receiver.latest(own, "pool_1", token(1n))).toBe("newer");
    }, "COMMIT");
  });

  test("is not decided on an old snapshot", async () => {
    for (const isolation of ["REPEATABLE READ", "SERIALIZABLE"]) {
      const { receiver } = await newReceiver();
      await inOwnTransaction(async (client) => {
        await client.query(`SET TRANSACTION ISOLATION LEVEL ${isolation}`);
        await client.query("SELECT count(*) FROM effects"); // takes the snapshot
        await inOwnTransaction(async (other) => {
          await receiver.latest(other, "pool_1", token(5n));
        }, "COMMIT");
        const error = await thrown(() => receiver.latest(client, "pool_1", token(4n)));
        expect(error).toMatchObject({ code: "40001" });
      }, "ROLLBACK");
    }
  });

  test("needs its table, and says so", async () => {
    const receiver = createReceiver({ secrets: SECRET, inbox: postgresInbox({ pool, table: "not_there" }) });
    await inOwnTransaction(async (client) => {
      const error = await thrown(() => receiver.latest(client, "pool_1", token(1n)));
      expect(error).toBeInstanceOf(InboxTableMissingError);
    }, "ROLLBACK");
  });
});

describe("a large inbox", () => {
  test("is pruned in steps, to the end, and leaves alone what is in use", async () => {
    const { receiver, table } = await newReceiver();
    await pool.query(
      `INSERT INTO ${table} (consumer, event_id, attempted_at, received_at)
       SELECT 'default', 'evt_' || n, to_timestamp(n), to_timestamp(n) FROM generate_series(1, 2500) AS n`,
    );
    const inUse = await pool.connect();
    try {
      await inUse.query("BEGIN");
      await receiver.once(inUse, signedRequest({}), () => {}); // a duplicate of evt_1
      expect(await receiver.pruneInbox({ olderThan: new Date(2_400_000) })).toEqual({
        removed: 2_398,
        complete: true,
      });
      await inUse.query("COMMIT");
    } finally {
      inUse.release();
    }
    expect(await receiver.pruneInbox({ olderThan: new Date(2_400_000) })).toEqual({
      removed: 1,
      complete: true,
    });
    const { rows } = await pool.query(`SELECT count(*)::int FROM ${table}`);
    expect(rows).toEqual([{ count: 101 }]);
  });

  test("finds what to prune by an index, however much it holds", async () => {
    const { table } = await newReceiver();
    await pool.query(
      `INSERT INTO ${table} (consumer, event_id, attempted_at, received_at)
       SELECT 'default', 'evt_' || n, to_timestamp(n), to_timestamp(n) FROM generate_series(1, 20000) AS n`,
    );
    await pool.query(`ANALYZE ${table}`);
    for (const where of [
      "consumer = 'default' AND attempted_at < to_timestamp(5)",
      "received_at IS NULL AND fenced_until < now()",
    ]) {
      const { rows } = await pool.query(`EXPLAIN SELECT ctid FROM ${table} WHERE ${where} LIMIT 200`);
      expect(rows.map((row) => row["QUERY PLAN"]).join()).toContain("Index Scan");
    }
  });
});

describe("a transaction of the inbox", () => {
  test("that PostgreSQL rolled back instead of committing is an error", async () => {
    const { inbox } = await newInbox();
    const run = inbox.transaction((tx) => tx.query("INSERT INTO no_such_table VALUES (1)").catch(() => {}));
    expect(await thrown(() => run)).toBeInstanceOf(CommitBecameRollbackError);
  });

  test("gives its connection back, however it ends", async () => {
    const small = new pg.Pool({ connectionString: fixture.url, max: 1 });
    try {
      const inbox = postgresInbox({ pool: small, table: (await newInbox()).table });
      await thrown(() => inbox.transaction(() => Promise.reject(new Error("no"))));
      await thrown(() => inbox.transaction((tx) => tx.query("COMMIT; SELECT 1/0")));
      expect(await inbox.transaction(async (tx) => tx.listenerCount("error"))).toBe(
        1 + (await idleListeners(small)),
      );
      expect(small.totalCount).toBe(small.idleCount);
    } finally {
      await small.end();
    }
  });
});

/** Listeners for errors on a client that was lent by the pool, and nothing else done to it. */
async function idleListeners(from: pg.Pool): Promise<number> {
  const client = await from.connect();
  const count = client.listenerCount("error");
  client.release();
  return count;
}

describe("the inbox table", () => {
  test("is made once when eight processes make it at once, in any schema, with any case", async () => {
    await pool.query('CREATE SCHEMA "Shop"');
    for (const table of [fixture.newTable(), "Shop.Inbox"]) {
      await Promise.all(Array.from({ length: 8 }, () => ensureInbox(pool, table)));
      const receiver = createReceiver({
        secrets: SECRET,
        inbox: postgresInbox({ pool, table }),
        now: () => NOW,
      });
      expect((await receiver.handle(signedRequest({}), () => {})).outcome).toBe("applied");
    }
    const { rows } = await pool.query('SELECT count(*)::int FROM "Shop"."Inbox"');
    expect(rows).toEqual([{ count: 1 }]);
  });

  test("is named fencepost_inbox unless told otherwise", async () => {
    expect(inboxMigration()).toContain('CREATE TABLE IF NOT EXISTS "fencepost_inbox" (');
    await pool.query(inboxMigration());
    const receiver = createReceiver({ secrets: SECRET, inbox: postgresInbox({ pool }), now: () => NOW });
    expect((await receiver.handle(signedRequest({}), () => {})).outcome).toBe("applied");
  });

  test.each(["", "a b", 'a"; DROP TABLE effects; --', "a.b.c", "1a", ".a", "a".repeat(51)])(
    "may not be named %j",
    (table) => {
      expect(() => inboxMigration(table)).toThrow(InvalidOptionError);
      expect(() => postgresInbox({ pool, table })).toThrow(InvalidOptionError);
    },
  );
});
