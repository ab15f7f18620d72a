import { scv, startProxy } from "@fencepost/simulator";
import { deriveEventId, type FencingToken } from "@fencepost/token";
import { eq, type SQL, sql } from "drizzle-orm";
import { pgTable, text } from "drizzle-orm/pg-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { i128, token } from "../config/columns.ts";
import { defineContract } from "../config/contract.ts";
import {
  defineProjection,
  type HandlerContext,
  type MessageShapes,
  type ProjectedEvent,
  type Projection,
} from "../config/projection.ts";
import { StaleTermError } from "../lease/term.ts";
import { buildMessage } from "../message/payload.ts";
import { openDatabase } from "../store/postgres/database.ts";
import { ConnectionLostError, DatabaseFullError } from "../store/postgres/errors.ts";
import { insertMessages } from "../store/postgres/messages.ts";
import { insertSkip } from "../store/postgres/projections.ts";
import { ProjectionStoppedError } from "./errors.ts";
import type { ProjectContext } from "./projectStep.ts";

let db: ProjectionDatabase;
beforeAll(async () => {
  db = await openProjectionDatabase();
});
afterAll(() => db.close());

const items = pgTable("items", {
  id: text().primaryKey(),
  amount: i128().notNull(),
  token: token().notNull(),
});

type Context = HandlerContext<ProjectedEvent<"added", { id: string; amount: bigint }>, MessageShapes>;

/** A contract and a projection of the test's own: each event adds an item and emits it. */
interface Line {
  readonly projection: Projection;
  readonly name: string;
  /** Appends events with these ids, and the amounts 1, 2, 3 …; returns their tokens. */
  add(...ids: string[]): Promise<readonly FencingToken[]>;
  ids(): Promise<string[]>;
  /** The ids in the messages, with how they are stored. */
  messages(): Promise<Record<string, string>>;
  row(): Promise<{
    cursor: bigint;
    stopped_token: string | null;
    stopped_event: string;
    stopped_error: string;
    stopped_at: Date;
  }>;
}

let lines = 0;

async function startLine(
  handler: (context: Context, plain: () => Promise<void>) => Promise<void> | void = (_, plain) => plain(),
  { messages = {}, ofContract }: { messages?: MessageShapes; ofContract?: string } = {},
): Promise<Line> {
  const name = `line_${++lines}`;
  const contract = ofContract ?? scv.contractId(name);
  const type = `${name}.added`;
  const projection = defineProjection({
    name,
    version: 1,
    contracts: {
      pool: defineContract({
        id: contract,
        startLedger: 1,
        events: { added: z.object({ id: z.string(), amount: z.bigint() }) },
      }),
    },
    tables: { items },
    messages: { [type]: z.object({ id: z.string(), amount: z.bigint() }), ...messages } as MessageShapes,
    on: {
      "pool:added": (context) =>
        handler(context, async () => {
          const { event, db, emit } = context;
          await db.insert(items).values({ ...event.data, token: event.token });
          emit(type, event.data);
        }),
    },
  });
  await db.register(projection);
  return {
    projection,
    name,
    add: (...ids) =>
      db.append(
        ids.map((id, i) => ({
          contract,
          topics: [scv.sym("added")],
          value: scv.struct({ id: scv.str(id), amount: scv.i128(BigInt(i + 1)) }),
        })),
      ),
    async ids() {
      const rows = await db.rows<{ id: string }>(`SELECT id FROM ${name}.items ORDER BY token`);
      return rows.map(({ id }) => id);
    },
    async messages() {
      const rows = await db.rows<{ id: string; state: string }>(
        `SELECT convert_from(body, 'UTF8')::json #>> '{data,id}' AS id, state
         FROM fencepost.messages JOIN fencepost.message_bodies USING (event_id) WHERE projection = $1 ORDER BY token`,
        [name],
      );
      return Object.fromEntries(rows.map(({ id, state }) => [id, state]));
    },
    async row() {
      const [row] = await db.rows<never>("SELECT * FROM fencepost.projections WHERE name = $1", [name]);
      return row as never;
    },
  };
}

async function failure(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => {
      throw new Error("It did not fail.");
    },
    (error: Error) => error,
  );
}

const stopOf = async (line: Line, using?: Partial<ProjectContext>): Promise<ProjectionStoppedError> => {
  const error = await failure(db.run(line.projection, using));
  expect(error).toBeInstanceOf(ProjectionStoppedError);
  return error as ProjectionStoppedError;
};

test("a batch, its messages and the cursor are one transaction", async () => {
  const line = await startLine();
  const tokens = await line.add("a", "b", "c");
  const term = await db.lead(line.projection);
  expect(await db.step(line.projection, term)).toBe("progress");
  expect(await db.rows(`SELECT id, amount::text, token FROM ${line.name}.items ORDER BY id`)).toEqual([
    { id: "a", amount: "1", token: tokens[0] },
    { id: "b", amount: "2", token: tokens[1] },
    { id: "c", amount: "3", token: tokens[2] },
  ]);
  const writers = await db.rows<{ n: number }>(
    `SELECT count(DISTINCT x)::int AS n FROM (
       SELECT xmin::text FROM ${line.name}_v1.items
       UNION ALL SELECT xmin::text FROM fencepost.messages WHERE projection = $1
       UNION ALL SELECT o.xmin::text FROM fencepost.outbox o JOIN fencepost.messages USING (event_id) WHERE projection = $1
       UNION ALL SELECT xmin::text FROM fencepost.projections WHERE name = $1
     ) AS writers(x)`,
    [line.name],
  );
  expect(writers).toEqual([{ n: 1 }]);
  expect(await db.step(line.projection, term)).toBe("idle");
});

test("a message carries the id and the token of its event, and waits in the outbox in the order of events", async () => {
  const line = await startLine();
  const tokens = await line.add("a", "b", "c", "d");
  await db.run(line.projection);
  const rows = await db.rows(
    `SELECT event_id, token, type, state FROM fencepost.outbox JOIN fencepost.messages USING (event_id)
     WHERE projection = $1 ORDER BY outbox.position`,
    [line.name],
  );
  const type = `${line.name}.added`;
  expect(rows).toEqual(
    tokens.map((token) => ({ event_id: deriveEventId(token, type), token, type, state: "emitted" })),
  );
});

test("a handler sees the event with its place on the chain", async () => {
  let seen: ProjectedEvent | undefined;
  const line = await startLine(({ event }) => {
    seen = event;
  });
  const [first] = await line.add("a");
  await db.run(line.projection);
  expect(seen).toEqual({
    token: first,
    name: "added",
    data: { id: "a", amount: 1n },
    contractId: scv.contractId(line.name),
    ledger: Number(first?.split("-")[2]),
    closedAt: expect.any(Date),
    txHash: expect.stringMatching(/^[0-9a-f]{64}$/),
    topics: [{ type: "symbol", value: "added" }],
    value: expect.objectContaining({ type: "map" }),
  });
});

test("no more than 500 events share a transaction", async () => {
  const seen: string[] = [];
  const line = await startLine(({ event }) => {
    seen.push(event.data.id);
  });
  const ids = Array.from({ length: 1_100 }, (_, i) => `${i}`);
  await line.add(...ids);
  const commits: number[] = [];
  await db.run(line.projection, { onProjected: ({ events }) => commits.push(events) });
  expect(commits.filter((events) => events > 0)).toEqual([500, 500, 100]);
  expect(seen).toEqual(ids);
});

test("events of other contracts, of other names and without a handler only move the cursor", async () => {
  const line = await startLine();
  const contract = scv.contractId(line.name);
  const value = scv.nothing();
  await db.append([
    { contract: scv.contractId("another"), topics: [scv.sym("added")], value },
    { contract, topics: [scv.sym("removed")], value },
    { contract, topics: [scv.sym("toString")], value },
    { contract, topics: [scv.u32(1)], value },
    { contract, topics: [], value },
  ]);
  await db.run(line.projection);
  const [stream] = await db.rows<{ seq: bigint }>("SELECT seq FROM fencepost.streams");
  expect((await line.row()).cursor).toBe(stream?.seq);
  expect(await line.ids()).toEqual([]);
});

// ── a handler that fails ─────────────────────────────────────────────────────────────────────────────────

test("a handler that throws has what came before it committed, and stands still there until it is skipped", async () => {
  const runs: string[] = [];
  const line = await startLine(async ({ event }, plain) => {
    runs.push(event.data.id);
    await plain();
    if (event.data.id === "bad") throw new Error("cannot bear this one");
  });
  const tokens = await line.add("a", "b", "bad", "c");
  const bad = tokens[2] as FencingToken;

  const stop = await stopOf(line);
  expect(stop).toMatchObject({ projection: line.name, token: bad, event: "pool:added" });
  expect(stop.message).toContain(
    `stopped at pool:added (${bad}): Error: cannot bear this one. It is tried again`,
  );
  expect(stop.message).toContain(`fencepost skip ${line.name} ${bad} --reason`);
  expect(await line.ids()).toEqual(["a", "b"]);
  expect(await line.messages()).toEqual({ a: "emitted", b: "emitted" });
  const stopped = await line.row();
  const [event] = await db.rows<{ seq: bigint }>("SELECT seq FROM fencepost.events WHERE token = $1", [bad]);
  expect(stopped).toMatchObject({
    cursor: (event?.seq ?? 0n) - 1n,
    stopped_token: bad,
    stopped_event: "pool:added",
    stopped_error: expect.stringMatching(/^Error: cannot bear this one\n +at .*projectStep\.test\.ts/),
  });

  // Tried again, it fails again, and nothing else is run or changed.
  runs.length = 0;
  expect((await stopOf(line)).token).toBe(bad);
  expect(runs).toEqual(["bad"]);
  expect({ ...(await line.row()), term: 0, holder: 0, lease_until: 0 }).toEqual({
    ...stopped,
    term: 0,
    holder: 0,
    lease_until: 0,
  });

  expect(await insertSkip(db.database, line.name, bad, "a test")).toBe(true);
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["a", "b", "c"]);
  expect(await line.messages()).toEqual({ a: "emitted", b: "emitted", c: "emitted" });
  expect(await line.row()).toMatchObject({ stopped_token: null, stopped_error: null, stopped_at: null });
});

test("a handler that failed for a while goes on where it stood", async () => {
  let broken = true;
  const line = await startLine((_, plain) => {
    if (broken) throw new Error("not yet");
    return plain();
  });
  await line.add("a", "b");
  await stopOf(line);
  broken = false;
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["a", "b"]);
  expect((await line.row()).stopped_token).toBe(null);
});

test("other projections of the same events go on", async () => {
  const stopped = await startLine(() => {
    throw new Error("always");
  });
  const other = await startLine(undefined, { ofContract: scv.contractId(stopped.name) });
  await stopped.add("a", "b");
  await stopOf(stopped);
  await db.run(other.projection);
  expect(await other.ids()).toEqual(["a", "b"]);
});

test("a skip of a token that is not stored is refused", async () => {
  const line = await startLine();
  const unknown = "testnet-20251217-0099999999-0000001-0000-0000000000" as FencingToken;
  expect(await insertSkip(db.database, line.name, unknown, "a test")).toBe(false);
});

test("the reason of the database is told, not only the statement that failed", async () => {
  const line = await startLine();
  await line.add("a", "a");
  const stop = await stopOf(line);
  expect(stop.message).toMatch(/Failed query: insert into "items".*, because of error: duplicate key value/s);
  expect((await line.row()).stopped_error).toMatch(/Failed query.*\ncaused by: error: duplicate key value/s);
});

test("a stop is recorded also where its text holds what PostgreSQL's text cannot", async () => {
  const line = await startLine();
  const [first] = await line.add("nul \0 inside");
  expect((await stopOf(line)).token).toBe(first);
  expect(await line.row()).toMatchObject({
    stopped_token: first,
    stopped_error: expect.stringContaining("nul \\0 inside"),
  });
});

test("what is thrown need not be an error", async () => {
  const line = await startLine(() => Promise.reject("a text"));
  await line.add("a");
  expect((await stopOf(line)).message).toContain("a text. It is tried");
});

test("an SQL error that a handler swallows stops it there, by name, and nothing of it is written", async () => {
  const line = await startLine(async ({ event, db }, plain) => {
    await plain();
    if (event.data.id === "b")
      await db
        .insert(items)
        .values({ id: "a", amount: 0n, token: event.token })
        .catch(() => {});
  });
  const tokens = await line.add("a", "b", "c");
  const stop = await stopOf(line);
  expect(stop.token).toBe(tokens[1]);
  expect(stop.message).toMatch(/IgnoredQueryError: A handler caught .* duplicate key value/s);
  expect(await line.ids()).toEqual(["a"]);
});

const CONTROL: readonly (readonly [string, SQL])[] = [
  ["COMMIT", sql`COMMIT`],
  ["END", sql`end`],
  ["ROLLBACK", sql`rollback`],
  ["ABORT", sql`ABORT`],
  ["BEGIN", sql`BEGIN`],
  ["START", sql`START TRANSACTION`],
  ["SAVEPOINT", sql`SAVEPOINT a`],
  ["RELEASE", sql`RELEASE a`],
  ["PREPARE", sql`PREPARE TRANSACTION 'a'`],
  ["COMMIT", sql`\n ; -- a comment\n/* and /* one */ inside */; COMMIT AND CHAIN`],
];
test.each(CONTROL)(
  "a handler that runs %s is stopped before it does, and nothing of it is written",
  async (word, statement) => {
    const line = await startLine(async ({ event, db }, plain) => {
      await plain();
      if (event.data.id === "b") await db.execute(statement);
    });
    const tokens = await line.add("a", "b", "c");
    const stop = await stopOf(line);
    expect(stop.token).toBe(tokens[1]);
    expect(stop.message).toContain(`TransactionControlError: A handler must not run ${word}`);
    expect(await line.ids()).toEqual(["a"]);
    expect(await line.messages()).toEqual({ a: "emitted" });
  },
);

test.each<[string, SQL, RegExp]>([
  [
    "behind another statement",
    sql`SELECT 1; COMMIT`,
    /cannot insert multiple commands into a prepared statement/,
  ],
  ["in a block of code", sql`DO $$ BEGIN COMMIT; END $$`, /invalid transaction termination/],
])("a COMMIT hidden %s does not commit", async (_, statement, reason) => {
  const line = await startLine(async ({ db }, plain) => {
    await plain();
    await db.execute(statement);
  });
  await line.add("a");
  expect((await stopOf(line)).message).toMatch(reason);
  expect(await line.ids()).toEqual([]);
});

test("a handler cannot open a transaction of its own", async () => {
  const line = await startLine(({ db }) =>
    (db as unknown as { transaction(work: () => Promise<void>): Promise<void> }).transaction(async () => {}),
  );
  await line.add("a");
  expect((await stopOf(line)).message).toContain("A handler must not run db.transaction()");
});

test("a handler may read, count, update and delete what it wrote before", async () => {
  const line = await startLine(async ({ event, db }, plain) => {
    await plain();
    const { id, amount } = event.data;
    if (id !== "last") return;
    await db.execute(sql`/* not COMMIT */ UPDATE items SET amount = amount + 100 WHERE id = 'a'`);
    await db.delete(items).where(eq(items.id, "b"));
    const [first] = await db.select().from(items).where(eq(items.id, "a"));
    const count = await db.$count(items);
    await db
      .update(items)
      .set({ amount: (first?.amount ?? 0n) * 1_000n + BigInt(count) + amount })
      .where(eq(items.id, id));
  });
  await line.add("a", "b", "last");
  await db.run(line.projection);
  expect(await db.rows(`SELECT id, amount::int FROM ${line.name}.items ORDER BY id`)).toEqual([
    { id: "a", amount: 101 },
    { id: "last", amount: 101_005 },
  ]);
});

test("a statement that is not awaited stops the handler", async () => {
  const line = await startLine(({ event, db }) => {
    db.insert(items)
      .values({ ...event.data, token: event.token })
      .then();
  });
  await line.add("a");
  expect((await stopOf(line)).message).toContain("UnawaitedWorkError: A handler returned while a statement");
  expect(await line.ids()).toEqual([]);
});

test("what a handler does after it returned is refused, so it cannot end up in another transaction", async () => {
  let late: Context | undefined;
  const line = await startLine((context, plain) => {
    late = context;
    return plain();
  });
  await line.add("a");
  await db.run(line.projection);
  const { db: lateDb, event, emit } = late as Context;
  const error = await failure(lateDb.insert(items).values({ ...event.data, id: "late", token: event.token }));
  expect(error.cause).toMatchObject({ name: "UnawaitedWorkError" });
  expect(() => emit(`${line.name}.added`, event.data)).toThrow("emitted a message after it had returned");
  expect(await line.ids()).toEqual(["a"]);
});

test("a handler that keeps its transaction idle for too long is cut off, and named", async () => {
  const line = await startLine(async ({ event, db: handlerDb }, plain) => {
    if (event.data.id === "slow") {
      const [me] = (await handlerDb.execute<{ pid: number }>(sql`SELECT pg_backend_pid() AS pid`)).rows;
      await waitUntil(
        async () => (await db.rows("SELECT FROM pg_stat_activity WHERE pid = $1", [me?.pid])).length === 0,
        { what: "the backend of the slow handler is gone" },
      );
    }
    await plain();
  });
  const tokens = await line.add("a", "slow");
  const stop = await stopOf(line, { leaseMs: 500 });
  expect(stop.token).toBe(tokens[1]);
  expect(stop.message).toContain("idle-in-transaction timeout");
  expect(await line.ids()).toEqual(["a"]);
});

// ── messages ─────────────────────────────────────────────────────────────────────────────────────────────

test("two messages of one type for one event need a key", async () => {
  const line = await startLine(async ({ event, emit }, plain) => {
    await plain();
    const key = event.data.id === "keyed" ? { key: "second" } : {};
    emit(`${line.name}.added`, { ...event.data, id: `${event.data.id} again` }, key);
  });
  const tokens = await line.add("keyed", "unkeyed");
  const stop = await stopOf(line);
  expect(stop.token).toBe(tokens[1]);
  expect(stop.message).toContain(`DuplicateMessageError: The handler emitted "${line.name}.added" twice`);
  expect(await line.messages()).toEqual({ keyed: "emitted", "keyed again": "emitted" });
  const ids = await db.rows<{ event_id: string }>(
    "SELECT event_id FROM fencepost.messages WHERE projection = $1",
    [line.name],
  );
  const token = tokens[0] as FencingToken;
  expect(ids.map((row) => row.event_id).sort()).toEqual(
    [deriveEventId(token, `${line.name}.added`), deriveEventId(token, `${line.name}.added`, "second")].sort(),
  );
});

const cyclic: { self?: unknown } = {};
cyclic.self = cyclic;
test.each<[string, string, unknown, string]>([
  [
    "a type that is not declared",
    "other",
    {},
    `UndeclaredMessageError: The message "other" that was emitted for`,
  ],
  ["a type that every object has", "constructor", {}, "UndeclaredMessageError"],
  ["data that does not fit", "strict", { id: 5 }, "does not fit its shape: id: "],
  ["NaN", "loose", { n: Number.NaN }, "InvalidMessageError: The message evt_"],
  ["a number beyond 2^53", "loose", { n: 2 ** 60 }, "data.n is an integer beyond 2^53"],
  ["a function", "loose", { n() {} }, "data.n is function"],
  ["data inside itself", "loose", cyclic, "is nested deeper than 64"],
  ["a body over the limit", "loose", "x".repeat(300_000), "goes beyond the limit of 262144 bytes"],
])("%s stops the projection, and nothing of the event is written", async (_, type, data, reason) => {
  const line = await startLine(
    async ({ event, emit }, plain) => {
      await plain();
      if (event.data.id === "b") emit(type, data);
    },
    { messages: { strict: z.object({ id: z.string() }), loose: z.unknown() } },
  );
  const tokens = await line.add("a", "b", "c");
  const stop = await stopOf(line);
  expect(stop.token).toBe(tokens[1]);
  expect(stop.message).toContain(reason);
  expect(await line.ids()).toEqual(["a"]);
  expect(await line.messages()).toEqual({ a: "emitted" });
});

test("one event may emit up to 1,000 messages", async () => {
  const line = await startLine(({ event, emit }) => {
    for (let n = 0n; n < event.data.amount * 1_000n; n++)
      emit(`${line.name}.added`, { id: `${n}`, amount: n }, { key: `${n}` });
  });
  const tokens = await line.add("1,000", "2,000");
  const stop = await stopOf(line);
  expect(stop.token).toBe(tokens[1]);
  expect(stop.message).toContain("TooManyMessagesError: The handler emitted more than 1000");
  expect(Object.keys(await line.messages())).toHaveLength(1_000);
});

test("bodies that together go beyond what is held in memory are all stored", async () => {
  const line = await startLine(
    ({ event, emit }) => emit("big", { id: event.data.id, pad: "x".repeat(200_000) }),
    {
      messages: { big: z.unknown() },
    },
  );
  const ids = Array.from({ length: 50 }, (_, i) => `${i}`);
  await line.add(...ids);
  const commits: number[] = [];
  await db.run(line.projection, { onProjected: ({ messages }) => commits.push(messages) });
  expect(commits.filter((messages) => messages > 0)).toEqual([50]);
  expect(Object.keys(await line.messages()).sort()).toEqual(ids.sort());
});

test("the id of a message with other content on record stops the projection, until it is skipped", async () => {
  const line = await startLine();
  const tokens = await line.add("a", "b", "c");
  const token = tokens[1] as FencingToken;
  const type = `${line.name}.added`;
  const eventId = deriveEventId(token, type);
  const other = buildMessage({
    eventId,
    type,
    token,
    occurredAt: "2026-01-01T00:00:00Z",
    data: { id: "other" },
  });
  await insertMessages(db.database, [other], "emitted", line.name);

  const stop = await stopOf(line);
  expect(stop).toMatchObject({
    token,
    event: "pool:added",
    cause: { name: "EventContentMismatchError", eventId },
  });
  expect(await line.ids()).toEqual(["a"]);
  expect(await line.messages()).toEqual({ a: "emitted", other: "emitted" });
  await insertSkip(db.database, line.name, token, "a test");
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["a", "c"]);
});

// ── data that does not fit ───────────────────────────────────────────────────────────────────────────────

test("an event that does not fit its shape is set aside with its reason, and the projection goes on", async () => {
  const line = await startLine();
  await line.add("a");
  const contract = scv.contractId(line.name);
  const [misfit] = await db.append([
    {
      contract,
      topics: [scv.sym("added")],
      value: scv.struct({ id: scv.str("b"), amount: scv.str("much") }),
    },
  ]);
  await line.add("c");
  const done: object[] = [];
  await db.run(line.projection, { onProjected: ({ messages, misfits }) => done.push({ messages, misfits }) });
  expect(done).toContainEqual({ messages: 2, misfits: 1 });
  expect(await line.ids()).toEqual(["a", "c"]);
  expect(
    await db.rows("SELECT token, version, reason FROM fencepost.quarantine WHERE projection = $1", [
      line.name,
    ]),
  ).toEqual([{ token: misfit, version: 1, reason: expect.stringMatching(/^amount: .*expected bigint/) }]);
});

test("an event whose value this version cannot decode is set aside", async () => {
  const line = await startLine();
  const tokens = await line.add("a", "b");
  await db.database.query("UPDATE fencepost.events SET value = 'AAAA/w==' WHERE token = $1", [tokens[0]]);
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["b"]);
  expect(await db.rows("SELECT token FROM fencepost.quarantine WHERE projection = $1", [line.name])).toEqual([
    { token: tokens[0] },
  ]);
});

test("an event that ingest could not decode is passed over", async () => {
  const line = await startLine();
  await db.append([{ contract: scv.contractId(line.name), topics: [scv.sym("added")], value: "garbage" }]);
  await line.add("a");
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["a"]);
});

test("a schema that throws stops the projection at its event, so that it can be skipped", async () => {
  const contract = scv.contractId("throwing schema");
  const schema = z.object({ n: z.string().transform((text) => BigInt(text)) });
  const projection = defineProjection({
    name: "throwing_schema",
    version: 1,
    contracts: { pool: defineContract({ id: contract, startLedger: 1, events: { counted: schema } }) },
    tables: { items },
    on: { "pool:counted": () => {} },
  });
  await db.register(projection);
  const [, bad] = await db.append(
    ["5", "five"].map((n) => ({
      contract,
      topics: [scv.sym("counted")],
      value: scv.struct({ n: scv.str(n) }),
    })),
  );
  expect(await failure(db.run(projection))).toMatchObject({
    name: "ProjectionStoppedError",
    token: bad,
    event: "pool:counted",
  });
  await insertSkip(db.database, projection.name, bad as FencingToken, "a test");
  await db.run(projection);
});

// ── two leaders, lost connections ────────────────────────────────────────────────────────────────────────

test("a leader whose term is over changes nothing, and is told so by name", async () => {
  const line = await startLine();
  await line.add("a");
  const stale = await db.lead(line.projection);
  const current = await db.lead(line.projection);
  const error = await failure(db.step(line.projection, stale));
  expect(error).toBeInstanceOf(StaleTermError);
  expect(error.message).toContain(`project ${line.name} v1: the commit under term ${stale} was refused`);
  expect(await line.ids()).toEqual([]);
  expect(await db.step(line.projection, current)).toBe("progress");
  expect(await line.ids()).toEqual(["a"]);
});

test("a takeover between what a leader read and its commit makes the commit fail", async () => {
  const line = await startLine();
  await line.add("a");
  const term = await db.lead(line.projection);
  // The takeover comes when the leader has read its row, and before it locks it.
  const { database } = db;
  const overtaken = {
    ...database,
    async transaction<T>(work: Parameters<typeof database.transaction<T>>[0]) {
      await db.lead(line.projection);
      return database.transaction(work);
    },
  };
  expect(await failure(db.step(line.projection, term, { database: overtaken }))).toBeInstanceOf(
    StaleTermError,
  );
  expect(await line.ids()).toEqual([]);
  expect(await line.messages()).toEqual({});
});

test("one batch run by two processes under one term is applied once", async () => {
  let release: () => void = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  let runs = 0;
  const line = await startLine(async (_, plain) => {
    runs++;
    await released;
    await plain();
  });
  await line.add("a", "b");
  const term = await db.lead(line.projection);
  const second = openDatabase(db.url);
  const both = [db.step(line.projection, term), db.step(line.projection, term, { database: second })];
  await waitUntil(
    async () =>
      (
        await db.rows(
          "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
      ).length === 1,
    { what: "one waits for the other" },
  );
  release();
  const outcomes = await Promise.allSettled(both);
  await second.close();
  expect(outcomes.map((outcome) => outcome.status).sort()).toEqual(["fulfilled", "rejected"]);
  const refused = outcomes.find((outcome) => outcome.status === "rejected") as PromiseRejectedResult;
  expect(refused.reason).toBeInstanceOf(StaleTermError);
  expect((refused.reason as Error).message).toContain("the cursor was moved");
  expect(runs).toBe(2);
  expect(await line.ids()).toEqual(["a", "b"]);
  expect(await line.messages()).toEqual({ a: "emitted", b: "emitted" });
});

test("a connection that breaks in a batch is no fault of the handler, and nothing of the batch is written", async () => {
  const proxy = await startProxy({
    targetPort: Number(new URL(db.url).port),
    targetHost: new URL(db.url).hostname,
  });
  const url = new URL(db.url);
  url.hostname = "127.0.0.1";
  url.port = `${proxy.port}`;
  const database = openDatabase(url.href);
  let healthy = false;
  const line = await startLine(async ({ event }, plain) => {
    if (event.data.id === "b" && !healthy) proxy.cut();
    await plain();
  });
  await line.add("a", "b", "c");
  const term = await db.lead(line.projection);
  expect(await failure(db.step(line.projection, term, { database }))).toBeInstanceOf(ConnectionLostError);
  expect(await line.ids()).toEqual([]);
  expect((await line.row()).stopped_token).toBe(null);

  // The COMMIT arrives and its answer does not: the leader cannot know, and finds out by its cursor.
  healthy = true;
  proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("COMMIT\0"), { deliver: true });
  expect(await failure(db.step(line.projection, term, { database }))).toBeInstanceOf(ConnectionLostError);
  await waitUntil(async () => (await line.ids()).length === 3, { what: "the commit is done" });
  expect(await db.step(line.projection, term, { database })).toBe("idle");
  expect(await line.messages()).toEqual({ a: "emitted", b: "emitted", c: "emitted" });
  await database.close();
  await proxy.close();
});

test("a disk that is full is no fault of the handler: the projection tries again and does not stop", async () => {
  let isFull = true;
  const line = await startLine(async ({ db: handlerDb }, plain) => {
    await plain();
    const refuse = sql`DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`;
    if (isFull) await handlerDb.execute(refuse);
  });
  await line.add("a", "b");
  const error = await failure(db.run(line.projection));
  expect(error).toBeInstanceOf(DatabaseFullError);
  expect(error.message).toContain("could not extend file");
  expect(await line.row()).toMatchObject({ cursor: 0n, stopped_token: null });
  isFull = false;
  await db.run(line.projection);
  expect(await line.ids()).toEqual(["a", "b"]);
});
