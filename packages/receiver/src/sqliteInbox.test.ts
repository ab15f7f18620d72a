import { spawnSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setImmediate as nextTurn } from "node:timers/promises";
import { type EventId, sequenceToken } from "@fencepost/token";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startHandlingProcess } from "./__tests__/handlingProcess.ts";
import { inboxConformance } from "./__tests__/inboxConformance.ts";
import { ATTEMPT_TIME, NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  AttemptFencedError,
  createReceiver,
  InboxBusyError,
  NotInTransactionError,
  type SqliteDatabase,
  sqliteInbox,
  type WebhookMessage,
} from "./index.ts";

let folder: string;
let files = 0;
const open: { close(): unknown }[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fencepost-sqlite-"));
});

afterAll(async () => {
  for (const one of open) await one.close();
  await rm(folder, { recursive: true, force: true });
});

const newPath = () => join(folder, `${++files}.db`);

function inboxAt(path: string, options: { waitMs?: number } = {}) {
  const inbox = sqliteInbox({ path, ...options });
  open.push(inbox);
  return inbox;
}

/** A file with a table for effects, a receiver over it, and a connection of the customer's own. */
function newReceiver(options: { waitMs?: number } = {}) {
  const path = newPath();
  const inbox = inboxAt(path, options);
  const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
  const own = new DatabaseSync(path);
  open.push(own);
  own.exec("CREATE TABLE effects (event_id TEXT)");
  return {
    path,
    own,
    receiver,
    apply: (message: WebhookMessage, tx: SqliteDatabase) => {
      tx.prepare("INSERT INTO effects VALUES (?)").run(message.eventId);
    },
    effects: () => own.prepare("SELECT * FROM effects").all().length,
    ask: async () => {
      const events = [{ eventId: "evt_1" as EventId, before: ATTEMPT_TIME }];
      const query = { type: "webhook.receipt_query" as const, queryId: "query_1", events };
      return (await receiver.answerQuery(query)).events[0]?.status;
    },
  };
}

describe("a SQLite inbox", () => {
  inboxConformance({
    create: async (options) => inboxAt(newPath(), options),
    untilWaiting: async () => nextTurn(), // nothing but promises keeps a transaction from the queue
    transactional: true,
    oneAtATime: true,
  });

  test("has an event's effects and its record in one transaction", async () => {
    const { receiver, apply, effects, own } = newReceiver();
    const failing = receiver.handle(signedRequest({}), async (message, tx) => {
      apply(message, tx);
      await nextTurn();
      throw new Error("no");
    });
    await thrown(() => failing);
    expect(effects()).toBe(0);
    const outcomes = [];
    for (let i = 0; i < 3; i++) outcomes.push((await receiver.handle(signedRequest({}), apply)).outcome);
    expect([outcomes, effects()]).toEqual([["applied", "already", "already"], 1]);
    expect(own.prepare("SELECT * FROM fencepost_inbox").all()).toEqual([
      {
        consumer: "default",
        event_id: "evt_1",
        type: "pool.assets_locked",
        fencing_token: "testnet-20251217-0063092990-0000027-0006-0000000002",
        attempted_at: ATTEMPT_TIME,
        received_at: expect.any(Number),
        fenced_before: null,
        fenced_until: null,
      },
    ]);
  });

  test("does not stop the process while another connection of it writes", async () => {
    const { path, receiver, apply, effects } = newReceiver();
    const other = createReceiver({ secrets: SECRET, inbox: inboxAt(path), now: () => NOW });
    const receipts = await Promise.all(
      Array.from({ length: 6 }, (_, i) =>
        (i % 2 ? receiver : other).handle(signedRequest({}), async (message, tx) => {
          apply(message, tx);
          await nextTurn();
        }),
      ),
    );
    expect(receipts.filter(({ outcome }) => outcome === "applied")).toHaveLength(1);
    expect(effects()).toBe(1);
  });

  test("does not keep a fence when its time is over", async () => {
    const path = newPath();
    const inbox = inboxAt(path);
    for (const [id, seconds] of [
      ["evt_1", 0],
      ["evt_2", 3_901],
    ] as const) {
      const now = new Date(NOW.getTime() + seconds * 1_000);
      const events = [{ eventId: id as EventId, before: ATTEMPT_TIME }];
      await inbox.ask({ consumer: "default", events, now, toleranceSeconds: 300 });
    }
    const own = new DatabaseSync(path);
    open.push(own);
    expect(own.prepare("SELECT event_id FROM fencepost_inbox").all()).toEqual([{ event_id: "evt_2" }]);
  });

  test("opens its file when the folder is there, even if it was not at first", async () => {
    const inbox = inboxAt(join(folder, "later", "inbox.db"));
    expect(await thrown(() => inbox.transaction(async () => {}))).toMatchObject({ code: "ERR_SQLITE_ERROR" });
    const { mkdir } = await import("node:fs/promises");
    await mkdir(join(folder, "later"));
    expect(await inbox.transaction(async () => "done")).toBe("done");
  });

  test("says by name that this Node has no SQLite", () => {
    const module = new URL("./sqliteInbox.ts", import.meta.url).href;
    const script = `import { sqliteInbox } from "${module}";
      await sqliteInbox({ path: ":memory:" }).transaction(async () => {}).catch((e) => console.log(e.name));`;
    const options = ["--no-experimental-sqlite", "--input-type=module", "--eval", script];
    const { stdout } = spawnSync(process.execPath, options, { encoding: "utf8" });
    expect(stdout).toBe("SqliteMissingError\n");
  });
});

describe("a process that is killed while it handles an event in SQLite", () => {
  test("leaves nothing behind: the event is in progress, then fenced off", async () => {
    const { path, receiver, apply, effects, ask } = newReceiver({ waitMs: 50 });
    const handling = await startHandlingProcess("sqlite", path);
    try {
      expect(await ask()).toBe("in_progress");
      expect(await thrown(() => receiver.handle(signedRequest({}), apply))).toBeInstanceOf(InboxBusyError);
    } finally {
      await handling.kill();
    }
    expect(await ask()).toBe("fenced");
    expect(await thrown(() => receiver.handle(signedRequest({}), apply))).toBeInstanceOf(AttemptFencedError);
    const later = signedRequest({ timestamp: ATTEMPT_TIME + 1 });
    expect((await receiver.handle(later, apply)).outcome).toBe("applied");
    expect(effects()).toBe(1);
  });
});

describe("once in a transaction of one's own in SQLite", () => {
  test("leaves the end of the transaction to the caller, and the row and the effect share it", async () => {
    const { own, receiver, apply, effects } = newReceiver();
    for (const [end, outcome, seen] of [
      ["ROLLBACK", "applied", 0],
      ["COMMIT", "applied", 1],
      ["COMMIT", "already", 1],
    ] as const) {
      own.exec("BEGIN");
      expect((await receiver.once(own, signedRequest({}), apply)).outcome).toBe(outcome);
      own.exec(end);
      expect(effects()).toBe(seen);
    }
  });

  test("undoes what a failing handler wrote even if the caller commits the rest", async () => {
    const { own, receiver, apply, effects, ask } = newReceiver();
    own.exec("BEGIN");
    apply(receiver.verify(signedRequest({})), own); // the caller's own
    const failing = receiver.once(own, signedRequest({}), (message, tx) => {
      apply(message, tx);
      throw new Error("no");
    });
    await thrown(() => failing);
    own.exec("COMMIT");
    expect([effects(), await ask()]).toEqual([1, "fenced"]);
  });

  test("refuses a connection without BEGIN, and leaves it so", async () => {
    const { own, receiver, effects } = newReceiver();
    let runs = 0;
    const error = await thrown(() => receiver.once(own, signedRequest({}), () => ++runs));
    expect(error).toBeInstanceOf(NotInTransactionError);
    expect(error).toMatchObject({ eventId: "evt_1", message: expect.stringContaining("BEGIN") });
    own.exec("BEGIN; ROLLBACK");
    expect([runs, effects()]).toEqual([0, 0]);
  });

  test.each(["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])("tells a handler that ended it with %s", async (end) => {
    const { own, receiver } = newReceiver();
    for (const attempt of [
      () => receiver.handle(signedRequest({}), (_, tx) => tx.exec(end)),
      () => {
        own.exec("BEGIN");
        return receiver.once(own, signedRequest({ id: "evt_2" }), (_, tx) => tx.exec(end));
      },
    ]) {
      const error = await thrown(attempt);
      expect(error).toBeInstanceOf(NotInTransactionError);
      expect(error).toMatchObject({ message: expect.stringContaining("ended the transaction") });
    }
  });

  test("is needed for the latest of a key", async () => {
    const { own, receiver } = newReceiver();
    const token = sequenceToken({ stream: "billing", epoch: "20260101", n: 1n });
    const error = await thrown(() => receiver.latest(own, "pool_1", token));
    expect(error).toBeInstanceOf(NotInTransactionError);
    expect(error).toMatchObject({ message: expect.stringContaining("latest() was called") });
    own.exec("BEGIN");
    expect(await receiver.latest(own, "pool_1", token)).toBe("newer");
    own.exec("COMMIT");
  });

  test("sees a fence that came after its snapshot, or keeps it from being made", async () => {
    for (const [mode, said, attempt] of [
      ["WAL", "fenced", InboxBusyError],
      ["DELETE", "in_progress", undefined],
    ] as const) {
      const { own, receiver, apply, effects, ask } = newReceiver({ waitMs: 50 });
      own.exec(`PRAGMA journal_mode = ${mode}`);
      own.exec("BEGIN");
      expect(effects()).toBe(0); // takes the snapshot
      expect(await ask()).toBe(said);
      const once = receiver.once(own, signedRequest({}), apply);
      if (attempt === undefined) expect((await once).outcome).toBe("applied");
      else expect(await thrown(() => once)).toBeInstanceOf(attempt);
      own.exec("COMMIT");
      expect(effects()).toBe(attempt === undefined ? 1 : 0);
      expect(await ask()).toBe(attempt === undefined ? "received" : "fenced");
    }
  });
});
