import { once } from "node:events";
import { connect, createServer } from "node:net";
import { deriveEventId, type FencingToken } from "@fencepost/token";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openProjectionDatabase, type ProjectionDatabase } from "../__tests__/support/projectionDatabase.ts";
import { startScript } from "../__tests__/support/scriptProcess.ts";
import { added, type TotalsOptions, totalsProjection } from "../__tests__/support/totals.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { never } from "../__tests__/support/windows.ts";
import type { Projection } from "../config/projection.ts";
import { readProjectionPlaces } from "../store/postgres/audit.ts";
import { openDatabase } from "../store/postgres/database.ts";
import { ConnectionLostError } from "../store/postgres/errors.ts";
import { openScratch, SharedConnectionError } from "../store/postgres/scratch.ts";
import { auditHandlers, type RerunProgress } from "./rerun.ts";

const NONE = { count: 0, listed: [] };
const found = <Item>(...listed: Item[]) => ({ count: listed.length, listed });

let db: ProjectionDatabase;
beforeAll(async () => {
  db = await openProjectionDatabase();
});
afterAll(() => db.close());

let lines = 0;

/** A projection of so many events, each of which made a message. */
async function startLine(count = 30, options: TotalsOptions = {}) {
  const name = `totals_${++lines}`;
  const define = (more: TotalsOptions = {}) => totalsProjection(name, { ...options, ...more });
  const projection = define();
  const tokens = await db.append(added(name, count));
  await db.register(projection);
  await db.run(projection);
  const named = (token: FencingToken | undefined, type = `${name}.total`) => {
    if (!token) throw new Error("There is no such event.");
    return { token, eventId: deriveEventId(token, type), type };
  };
  return {
    name,
    define,
    projection,
    tokens,
    named,
    async add(more: number) {
      return db.append(added(name, more, 1_000));
    },
    /** What running the handlers again finds, of the events of this projection or some of them. */
    async audit(
      code: readonly Projection[] = [projection],
      {
        of = tokens,
        onProgress,
      }: { of?: readonly FencingToken[]; onProgress?: (p: RerunProgress) => void } = {},
    ) {
      const range = { from: of[0] as FencingToken, through: of.at(-1) as FencingToken };
      const places = (await readProjectionPlaces(db.database, "testnet", range)).filter(
        (p) => p.name === name,
      );
      const options = { projections: code, ...(onProgress && { onProgress }) };
      const { projections, unclaimed } = await auditHandlers(db.database, places, range, options, never);
      const [own] = projections;
      if (projections.length !== 1 || !own) throw new Error("The audit is not of one projection.");
      return { ...own, unclaimed };
    },
  };
}

/** Every row that is kept, with where it is and who wrote it, and every table and sequence there is. */
async function everything(): Promise<string> {
  const relations = await db.rows<{ name: string; kind: string }>(
    `SELECT format('%I.%I', nspname, relname) AS name, relkind AS kind
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE relkind IN ('r', 'S', 'v') AND relpersistence = 'p' AND nspname <> 'information_schema' AND nspname !~ '^pg_'
     ORDER BY 1`,
  );
  const parts: string[] = [];
  for (const { name, kind } of relations) {
    const what = { r: "concat(ctid, ' ', xmin, ' ', t)", S: "last_value", v: "''" }[kind];
    const rows = await db.rows<{ row: unknown }>(`SELECT ${what} AS row FROM ${name} t ORDER BY 1`);
    parts.push(name, ...rows.map(({ row }) => String(row)));
  }
  return parts.join("\n");
}

const temporaryTables = async () =>
  (await db.rows<{ n: number }>("SELECT count(*)::int AS n FROM pg_class WHERE relpersistence = 't'"))[0]?.n;

describe("handlers that run again", () => {
  test("agree where nothing is wrong, and leave every row, table and sequence as it was", async () => {
    const { audit, name } = await startLine(600);
    const before = await everything();
    const progress: RerunProgress[] = [];
    expect(await audit(undefined, { onProgress: (done) => progress.push(done) })).toEqual({
      name,
      version: 1,
      unproven: null,
      emitted: 600,
      agreed: 600,
      missing: NONE,
      different: NONE,
      unexplained: NONE,
      earlier: NONE,
      unclaimed: NONE,
    });
    expect(progress.length).toBeGreaterThan(1);
    expect(progress.at(-1)).toMatchObject({ projection: name, seq: progress.at(-1)?.through });
    expect(await everything()).toBe(before);
    await waitUntil(async () => (await temporaryTables()) === 0, { what: "the scratch tables are gone" });
  });

  test("name the message that was deleted, the one that was changed, and those that nobody makes", async () => {
    const { audit, name, tokens, named } = await startLine();
    const [deleted, changed, forged, strange] = tokens;
    await db.rows("DELETE FROM fencepost.messages WHERE event_id = $1", [named(deleted).eventId]);
    await db.rows("UPDATE fencepost.messages SET content_hash = 'x' WHERE event_id = $1", [
      named(changed).eventId,
    ]);
    const insert = (id: string, token: FencingToken | undefined, projection: string | null) =>
      db.rows(
        `INSERT INTO fencepost.messages (event_id, token, type, projection, state, content_hash, occurred_at)
         VALUES ($1, $2, 'a.type', $3, 'emitted', 'x', now())`,
        [id, token, projection],
      );
    await insert(`evt_forged_${name}`, forged, name);
    await insert(`evt_strange_${name}`, strange, "nobody");
    await insert(`evt_nobody_${name}`, strange, null);
    const report = await audit();
    expect(report).toMatchObject({
      unproven: null,
      emitted: 30,
      agreed: 28,
      missing: found(named(deleted)),
      different: found(named(changed)),
      unexplained: found({ token: forged, eventId: `evt_forged_${name}`, type: "a.type" }),
      earlier: NONE,
    });
    expect(report.unclaimed.listed.map(({ eventId }) => eventId)).toEqual([
      `evt_nobody_${name}`,
      `evt_strange_${name}`,
    ]);
  });

  test("begin with the first event, whatever the range, and stop after its last one", async () => {
    const { audit, tokens, named, projection, add } = await startLine(30);
    const later = await add(5);
    await db.run(projection);
    await db.rows("DELETE FROM fencepost.messages WHERE token = ANY($1)", [
      [tokens[3], tokens[20], later[0]],
    ]);
    const through: bigint[] = [];
    const report = await audit(undefined, {
      of: tokens.slice(15, 25),
      onProgress: (done) => through.push(done.through),
    });
    expect(report).toMatchObject({ emitted: 10, agreed: 9, missing: found(named(tokens[20])) });
    const [row] = await db.rows<{ seq: bigint }>("SELECT seq FROM fencepost.events WHERE token = $1", [
      tokens[24],
    ]);
    expect(through).toEqual([row?.seq]);
  });

  test("reach an event of the range that came late, and not what the projection has not come to", async () => {
    const { audit, add, projection, named } = await startLine(10);
    const [late, ...rest] = await add(3);
    // Its place on the chain is before the two that were stored with it.
    await db.rows("UPDATE fencepost.events SET seq = seq + 1000 WHERE token = $1", [late]);
    await db.rows("UPDATE fencepost.streams SET seq = seq + 1000");
    await db.run(projection);
    const [behind] = await add(1);
    const of = [late as FencingToken, ...rest, behind as FencingToken];
    expect(await audit(undefined, { of })).toMatchObject({ emitted: 3, agreed: 3, unexplained: NONE });
    await db.rows("DELETE FROM fencepost.messages WHERE token = $1", [late]);
    expect(await audit(undefined, { of })).toMatchObject({ emitted: 3, missing: found(named(late)) });
    await db.rows("DELETE FROM fencepost.events WHERE seq = (SELECT max(seq) FROM fencepost.events)");
  });

  test("pass over what a person skipped, and are silent about what does not fit", async () => {
    const { audit, tokens, define, name } = await startLine(6);
    const skipped = tokens[2];
    await db.rows("INSERT INTO fencepost.skips (projection, token, reason) VALUES ($1, $2, 'mended')", [
      name,
      skipped,
    ]);
    await db.rows("DELETE FROM fencepost.messages WHERE token = $1", [skipped]);
    // What came after the skipped one has the sums with it: as if it had been skipped when it stopped.
    await db.register(define(), { rebuild: true });
    await db.run(define());
    expect(await audit()).toMatchObject({ unproven: null, emitted: 5, missing: NONE });
  });

  test("tell what an earlier version made from what is wrong", async () => {
    const { audit, tokens, define, named, add, name } = await startLine(6);
    const second = define({ version: 2, times: 2, more: "seen" });
    await db.register(second);
    await db.run(second);
    const [after] = await add(2);
    await db.run(second);
    const of = [...tokens, after as FencingToken];
    const report = await audit([second], { of });
    expect(report).toMatchObject({
      version: 2,
      unproven: null,
      emitted: 14,
      agreed: 8, // the silent ones of the six, and both of the new event
      earlier: { count: 6, listed: tokens.map((token) => named(token)) },
      missing: NONE,
      different: NONE,
    });
    // What the rebuild was to store is missed, and what this version emitted itself must be as it emits it.
    await db.rows("DELETE FROM fencepost.messages WHERE event_id = $1", [
      named(tokens[0], `${name}.seen`).eventId,
    ]);
    await db.rows("UPDATE fencepost.messages SET content_hash = 'x' WHERE event_id = $1", [
      named(after).eventId,
    ]);
    expect(await audit([second], { of })).toMatchObject({
      missing: found(named(tokens[0], `${name}.seen`)),
      different: found(named(after)),
      earlier: { count: 6 },
    });
  });

  test("prove nothing where other code is live, or the config has none", async () => {
    const { audit, define } = await startLine(3);
    expect((await audit([])).unproven).toBe("the config has no projection of this name");
    const other = "v1 is live, and the config has v2, or other tables or message shapes";
    expect((await audit([define({ version: 2 })])).unproven).toBe(other);
    expect((await audit([define({ more: "seen" })])).unproven).toContain("other tables or message shapes");
  });

  test("prove nothing where it is built anew meanwhile", async () => {
    const { audit, define, name } = await startLine(3);
    const before = async () => {
      await db.rows("UPDATE fencepost.projections SET emit_after = 1 WHERE name = $1", [name]);
    };
    expect((await audit([define({ before })])).unproven).toBe("it was built anew meanwhile: audit again");
  });

  test("prove nothing where one fails, and say where and why", async () => {
    const { audit, define, tokens, name } = await startLine(3);
    const before = async ({ token }: { token: FencingToken }) => {
      if (token === tokens[1]) throw new Error("It is broken.");
    };
    const report = await audit([define({ before })]);
    expect(report.unproven).toBe(`c:added failed at ${tokens[1]}: Error: It is broken.`);
    expect(report).toMatchObject({ emitted: 0, missing: NONE });
    expect(name).toBe(report.name);
  });

  test.each([
    ["a row of the live table", (name: string) => sql`UPDATE ${sql.raw(`${name}_v1`)}.totals SET total = 0`],
    ["a row through the live view", (name: string) => sql`DELETE FROM ${sql.raw(name)}.totals`],
    ["a message", () => sql`DELETE FROM fencepost.messages`],
    ["a lock on live rows", (name: string) => sql`SELECT FROM ${sql.raw(`${name}_v1`)}.totals FOR UPDATE`],
    ["a sequence", () => sql`SELECT nextval('fencepost.message_position')`],
    ["a table", () => sql`CREATE TABLE public.side_effect ()`],
    ["the mode", () => sql`SET TRANSACTION READ WRITE`],
  ])("cannot change %s: PostgreSQL refuses it", async (_, statement) => {
    const { audit, define, name } = await startLine(3);
    const before = (
      _event: unknown,
      handlers: { execute(query: ReturnType<typeof sql>): Promise<unknown> },
    ) => handlers.execute(statement(name));
    const state = await everything();
    expect((await audit([define({ before })])).unproven).toMatch(/read-only transaction|read-write mode/);
    expect(await everything()).toBe(state);
  });

  test("do not hold each other up, in two audits at once", async () => {
    const { audit } = await startLine(200);
    const reports = await Promise.all([audit(), audit(), audit()]);
    expect(reports.map(({ agreed }) => agreed)).toEqual([200, 200, 200]);
  });

  test("do not disturb the live projection, which goes on meanwhile under its term", async () => {
    const { audit, projection, add, tokens, define } = await startLine(600);
    const term = await db.lead(projection);
    let more = 0;
    const before = async () => {
      if (more++ > 0) return;
      await add(4);
      expect(await db.step(projection, term)).toBe("progress");
    };
    expect(await audit([define({ before })])).toMatchObject({ emitted: 600, agreed: 600, unproven: null });
    expect(await db.step(projection, term)).toBe("idle");
    const [row] = await db.rows<{ n: number }>(
      "SELECT count(*)::int AS n FROM fencepost.messages WHERE token > $1 AND projection = $2",
      [tokens.at(-1), projection.name],
    );
    expect(row).toEqual({ n: 4 });
  });

  test("are no proof, and no fault of theirs, where the connection breaks: that is thrown", async () => {
    const { audit, define } = await startLine(5);
    const before = () =>
      db.rows(
        `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
         WHERE application_name = 'fencepost audit' AND datname = current_database()`,
      );
    await expect(audit([define({ before })])).rejects.toThrow(ConnectionLostError);
    expect(await temporaryTables()).toBe(0);
  });

  test("stop when they are told to", async () => {
    const { projection, tokens, name } = await startLine(3);
    const range = { from: tokens[0] as FencingToken, through: tokens[2] as FencingToken };
    const places = (await readProjectionPlaces(db.database, "testnet", range)).filter((p) => p.name === name);
    const stopped = AbortSignal.abort(new Error("Enough."));
    const rerun = auditHandlers(db.database, places, range, { projections: [projection] }, stopped);
    await expect(rerun).rejects.toThrow("Enough.");
  });
});

test("an audit whose process is killed in the middle leaves nothing behind", async () => {
  const { audit, name, tokens } = await startLine(20);
  const before = await everything();
  const module = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);
  const script = `
    import { openDatabase } from ${module("../store/postgres/database.ts")};
    import { totalsProjection } from ${module("../__tests__/support/totals.ts")};
    import { auditHandlers } from ${module("./rerun.ts")};
    const [url, name, from, through] = process.argv.slice(1);
    let events = 0;
    const before = async () => {
      if (++events < 10) return;
      process.stdout.write("in the middle\\n");
      await new Promise(() => setInterval(() => {}, 1_000));
    };
    const projections = [totalsProjection(name, { before })];
    const places = [{ name, version: 1, behind: 0, stoppedToken: null }];
    await auditHandlers(openDatabase(url), places, { from, through }, { projections }, new AbortController().signal);`;
  const args = [db.url, name, tokens[0] as string, tokens.at(-1) as string];
  const { child, nextLine } = startScript(script, args);
  try {
    expect(await nextLine()).toBe("in the middle");
    expect(await temporaryTables()).toBeGreaterThan(0);
  } finally {
    const exit = once(child, "exit");
    child.kill("SIGKILL");
    await exit;
  }
  await waitUntil(async () => (await temporaryTables()) === 0, { what: "the scratch tables are gone" });
  expect(await everything()).toBe(before);
  expect(await audit()).toMatchObject({ unproven: null, agreed: 20 });
});

describe("a scratch connection", () => {
  test("vacuums and looks at its own tables", async () => {
    const scratch = await openScratch(db.url, ["CREATE TABLE mine (n int)"]);
    try {
      await scratch.transaction((client) => client.query("INSERT INTO mine SELECT generate_series(1, 1000)"));
      await scratch.vacuum();
      const size = await scratch.transaction(async (client) => {
        const { rows } = await client.query(
          "SELECT reltuples::int AS n FROM pg_class WHERE oid = 'mine'::regclass",
        );
        return rows;
      });
      expect(size).toEqual([{ n: 1_000 }]);
    } finally {
      await scratch.close();
    }
  });

  test("is refused through what may give it to others: it would leave them its tables", async () => {
    const server = new URL(db.url);
    const pooler = createServer((down) => {
      const up = connect(Number(server.port), server.hostname);
      down.on("error", () => up.destroy()).pipe(up);
      up.on("error", () => down.destroy());
      up.on("data", (chunk) => {
        // BackendKeyData: a pooler makes up its own, by which it knows whose statement is to be cancelled.
        const at = chunk.indexOf(Buffer.from("4b0000000c", "hex"));
        if (at >= 0) chunk.writeInt32BE(4_711, at + 5);
        down.write(chunk);
      });
    });
    pooler.listen(0, "127.0.0.1");
    await once(pooler, "listening");
    try {
      const url = new URL(db.url);
      const address = pooler.address();
      if (address === null || typeof address === "string") throw new Error("The pooler has no port.");
      url.host = `127.0.0.1:${address.port}`;
      const database = openDatabase(url.href);
      expect((await database.query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
      await database.close();
      await expect(openScratch(url.href, [])).rejects.toThrow(SharedConnectionError);
      expect(await temporaryTables()).toBe(0);
    } finally {
      pooler.close();
    }
  });
});
