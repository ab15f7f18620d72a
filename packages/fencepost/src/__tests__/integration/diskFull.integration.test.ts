// A PostgreSQL whose disks really fill up: on one are its data and its log, on another the tables of the engine.
import { appendFile, chown, mkdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { startChain, startRpc } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createLog, defineConfig, openDatabase, prepare, startEngine, stellarRpc } from "../../index.ts";
import { processIdentity } from "../../store/embedded/processIdentity.ts";
import { serverUser } from "../../store/embedded/serverUser.ts";
import { expectedPools, lockAssets, poolsProjection } from "../support/pools.ts";
import { noSmallDisks, type SmallDisks, startSmallDisks } from "../support/smallDisks.ts";
import { waitUntil } from "../support/waitUntil.ts";
import { never } from "../support/windows.ts";

const WORKER = fileURLToPath(new URL("../support/embeddedWorker.ts", import.meta.url));
const MB = 1 << 20;
const PAGE = 4096;
const MAX_ROUNDS = 20;
/** A server and two segments of its log; a database and some thousand events; not even a server. */
const DISKS = { data: 128 * MB, tables: 32 * MB, tiny: MB };

const why = await noSmallDisks();

describe.skipIf(why !== undefined)("a full disk", () => {
  let small: SmallDisks<keyof typeof DISKS>;
  let url: string;
  const closing: (() => Promise<unknown>)[] = [];

  /** Starts the embedded PostgreSQL of a disk: its url, or its error. */
  async function start(disk: keyof typeof DISKS): Promise<{ url?: string; name?: string; message?: string }> {
    return JSON.parse(await small.ask(small.disks[disk].path));
  }

  beforeAll(async () => {
    small = await startSmallDisks(DISKS, [process.execPath, WORKER]);
    url = (await start("data")).url ?? "";
    const { tables } = small.disks;
    const space = join(tables.folder, "space");
    await mkdir(space, { mode: 0o700 });
    const user = await serverUser();
    if (user) await chown(space, user.uid, user.gid);
    await asAdmin(url, `CREATE TABLESPACE small LOCATION '${join(tables.path, "space")}'`);
  });
  beforeEach(async () => {
    expect(await start("data")).toEqual({ url });
  });
  afterEach(async () => {
    for (const close of closing.splice(0).reverse()) await close();
  });
  afterAll(() => small?.close());

  /** An engine on a database of its own, whose tables are on the disk for them. */
  async function startLine() {
    await asAdmin(url, "CREATE DATABASE line TABLESPACE small TEMPLATE template0");
    closing.push(() => asAdmin(url, "DROP DATABASE line WITH (FORCE)"));
    const chain = startChain();
    lockAssets(chain, 100);
    const rpc = await startRpc({ chain });
    closing.push(rpc.close);
    const database = openDatabase(Object.assign(new URL(url), { pathname: "/line" }).href);
    closing.push(database.close);
    const source = stellarRpc({ network: "testnet", urls: rpc.url, pollMs: 20 });
    const config = defineConfig({ source, projections: [poolsProjection()] });
    await prepare({ database, config }, { adopt: false, rebuildChanged: false, signal: never });
    const log: { loop?: string; err?: { type: string; message: string } }[] = [];
    const engine = await startEngine({
      database,
      config,
      log: createLog("warn", { write: (line) => log.push(JSON.parse(line)) }),
    });
    closing.push(engine.stop);

    const tokensBefore = (ledger: number): readonly string[] =>
      [...chain.events()]
        .filter((row) => row.ledger < ledger)
        .map((row) => tokenFromRpcId(source.chain, row.id));
    const failures = () => log.flatMap(({ loop, err }) => (loop === "ingest testnet" && err ? [err] : []));
    /** Whether the whole chain is stored, and more. False where the database does not answer. */
    const isDone = (more: string): Promise<boolean> =>
      database
        .query(
          `SELECT FROM fencepost.streams s, fencepost.projections p WHERE s.next_ledger > $1 AND ${more}`,
          [chain.latest],
        )
        .then(
          ({ rows }) => rows.length === 1,
          () => false,
        );
    return {
      chain,
      failures,
      /** Fails unless what is there is whole: events up to the cursor, rows and messages of those projected. */
      async expectNothingHalf() {
        const { rows } = await database.query(
          `SELECT s.next_ledger::int AS next, s.seq::int AS seq, p.cursor::int AS cursor, p.stopped_token AS stopped,
                  (SELECT coalesce(array_agg(token ORDER BY seq), '{}') FROM fencepost.events) AS tokens,
                  (SELECT count(*)::int FROM fencepost.messages) AS messages,
                  (SELECT json_agg(json_build_object('id', id, 'locked', locked::text, 'events', events::text)
                     ORDER BY id) FROM pools.pools) AS pools
           FROM fencepost.streams s, fencepost.projections p`,
        );
        const stored = rows[0];
        const { next, cursor } = stored ?? {};
        const tokens = tokensBefore(next);
        expect(stored).toEqual({
          next,
          seq: tokens.length,
          tokens,
          cursor,
          stopped: null,
          messages: cursor,
          pools: expectedPools(cursor),
        });
        return { nextLedger: next as number, projected: cursor === tokens.length };
      },
      settled: () =>
        waitUntil(() => isDone("p.cursor = s.seq"), {
          what: "everything is stored and projected",
          timeoutMs: 40_000,
        }),
      /** Closes ledgers with so many events, stored each time, until one cannot be. `before` is run before each. */
      async closeUntilFailure(events: number, before: () => Promise<unknown> = async () => {}) {
        for (let rounds = 0; failures().length === 0; rounds++) {
          if (rounds === MAX_ROUNDS) throw new Error("The disk is not full.");
          await before();
          lockAssets(chain, events);
          await waitUntil(async () => failures().length > 0 || (await isDone("true")), {
            what: "the ledgers are stored, or cannot be",
          });
        }
      },
    };
  }

  test("of the tables stops ingest by name, with nothing half-stored, until there is room again", async () => {
    const line = await startLine();
    await line.settled();
    await small.disks.tables.fill(64 * PAGE);
    await line.closeUntilFailure(100);
    await waitUntil(() => line.failures().length >= 3, { what: "ingest has tried again" });
    for (const { type, message } of line.failures()) {
      expect(type).toBe("DatabaseFullError");
      expect(message).toMatch(
        /^The disk of PostgreSQL at 127\.0\.0\.1:\d+\/line is full: could not extend file .*space/,
      );
    }
    const full = await line.expectNothingHalf();
    expect(full.nextLedger).toBeGreaterThan(6); // some of it went in before
    expect(full.nextLedger).toBeLessThanOrEqual(line.chain.latest);
    await small.disks.tables.free();
    await line.settled();
    expect(await line.expectNothingHalf()).toEqual({ nextLedger: line.chain.latest + 1, projected: true });
  });

  test("of its log ends the server, and the engine goes on when that is started again", async () => {
    const line = await startLine();
    await line.settled();
    await small.disks.data.fill();
    await line.closeUntilFailure(40, () => asAdmin(url, "SELECT pg_switch_wal()").catch(() => {}));
    await waitUntil(() => line.failures().some(({ message }) => message.includes("ECONNREFUSED")), {
      what: "the server is gone",
    });
    for (const { type } of line.failures()) {
      expect(["DatabaseFullError", "ConnectionLostError", "DatabaseUnreachableError"]).toContain(type);
    }
    await small.disks.data.free();
    expect(await start("data")).toEqual({ url });
    await line.settled();
    expect(await line.expectNothingHalf()).toEqual({ nextLedger: line.chain.latest + 1, projected: true });
  });

  test("is why the embedded server does not start, also where it has no room to say so", async () => {
    const refused = {
      name: "EmbeddedPostgresStartError",
      message: expect.stringMatching(
        /No space left on device[\s\S]*\nThe disk is full: free some space and try again\.$/,
      ),
    };
    expect(await start("tiny")).toEqual(refused);

    const { data } = small.disks;
    const pid = Number.parseInt(await readFile(join(data.folder, "data", "postmaster.pid"), "utf8"), 10);
    process.kill(pid, "SIGINT");
    await waitUntil(async () => (await processIdentity(pid)) === undefined, {
      what: "the server is stopped",
    });
    const log = join(data.folder, "server.log");
    await appendFile(log, "\n".repeat(PAGE - ((await stat(log)).size % PAGE)));
    await data.fill(PAGE); // for the lock of its folder
    expect(await start("data")).toEqual(refused);
    await data.free();
  });
});

async function asAdmin(url: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  client.on("error", () => {}); // a server that ends cuts it off
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end().catch(() => {});
  }
}
