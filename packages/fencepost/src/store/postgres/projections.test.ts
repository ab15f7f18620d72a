import { scv } from "@fencepost/simulator";
import type { FencingToken } from "@fencepost/token";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  openProjectionDatabase,
  type ProjectionDatabase,
} from "../../__tests__/support/projectionDatabase.ts";
import {
  insertMisfits,
  insertProjection,
  insertSkip,
  lockProjection,
  lockVersions,
  moveProjection,
  promoteProjection,
  readEventsAfter,
  readLiveCursor,
  readProjection,
  recordStop,
} from "./projections.ts";

let db: ProjectionDatabase;
beforeAll(async () => {
  db = await openProjectionDatabase();
});
afterAll(() => db.close());

let made = 0;

/** A live version 1 with term 0 and cursor 0, under a name of its own. */
async function start(): Promise<{ readonly name: string; readonly version: number }> {
  const name = `p${++made}`;
  const row = {
    name,
    version: 1,
    stream: "testnet",
    emitAfter: 0n,
    state: "live",
    fingerprint: "x",
  } as const;
  await db.database.transaction((client) => insertProjection(client, row));
  return { name, version: 1 };
}

const read = ({ name, version }: { name: string; version: number }) =>
  readProjection(db.database, name, version);

test("a cursor moves only from where its mover saw it, and under the term it was seen under", async () => {
  const own = await start();
  const move = (from: { term: bigint; cursor: bigint; version?: number }) =>
    db.database.transaction((client) =>
      moveProjection(client, { ...own, ...from }, { cursor: 5n, leaseMs: 10_000 }),
    );
  expect(await move({ term: 1n, cursor: 0n })).toBe(false);
  expect(await move({ term: 0n, cursor: 1n })).toBe(false);
  expect(await move({ term: 0n, cursor: 0n, version: 2 })).toBe(false);
  expect((await read(own))?.cursor).toBe(0n);
  expect(await move({ term: 0n, cursor: 0n })).toBe(true);
  expect(await read(own)).toMatchObject({ cursor: 5n, term: 0n });
  expect(await move({ term: 0n, cursor: 0n })).toBe(false);
});

test("a stop is recorded under the term that met it, keeps the time of the first, and a move clears it", async () => {
  const own = await start();
  const stop = { token: "t" as FencingToken, event: "pool:locked", error: "no \0" };
  await recordStop(db.database, { ...own, term: 7n }, stop);
  expect(await read(own)).toMatchObject({ stoppedToken: null });
  await recordStop(db.database, { ...own, term: 0n }, stop);
  const stops = () =>
    db.rows(
      "SELECT stopped_event AS event, stopped_error AS error, stopped_at AS at FROM fencepost.projections WHERE name = $1",
      [own.name],
    );
  const first = await stops();
  expect(first).toEqual([{ event: "pool:locked", error: "no \\0", at: expect.any(Date) }]);
  await recordStop(db.database, { ...own, term: 0n }, stop);
  expect(await stops()).toEqual(first);
  await db.database.transaction((client) =>
    moveProjection(client, { ...own, term: 0n, cursor: 0n }, { cursor: 1n, leaseMs: 10_000 }),
  );
  expect(await stops()).toEqual([{ event: null, error: null, at: null }]);
});

test("one version is live at the most", async () => {
  const { name } = await start();
  const second = {
    name,
    version: 2,
    stream: "testnet",
    emitAfter: 0n,
    state: "live",
    fingerprint: "x",
  } as const;
  await expect(db.database.transaction((client) => insertProjection(client, second))).rejects.toThrow(
    "projections_one_live",
  );
});

test("promoting a version retires those below it and bumps their terms, and not those above it", async () => {
  const { name } = await start();
  for (const version of [2, 3, 4]) {
    const row = {
      name,
      version,
      stream: "testnet",
      emitAfter: null,
      state: "building",
      fingerprint: "x",
    } as const;
    await db.database.transaction((client) => insertProjection(client, row));
  }
  await db.database.transaction((client) => promoteProjection(client, { name, version: 3 }, 9n));
  const rows = await db.database.transaction((client) => lockVersions(client, name));
  expect(rows.map(({ version, state, term, emitAfter }) => ({ version, state, term, emitAfter }))).toEqual([
    { version: 4, state: "building", term: 0n, emitAfter: null },
    { version: 3, state: "live", term: 0n, emitAfter: 9n },
    { version: 2, state: "retired", term: 1n, emitAfter: null },
    { version: 1, state: "retired", term: 1n, emitAfter: 0n },
  ]);
  expect(await readLiveCursor(db.database, name)).toBe(0n);
  expect(await readLiveCursor(db.database, "nobody")).toBe(undefined);
  expect(await db.database.transaction((client) => lockProjection(client, name, 9))).toBe(undefined);
});

test("events are read in their order, within bounds, without what is set aside, and with what is to be skipped", async () => {
  const contract = scv.contractId("read");
  const other = scv.contractId("other");
  const event = { contract, topics: [scv.sym("moved")], value: scv.nothing() };
  const [stream] = await db.rows<{ seq: bigint }>("SELECT seq FROM fencepost.streams");
  const start = stream?.seq ?? 0n;
  const tokens = await db.append([
    event,
    { ...event, contract: other },
    event,
    { ...event, value: "garbage" },
    event,
    ...Array.from({ length: 40 }, () => ({ ...event, contract: other })),
    event,
  ]);
  await insertSkip(db.database, "reader", tokens[2] as FencingToken, "a test");
  await insertSkip(db.database, "another", tokens[0] as FencingToken, "a test");
  await db.database.transaction((client) =>
    insertMisfits(client, { name: "reader", version: 1 }, [
      { token: tokens[4] as FencingToken, reason: "nul \0" },
    ]),
  );
  const readAfter = async (after: bigint, limit: number, through = 1_000_000n) => {
    const query = {
      stream: "testnet",
      projection: "reader",
      after: start + after,
      through: start + through,
      limit,
    };
    const { events, lookedThrough } = await readEventsAfter(db.database, {
      ...query,
      contractIds: [contract],
      rules: [],
    });
    return {
      seqs: events.map(({ seq }) => Number(seq - start)),
      skipped: events.filter(({ skipped }) => skipped).length,
      through: lookedThrough - start,
    };
  };
  expect(await readAfter(0n, 100)).toEqual({ seqs: [1, 3, 5, 46], skipped: 1, through: 46n });
  expect(await readAfter(0n, 2)).toEqual({ seqs: [1, 3], skipped: 1, through: 3n });
  expect(await readAfter(3n, 100)).toEqual({ seqs: [5, 46], skipped: 0, through: 46n });
  expect(await readAfter(0n, 100, 4n)).toEqual({ seqs: [1, 3], skipped: 1, through: 4n });
  // Ten times the limit is looked at, however few of it are found.
  expect(await readAfter(5n, 3)).toEqual({ seqs: [], skipped: 0, through: 35n });
  expect(await readAfter(35n, 3)).toEqual({ seqs: [46], skipped: 0, through: 46n });
  expect(await readAfter(46n, 3)).toEqual({ seqs: [], skipped: 0, through: 46n });
  expect(await readAfter(5n, 3, 5n)).toEqual({ seqs: [], skipped: 0, through: 5n });
  expect(await db.rows("SELECT reason FROM fencepost.quarantine WHERE projection = 'reader'")).toEqual([
    { reason: "nul \\0" },
  ]);
});
