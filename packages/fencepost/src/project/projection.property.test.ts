// Whatever splits the events into batches, and whoever crashes, overtakes or deploys in between: the tables and the
// messages are those of one clean pass, and each message is offered once.
import { scv, startProxy, type TcpProxy } from "@fencepost/simulator";
import { sql } from "drizzle-orm";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { i128, token } from "../config/columns.ts";
import { defineContract } from "../config/contract.ts";
import { defineProjection, type Projection } from "../config/projection.ts";
import { StaleTermError } from "../lease/term.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { ConnectionLostError, DatabaseUnreachableError } from "../store/postgres/errors.ts";
import { ProjectionStoppedError } from "./errors.ts";
import { registerProjection } from "./registerProjection.ts";

let db: ProjectionDatabase;
let proxy: TcpProxy;
let proxied: Database;
beforeAll(async () => {
  db = await openProjectionDatabase();
  const url = new URL(db.url);
  proxy = await startProxy({ targetPort: Number(url.port), targetHost: url.hostname });
  url.hostname = "127.0.0.1";
  url.port = `${proxy.port}`;
  proxied = openDatabase(url.href);
});
afterAll(async () => {
  await proxied.close();
  await proxy.close();
  await db.close();
});

const accounts = pgTable("accounts", {
  id: text().primaryKey(),
  balance: i128().notNull(),
  events: integer().notNull(),
  /** Depends on every event of the account and on their order. */
  history: text().notNull(),
  lastToken: token("last_token").notNull(),
});

/** The moment at which a handler throws once; null: never. */
interface Trap {
  events: number | null;
}

function accountsProjection(
  name: string,
  contract: string,
  version: number,
  trap: Trap = { events: null },
): Projection {
  const moved = z.object({ id: z.string(), amount: z.bigint() });
  return defineProjection({
    name,
    version,
    contracts: { bank: defineContract({ id: contract, startLedger: 1, events: { moved } }) },
    tables: { accounts },
    messages: { [`${name}.moved`]: z.object({ id: z.string(), n: z.number() }), [`${name}.v2`]: z.null() },
    on: {
      "bank:moved": async ({ event, db: handlerDb, emit }) => {
        if (trap.events !== null && trap.events-- === 0) {
          trap.events = null;
          throw new Error("a crash of the handler");
        }
        const { id, amount } = event.data;
        const [row] = await handlerDb
          .insert(accounts)
          .values({ id, balance: amount, events: 1, history: event.token, lastToken: event.token })
          .onConflictDoUpdate({
            target: accounts.id,
            set: {
              balance: sql`${accounts.balance} + excluded.balance`,
              events: sql`${accounts.events} + 1`,
              history: sql`md5(${accounts.history} || excluded.history)`,
              lastToken: sql`excluded.last_token`,
            },
          })
          .returning();
        emit(`${name}.moved`, { id, n: row?.events ?? 0 });
        if (version > 1) emit(`${name}.v2`, null);
      },
    },
  });
}

/** What happens next. Workers are processes: each remembers the term that it last got, and the version it runs. */
type Act =
  | { readonly kind: "append"; readonly count: number }
  | { readonly kind: "lead" | "step"; readonly worker: number }
  | { readonly kind: "stepTogether" }
  | { readonly kind: "handlerCrash"; readonly worker: number; readonly after: number }
  | { readonly kind: "cut"; readonly worker: number; readonly bytes: number; readonly up: boolean }
  | { readonly kind: "cutAtCommit"; readonly worker: number; readonly delivered: boolean }
  | { readonly kind: "deploy"; readonly worker: number; readonly bytes: number }
  | { readonly kind: "dispatch" };

const worker = fc.nat(1);
const act: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant("append" as const), count: fc.integer({ min: 1, max: 6 }) }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("lead" as const), worker }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("step" as const), worker }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("stepTogether" as const) }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("handlerCrash" as const), worker, after: fc.nat(4) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("cut" as const),
      worker,
      bytes: fc.nat(6_000),
      up: fc.boolean(),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constant("cutAtCommit" as const), worker, delivered: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("deploy" as const), worker, bytes: fc.nat(3_000) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("dispatch" as const) }) },
);

const MAX_VERSION = 3;
let runs = 0;

async function play(acts: readonly Act[]): Promise<void> {
  const name = `bank_${++runs}`;
  const contract = scv.contractId(name);
  const trap: Trap = { events: null };
  const versions = Array.from({ length: MAX_VERSION }, (_, i) =>
    accountsProjection(name, contract, i + 1, trap),
  );
  const versionAt = (version: number): Projection => versions[version - 1] as Projection;
  const workers = [
    { version: 1, term: 0n },
    { version: 1, term: 0n },
  ];
  const sent: string[] = [];
  let appended = 0;
  await db.register(versionAt(1));

  /** One step of a worker. Whatever is named may go wrong; anything else fails the test. */
  async function step(index: number, database = db.database): Promise<void> {
    const { version, term } = workers[index] as (typeof workers)[number];
    try {
      await db.step(versionAt(version), term, { database });
    } catch (error) {
      const expected = [
        StaleTermError,
        ConnectionLostError,
        DatabaseUnreachableError,
        ProjectionStoppedError,
      ];
      if (!expected.some((kind) => error instanceof kind)) throw error;
    }
  }

  /** Takes what is offered, as the dispatcher does: it is gone from the outbox for good. */
  async function dispatch(): Promise<void> {
    const rows = await db.rows<{ event_id: string }>(
      `DELETE FROM fencepost.outbox o USING fencepost.messages m
       WHERE m.event_id = o.event_id AND m.projection = $1 RETURNING o.event_id`,
      [name],
    );
    sent.push(...rows.map((row) => row.event_id));
  }

  for (const next of acts) {
    switch (next.kind) {
      case "append":
        await db.append(
          Array.from({ length: next.count }, () => {
            appended++;
            const value = scv.struct({ id: scv.str(`${appended % 3}`), amount: scv.i128(BigInt(appended)) });
            return { contract, topics: [scv.sym("moved")], value };
          }),
        );
        break;
      case "lead": {
        const leader = workers[next.worker] as (typeof workers)[number];
        leader.term = await db.lead(versionAt(leader.version));
        break;
      }
      case "step":
        await step(next.worker);
        break;
      case "stepTogether":
        await Promise.all([step(0), step(1)]);
        break;
      case "handlerCrash":
        trap.events = next.after;
        await step(next.worker);
        trap.events = null;
        break;
      case "cut":
        proxy.cutAfter(next.bytes, next.up ? "up" : "down");
        await step(next.worker, proxied);
        proxy.cutWhen(() => false);
        break;
      case "cutAtCommit":
        proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("COMMIT\0"), {
          deliver: next.delivered,
        });
        await step(next.worker, proxied);
        proxy.cutWhen(() => false);
        break;
      case "deploy": {
        const deployed = workers[next.worker] as (typeof workers)[number];
        const highest = Math.max(...workers.map(({ version }) => version));
        const version = Math.min(highest + (deployed.version === highest ? 1 : 0), MAX_VERSION);
        // A first try that dies on its way, and a second one.
        proxy.cutAfter(next.bytes, "up");
        await registerProjection(proxied, versionAt(version), {
          stream: "testnet",
          rebuildChanged: false,
        }).catch((error: unknown) => {
          if (!(error instanceof ConnectionLostError || error instanceof DatabaseUnreachableError))
            throw error;
        });
        proxy.cutWhen(() => false);
        await db.register(versionAt(version));
        deployed.version = version;
        deployed.term = await db.lead(versionAt(version));
        break;
      }
      case "dispatch":
        await dispatch();
        break;
    }
  }

  // Whoever is left finishes: the newest version is live in the end.
  const newest = Math.max(...workers.map(({ version }) => version));
  await db.run(versionAt(newest));
  await dispatch();

  const clean = accountsProjection(`${name}_clean`, contract, 1);
  await db.register(clean);
  await db.run(clean);
  const tables = await db.rows(`SELECT * FROM ${name}.accounts ORDER BY id`);
  expect(tables).toEqual(await db.rows(`SELECT * FROM ${name}_clean.accounts ORDER BY id`));
  expect(tables.length).toBe(Math.min(appended, 3));
  expect(
    await db.rows("SELECT version FROM fencepost.projections WHERE name = $1 AND state = 'live'", [name]),
  ).toEqual([{ version: newest }]);

  const messagesOf = (of: string) =>
    db.rows<{ type: string; token: string; state: string; data: object; seq: bigint; event_id: string }>(
      `SELECT replace(m.type, $1 || '.', '') AS type, m.token, m.state, seq, event_id,
              convert_from(body, 'UTF8')::json -> 'data' AS data
       FROM fencepost.messages m JOIN fencepost.message_bodies USING (event_id) JOIN fencepost.events e ON e.token = m.token
       WHERE projection = $1 ORDER BY e.seq, type`,
      [of],
    );
  const messages = await messagesOf(name);
  const moved = messages.filter(({ type }) => type === "moved");
  expect(moved.map(({ token, state, data }) => ({ token, state, data }))).toEqual(
    (await messagesOf(clean.name)).map(({ token, state, data }) => ({ token, state, data })),
  );
  expect(moved).toHaveLength(appended);

  // What versions from 2 on emit beside that is silent for the events that came before the first of them was live.
  const [first] = await db.rows<{ from: bigint | null }>(
    "SELECT min(emit_after) AS from FROM fencepost.projections WHERE name = $1 AND version > 1",
    [name],
  );
  const added = messages.filter(({ type }) => type === "v2");
  expect(added).toHaveLength(newest > 1 ? appended : 0);
  for (const { state, seq } of added)
    expect(state).toBe(seq > (first?.from ?? 0n) ? "emitted" : "suppressed");

  const emitted = messages.filter(({ state }) => state === "emitted").map((row) => row.event_id);
  expect(sent.sort()).toEqual(emitted.sort());
}

test("batches, crashes, takeovers, lost connections and deployments leave the tables and messages of one clean pass", async () => {
  await fc.assert(fc.asyncProperty(fc.array(act, { minLength: 8, maxLength: 30 }), play), {
    numRuns: 20,
    endOnFailure: true,
  });
});
