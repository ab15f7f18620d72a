import { scv } from "@fencepost/simulator";
import { integer, type PgTable, pgTable, text } from "drizzle-orm/pg-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { defineContract } from "../config/contract.ts";
import { defineProjection, type MessageShapes, type Projection } from "../config/projection.ts";
import { StaleTermError } from "../lease/term.ts";
import { openDatabase } from "../store/postgres/database.ts";
import { SchemaTakenError, ViewSwitchError } from "../store/postgres/projectionTables.ts";
import { ProjectionChangedError } from "./errors.ts";
import { decideRegistration } from "./registerProjection.ts";

let db: ProjectionDatabase;
beforeAll(async () => {
  db = await openProjectionDatabase();
});
afterAll(() => db.close());

const items = pgTable("items", { id: text().primaryKey(), n: integer().notNull() });
const itemShape = z.object({ id: z.string(), n: z.number() });

let families = 0;

/** Versions of one projection, each adding the events of one contract to a table and emitting them. */
function startFamily() {
  const name = `family_${++families}`;
  const contract = scv.contractId(name);
  let n = 0;
  return {
    name,
    define(
      version: number,
      { table = items, type = "added", shape = itemShape, more = [] }: DefineOptions = {},
    ): Projection {
      const messages = {
        [`${name}.${type}`]: shape,
        ...Object.fromEntries(more.map((t) => [`${name}.${t}`, itemShape])),
      };
      return defineProjection({
        name,
        version,
        contracts: { c: defineContract({ id: contract, startLedger: 1, events: { added: itemShape } }) },
        tables: { table },
        messages: messages as MessageShapes,
        on: {
          "c:added": async ({ event, db, emit }) => {
            await db.insert(table).values(event.data as never);
            for (const t of [type, ...more]) emit(`${name}.${t}` as never, event.data as never);
          },
        },
      });
    },
    add: (count = 1) =>
      db.append(
        Array.from({ length: count }, () => ({
          contract,
          topics: [scv.sym("added")],
          value: scv.struct({ id: scv.str(`${++n}`), n: scv.u32(n) }),
        })),
      ),
    async ids(where = name) {
      const rows = await db.rows<{ id: string }>(`SELECT id FROM ${where}.items ORDER BY id::int`);
      return rows.map(({ id }) => id);
    },
    async versions() {
      const rows = await db.rows<{ version: number; state: string }>(
        "SELECT version, state FROM fencepost.projections WHERE name = $1 ORDER BY version",
        [name],
      );
      return rows.map(({ version, state }) => `v${version} ${state}`);
    },
    async schemas() {
      const rows = await db.rows<{ nspname: string }>(
        "SELECT nspname FROM pg_namespace WHERE nspname ~ ('^' || $1 || '(_v\\d+)?$') ORDER BY 1",
        [name],
      );
      return rows.map(({ nspname }) => nspname.slice(name.length));
    },
    /** For each message type, the ids of the events: those that were offered to the outbox, and the silent ones. */
    async messages(type = "added") {
      const rows = await db.rows<{ id: string; state: string; offered: boolean }>(
        `SELECT convert_from(body, 'UTF8')::json #>> '{data,id}' AS id, state,
                EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = m.event_id) AS offered
         FROM fencepost.messages m JOIN fencepost.message_bodies USING (event_id)
         WHERE type = $1 ORDER BY token`,
        [`${name}.${type}`],
      );
      expect(rows.filter(({ state, offered }) => (state === "emitted") !== offered)).toEqual([]);
      const idsOf = (wanted: string) => rows.filter(({ state }) => state === wanted).map(({ id }) => id);
      return { emitted: idsOf("emitted"), suppressed: idsOf("suppressed") };
    },
  };
}

interface DefineOptions {
  readonly table?: PgTable;
  readonly type?: string;
  readonly shape?: MessageShapes[string];
  readonly more?: readonly string[];
}

const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => `${from + i}`);

async function refusal(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => {
      throw new Error("It was accepted.");
    },
    (error: Error) => error,
  );
}

// ── registering ──────────────────────────────────────────────────────────────────────────────────────────

test("the first version is live at once, with its tables and views, however many processes register it", async () => {
  const family = startFamily();
  const done = await Promise.all(numbers(1, 4).map(() => db.register(family.define(1))));
  expect(done.sort()).toEqual(["created", "known", "known", "known"]);
  expect(await family.versions()).toEqual(["v1 live"]);
  expect(await family.schemas()).toEqual(["", "_v1"]);
  await family.add(2);
  await db.run(family.define(1));
  expect(await family.ids()).toEqual(["1", "2"]);
  expect(await db.register(family.define(1))).toBe("known");
  expect(await family.ids()).toEqual(["1", "2"]);
});

const wider = pgTable("items", { id: text().primaryKey(), n: integer().notNull(), note: text() });
test.each<[string, DefineOptions, DefineOptions]>([
  ["a table with another column", {}, { table: wider }],
  ["a message with another field", {}, { shape: itemShape.extend({ note: z.string() }) }],
  ["a message field of another type", {}, { shape: z.object({ id: z.string(), n: z.string() }) }],
  [
    "a message with a bigint more",
    { shape: z.object({ id: z.string() }) },
    { shape: z.object({ id: z.string(), n: z.bigint() }) },
  ],
  [
    "a text beside a bigint",
    { shape: z.object({ id: z.string(), n: z.bigint() }) },
    { shape: z.object({ id: z.string().max(5), n: z.bigint() }) },
  ],
  [
    "a date where a bigint was",
    { shape: z.object({ n: z.bigint().optional() }) },
    { shape: z.object({ n: z.date().optional() }) },
  ],
  ["another message type", {}, { type: "put" }],
  ["a message more", {}, { more: ["also"] }],
])("%s without a new version is refused, and both shapes are named", async (_, before, after) => {
  const family = startFamily();
  await db.register(family.define(1, before));
  expect(await db.register(family.define(1, before))).toBe("known");
  const [row] = await db.rows<{ fingerprint: string }>(
    "SELECT fingerprint FROM fencepost.projections WHERE name = $1",
    [family.name],
  );
  const error = await refusal(db.register(family.define(1, after)));
  expect(error).toBeInstanceOf(ProjectionChangedError);
  expect(error.message).toContain(`The projection ${family.name} v1 has other tables or message shapes`);
  expect(error.message).toMatch(
    new RegExp(`\\(${row?.fingerprint.slice(0, 12)} there, [0-9a-f]{12} in the code\\)`),
  );
  expect(error.message).toContain("Raise its version to 2");
  expect(await db.register(family.define(2, after))).toBe("building");
});

test("the order in which tables and messages are written is not a change", async () => {
  const a = pgTable("a", { id: text().primaryKey() });
  const b = pgTable("b", { id: text().primaryKey() });
  const start = { name: "ordered", version: 1, contracts: {}, on: {} };
  await db.register(
    defineProjection({ ...start, tables: { a, b }, messages: { x: itemShape, y: z.null() } }),
  );
  expect(
    await db.register(
      defineProjection({ ...start, tables: { b, a }, messages: { y: z.null(), x: itemShape } }),
    ),
  ).toBe("known");
});

test("a schema of the version's name that somebody else made is left alone", async () => {
  const family = startFamily();
  await db.database.query(`CREATE SCHEMA ${family.name}_v1`);
  await db.database.query(`CREATE TABLE ${family.name}_v1.precious (id text)`);
  const error = await refusal(db.register(family.define(1)));
  expect(error).toBeInstanceOf(SchemaTakenError);
  expect(error.message).toContain(`DROP SCHEMA ${family.name}_v1 CASCADE`);
  expect(await family.versions()).toEqual([]);
  await db.database.query(`DROP SCHEMA ${family.name}_v1 CASCADE`);
  expect(await db.register(family.define(1))).toBe("created");
});

test("what registering means follows from the versions on record", () => {
  const row = (version: number, state: "live" | "building" | "retired", fingerprint = "same") => ({
    version,
    state,
    fingerprint,
  });
  const decide = (
    rows: Parameters<typeof decideRegistration>[0],
    version: number,
    rules = { rebuildChanged: false },
  ) => decideRegistration(rows, { name: "p", version }, "same", rules);
  expect(decide([], 1)).toBe("created");
  expect(decide([], 7)).toBe("created");
  expect(decide([row(1, "live")], 1)).toBe("known");
  expect(decide([row(1, "live")], 2)).toBe("building");
  expect(decide([row(3, "building"), row(1, "live")], 2)).toBe("building");
  expect(decide([row(2, "building"), row(1, "live")], 2)).toBe("known");
  expect(decide([row(2, "building"), row(1, "live")], 1)).toBe("known");
  expect(decide([row(1, "live", "other")], 1, { rebuildChanged: true })).toBe("rebuilding");
  expect(decide([row(1, "live")], 1, { rebuildChanged: true })).toBe("known");
  expect(() => decide([row(1, "live", "other")], 1)).toThrow(ProjectionChangedError);
  expect(() => decide([row(2, "live"), row(1, "retired")], 1)).toThrow("v1 is not the live version: v2 is");
  expect(() => decide([row(3, "live")], 2, { rebuildChanged: true })).toThrow("Deploy the code of v3");
});

// ── a new version ────────────────────────────────────────────────────────────────────────────────────────

test("a new version is built in silence beside the live one, takes its place in one step, and no message is lost or doubled", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  const v2 = family.define(2, { table: wider });
  await db.register(v1);
  await family.add(3);
  await db.run(v1);
  await db.register(v2);
  expect(await family.versions()).toEqual(["v1 live", "v2 building"]);

  // While it is built, the live one goes on, and the views show what the live one has.
  const old = await db.lead(v1);
  await family.add(2);
  await db.step(v1, old);
  const building = await db.lead(v2);
  await family.add(1);
  expect(await family.ids()).toEqual(numbers(1, 5));
  expect(await db.step(v2, building)).toBe("progress");
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  expect(await family.ids()).toEqual(numbers(1, 5));
  expect(await db.rows(`SELECT note FROM ${family.name}.items WHERE id = '1'`)).toEqual([{ note: null }]);

  // The leader of the old version cannot commit any more, and an old process cannot start again.
  expect(await refusal(db.step(v1, old))).toBeInstanceOf(StaleTermError);
  expect(await db.step(v1, await db.lead(v1))).toEqual({ waitMs: 60_000 });
  expect((await refusal(db.register(v1))).message).toContain("v1 is not the live version: v2 is");

  await db.step(v2, building);
  expect(await family.ids()).toEqual(numbers(1, 6));
  expect(await family.messages()).toEqual({ emitted: numbers(1, 6), suppressed: [] });
  expect(await family.ids(`${family.name}_v1`)).toEqual(numbers(1, 5));
});

test("what the new version would have emitted for handled events is kept and not sent", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  const v2 = family.define(2, { more: ["also"] });
  await db.register(v1);
  await family.add(3);
  await db.run(v1);
  await db.register(v2);
  await db.run(v2);
  await family.add(2);
  await db.run(v2);
  expect(await family.messages("added")).toEqual({ emitted: numbers(1, 5), suppressed: [] });
  expect(await family.messages("also")).toEqual({ emitted: ["4", "5"], suppressed: ["1", "2", "3"] });
});

test("a message that a new version writes in another way stays as it was sent", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  const v2 = family.define(2, { shape: itemShape.transform(({ id }) => ({ id, renamed: true })) });
  await db.register(v1);
  await family.add(1);
  await db.run(v1);
  await db.register(v2);
  await db.run(v2);
  await family.add(1);
  await db.run(v2);
  const bodies = await db.rows(
    `SELECT convert_from(body, 'UTF8')::json -> 'data' AS data FROM fencepost.message_bodies
     JOIN fencepost.messages USING (event_id) WHERE projection = $1 ORDER BY token`,
    [family.name],
  );
  expect(bodies).toEqual([{ data: { id: "1", n: 1 } }, { data: { id: "2", renamed: true } }]);
});

test("a live version that never rests cannot keep the new one from taking its place", async () => {
  const family = startFamily();
  const [v1, v2] = [family.define(1), family.define(2)];
  await db.register(v1);
  await family.add(5);
  await db.run(v1);
  await db.register(v2);
  const [old, building] = [await db.lead(v1), await db.lead(v2)];
  // Each time the new one looks, the live one has just gone on.
  for (let round = 0; round < 3 && (await family.versions())[1] !== "v2 live"; round++) {
    await family.add(2);
    await db.step(v1, old);
    await db.step(v2, building);
  }
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
});

test("while there is more than a batch to build, the live version is not held up", async () => {
  const family = startFamily();
  const [v1, v2] = [family.define(1), family.define(2)];
  await db.register(v1);
  await family.add(2);
  const foreign = { contract: scv.contractId("foreign"), topics: [], value: scv.nothing() };
  await db.append(Array.from({ length: 600 }, () => foreign));
  await db.run(v1);
  await db.register(v2);
  const [old, building] = [await db.lead(v1), await db.lead(v2)];
  await family.add(1);
  const { database } = db;
  const withoutLiveLock = {
    ...database,
    async transaction<T>(work: Parameters<typeof database.transaction<T>>[0]) {
      // The live version's row is locked by somebody else: a batch of the build does not care.
      return db.database.transaction(async (other) => {
        await other.query("SELECT FROM fencepost.projections WHERE name = $1 AND version = 1 FOR UPDATE", [
          family.name,
        ]);
        return database.transaction(work);
      });
    },
  };
  expect(await db.step(v2, building, { database: withoutLiveLock })).toBe("progress");
  expect(await family.versions()).toEqual(["v1 live", "v2 building"]);
  expect(await family.ids(`${family.name}_v2`)).toEqual(["1", "2"]);
  expect(await db.step(v1, old)).toBe("progress");
  await db.run(v2);
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  expect(await family.messages()).toEqual({ emitted: numbers(1, 3), suppressed: [] });
});

test("the version before the live one is kept, those before it go, and so do those that were never finished", async () => {
  const family = startFamily();
  const [v1, v2, v3, v4] = [1, 2, 3, 4].map((version) => family.define(version)) as [
    Projection,
    Projection,
    Projection,
    Projection,
  ];
  await db.register(v1);
  await family.add(2);
  await db.run(v1);
  await db.register(v2);
  const unfinished = await db.lead(v2);
  await db.register(v3);
  await db.run(v3);
  expect(await family.versions()).toEqual(["v1 retired", "v2 retired", "v3 live"]);
  expect(await family.schemas()).toEqual(["", "_v1", "_v3"]);
  // The process that still builds v2 must not take over from a newer version.
  expect(await refusal(db.step(v2, unfinished))).toBeInstanceOf(StaleTermError);
  await db.register(v4);
  await db.run(v4);
  expect(await family.versions()).toEqual(["v1 retired", "v2 retired", "v3 retired", "v4 live"]);
  expect(await family.schemas()).toEqual(["", "_v3", "_v4"]);
  expect(await family.messages()).toEqual({ emitted: ["1", "2"], suppressed: [] });
});

test("what an older version set aside is no longer counted once a newer one is live", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  await db.register(v1);
  const [misfit] = await db.append([
    {
      contract: scv.contractId(family.name),
      topics: [scv.sym("added")],
      value: scv.struct({ id: scv.str("x") }),
    },
  ]);
  await db.run(v1);
  const aside = () =>
    db.rows("SELECT token, version FROM fencepost.quarantine WHERE projection = $1", [family.name]);
  expect(await aside()).toEqual([{ token: misfit, version: 1 }]);
  const v2 = family.define(2);
  await db.register(v2);
  await db.run(v2);
  expect(await aside()).toEqual([{ token: misfit, version: 2 }]);
});

// ── the views ────────────────────────────────────────────────────────────────────────────────────────────

test("a view of the same shape is replaced in place, so what reads it stays", async () => {
  const family = startFamily();
  const oid = () => db.rows("SELECT $1::regclass::oid::int AS oid", [`${family.name}.items`]);
  await db.register(family.define(1));
  await family.add(2);
  await db.run(family.define(1));
  await db.database.query(
    `CREATE VIEW public.${family.name}_report AS SELECT count(*)::int AS n FROM ${family.name}.items`,
  );
  const before = await oid();
  const v2 = family.define(2);
  await db.register(v2);
  await db.run(v2);
  expect(await oid()).toEqual(before);
  await db.database.query(`INSERT INTO ${family.name}_v2.items VALUES ('9', 9)`);
  expect(await db.rows(`SELECT n FROM public.${family.name}_report`)).toEqual([{ n: 3 }]);
});

test("a view that a person's view depends on holds a change of its shape up, by name, and the live version goes on", async () => {
  const family = startFamily();
  const [v1, v2] = [
    family.define(1),
    family.define(2, { table: pgTable("items", { n: integer(), id: text() }) }),
  ];
  await db.register(v1);
  await family.add(1);
  await db.run(v1);
  await db.database.query(`CREATE VIEW public.${family.name}_report AS SELECT * FROM ${family.name}.items`);
  await db.register(v2);
  const error = await refusal(db.run(v2));
  expect(error).toBeInstanceOf(ViewSwitchError);
  expect(error.message).toMatch(/pointed at v2: cannot drop view .* view \w+_report depends on view/s);
  expect(await family.versions()).toEqual(["v1 live", "v2 building"]);
  await family.add(1);
  await db.run(v1);
  expect(await family.ids()).toEqual(["1", "2"]);
  await db.database.query(`DROP VIEW public.${family.name}_report`);
  await db.run(v2);
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  expect(await family.messages()).toEqual({ emitted: ["1", "2"], suppressed: [] });
});

test("views of tables that are gone are dropped, and those that a person made in the schema stay", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  const v2 = family.define(2, { table: pgTable("things", { id: text(), n: integer() }) });
  await db.register(v1);
  await db.database.query(`CREATE VIEW ${family.name}.own AS SELECT 1 AS one`);
  await db.register(v2);
  await db.run(v2);
  const views = await db.rows("SELECT viewname FROM pg_views WHERE schemaname = $1 ORDER BY 1", [
    family.name,
  ]);
  expect(views).toEqual([{ viewname: "own" }, { viewname: "things" }]);
});

test("a person's relation in the place of a view is not overwritten", async () => {
  const family = startFamily();
  await db.database.query(`CREATE SCHEMA ${family.name}`);
  await db.database.query(`CREATE VIEW ${family.name}.items AS SELECT ''::text AS id, 0 AS n`);
  expect(await refusal(db.register(family.define(1)))).toBeInstanceOf(ViewSwitchError);
  expect(await db.rows(`SELECT * FROM ${family.name}.items`)).toEqual([{ id: "", n: 0 }]);
});

test("a query that holds a view for long does not hold the live version up with it", async () => {
  const family = startFamily();
  const [v1, v2] = [family.define(1), family.define(2)];
  await db.register(v1);
  await family.add(1);
  await db.run(v1);
  await db.register(v2);
  const reader = openDatabase(db.url);
  await reader.transaction(async (client) => {
    await client.query(`SELECT * FROM ${family.name}.items`);
    const error = await refusal(db.run(v2));
    expect(error).toBeInstanceOf(ViewSwitchError);
    expect(error.message).toContain("lock timeout");
    await family.add(1);
    await db.run(v1);
  });
  await reader.close();
  await db.run(v2);
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  expect(await family.messages()).toEqual({ emitted: ["1", "2"], suppressed: [] });
});

// ── the same version, started over (dev) ─────────────────────────────────────────────────────────────────

test("a changed version that is started over is silent up to where it was, and emits from there on", async () => {
  const family = startFamily();
  await db.register(family.define(1));
  await family.add(3);
  await db.run(family.define(1));
  const stale = await db.lead(family.define(1));
  const changed = family.define(1, { table: wider, more: ["also"] });
  expect(await db.register(changed, { rebuildChanged: true })).toBe("rebuilding");
  expect(await family.ids()).toEqual([]);
  expect(await refusal(db.step(changed, stale))).toBeInstanceOf(StaleTermError);
  await family.add(2);
  await db.run(changed);
  expect(await family.ids()).toEqual(numbers(1, 5));
  expect(await family.messages("added")).toEqual({ emitted: numbers(1, 5), suppressed: [] });
  expect(await family.messages("also")).toEqual({ emitted: ["4", "5"], suppressed: ["1", "2", "3"] });
});

test("started over twice, before it got as far as before, it still is silent up to where it first was", async () => {
  const family = startFamily();
  await db.register(family.define(1));
  await family.add(3);
  await db.run(family.define(1));
  await db.register(family.define(1, { more: ["also"] }), { rebuildChanged: true });
  const again = family.define(1, { more: ["also", "more"] });
  await db.register(again, { rebuildChanged: true });
  await db.run(again);
  expect(await family.messages("more")).toEqual({ emitted: [], suppressed: ["1", "2", "3"] });
});

test("a version may be started over although neither tables nor messages changed", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  await db.register(v1);
  await family.add(2);
  await db.run(v1);
  expect(await db.register(v1, { rebuildChanged: true })).toBe("known");
  expect(await db.register(v1, { rebuildChanged: true, rebuild: true })).toBe("rebuilding");
  expect(await family.ids()).toEqual([]);
  await db.run(v1);
  expect(await family.ids()).toEqual(["1", "2"]);
  expect(await family.messages()).toEqual({ emitted: ["1", "2"], suppressed: [] });
});

test("a version that is being built may be started over too, and stays silent", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  await db.register(v1);
  await family.add(2);
  await db.run(v1);
  await db.register(family.define(2));
  const changed = family.define(2, { more: ["also"] });
  expect(await db.register(changed, { rebuildChanged: true })).toBe("rebuilding");
  expect(await family.versions()).toEqual(["v1 live", "v2 building"]);
  expect(await family.ids()).toEqual(["1", "2"]);
  await db.run(changed);
  expect(await family.messages("also")).toEqual({ emitted: [], suppressed: ["1", "2"] });
});

test("a live version that is started over does not make the one that is built beside it emit again", async () => {
  const family = startFamily();
  const v1 = family.define(1);
  const v2 = family.define(2, { more: ["also"] });
  await db.register(v1);
  await family.add(3);
  await db.run(v1);
  await db.register(v2);
  await db.register(v1, { rebuildChanged: true, rebuild: true });
  await db.run(v2);
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  await family.add(1);
  await db.run(v2);
  expect(await family.messages("also")).toEqual({ emitted: ["4"], suppressed: ["1", "2", "3"] });
});

test("a version that is ahead of a live one that was started over waits for it", async () => {
  const family = startFamily();
  const [v1, v2] = [family.define(1), family.define(2)];
  await db.register(v1);
  await family.add(1);
  const foreign = { contract: scv.contractId("foreign"), topics: [], value: scv.nothing() };
  await db.append(Array.from({ length: 600 }, () => foreign));
  await db.run(v1);
  await db.register(v2);
  const building = await db.lead(v2);
  await db.step(v2, building);
  await db.register(v1, { rebuildChanged: true, rebuild: true });
  expect(await db.step(v2, building)).toBe("idle");
  expect(await family.versions()).toEqual(["v1 live", "v2 building"]);
  await db.run(v1);
  await db.step(v2, building);
  expect(await family.versions()).toEqual(["v1 retired", "v2 live"]);
  expect(await family.messages()).toEqual({ emitted: ["1"], suppressed: [] });
});
