import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createTestDatabase } from "../../__tests__/support/testDatabase.ts";
import { type Database, openDatabase } from "./database.ts";
import { acceptGaps, healGaps, insertGap, readGaps } from "./gaps.ts";
import { migrate } from "./migrate.ts";
import { readStreams } from "./status.ts";
import { insertStream } from "./streams.ts";

const CHAIN = { stream: "testnet", epoch: "20251217" };
const closing: (() => Promise<void>)[] = [];
let database: Database;

beforeAll(async () => {
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  database = openDatabase(testDatabase.url);
  closing.push(database.close);
  await migrate(database);
  await database.transaction((client) =>
    insertStream(client, { ...CHAIN, passphrase: "test", nextLedger: 1, filtersHash: "" }),
  );
});
afterAll(async () => {
  for (const close of closing.reverse()) await close();
});
beforeEach(() => database.query("TRUNCATE fencepost.gaps; UPDATE fencepost.streams SET halted = NULL"));

const name = (fromLedger: number, throughLedger: number, accepted = false) =>
  database.transaction((client) => insertGap(client, CHAIN, { fromLedger, throughLedger }, accepted));
const heal = (fromLedger: number, throughLedger: number, { by = "lake", accepted = true } = {}) =>
  database.transaction((client) => healGaps(client, CHAIN, { fromLedger, throughLedger }, { by, accepted }));

/** `from-through`, with what became of it. */
async function gaps(): Promise<string[]> {
  const all = await readGaps(database);
  return all
    .map(({ fromLedger, throughLedger, acceptedAt, healedBy }) => {
      const state = healedBy ?? (acceptedAt ? "accepted" : "open");
      return `${fromLedger}-${throughLedger} ${state}`;
    })
    .sort((a, b) => Number.parseInt(a, 10) - Number.parseInt(b, 10));
}

describe("naming a hole", () => {
  test("again says whether it is more than before", async () => {
    expect(await name(4, 9)).toBe(true);
    expect(await name(4, 9)).toBe(false);
    expect(await name(4, 12)).toBe(true);
    expect(await gaps()).toEqual(["4-12 open"]);
  });

  test("that became smaller, before the stream went on, keeps what is missing now", async () => {
    await name(4, 9);
    expect(await name(4, 6)).toBe(true);
    expect(await gaps()).toEqual(["4-6 open"]);
    await name(4, 5, true);
    expect(await gaps()).toEqual(["4-5 accepted"]);
    await name(4, 8, true); // another contract's
    await name(4, 6, true);
    expect(await gaps()).toEqual(["4-8 accepted"]);
  });

  test("stops the stream, unless the owner goes on beyond it", async () => {
    const halted = async () =>
      (await database.query("SELECT halted FROM fencepost.streams")).rows[0]?.["halted"];
    await name(4, 9, true);
    expect(await halted()).toBeNull();
    await name(14, 19);
    expect(await halted()).toBe("gap");
  });

  test("that was healed once is a new hole", async () => {
    await name(4, 9);
    await heal(4, 9);
    expect(await name(4, 6)).toBe(true);
    expect((await gaps()).sort()).toEqual(["4-6 open", "4-9 lake"]);
  });
});

describe("healing", () => {
  test.each<[string, [number, number], string[], number]>([
    ["all of it", [10, 20], ["10-20 lake"], 11],
    ["more than it", [5, 40], ["10-20 lake"], 11],
    ["its beginning", [1, 12], ["10-12 lake", "13-20 accepted"], 3],
    ["its end", [15, 30], ["10-14 accepted", "15-20 lake"], 6],
    ["its middle", [14, 14], ["10-13 accepted", "14-14 lake", "15-20 accepted"], 1],
    ["what is before it", [1, 9], ["10-20 accepted"], 0],
    ["what is after it", [21, 30], ["10-20 accepted"], 0],
  ])("%s", async (_, [from, through], expected, healed) => {
    await name(10, 20, true);
    expect(await heal(from, through)).toBe(healed);
    expect(await gaps()).toEqual(expected);
  });

  test("window by window is one row for each source", async () => {
    await name(10, 20, true);
    for (let ledger = 10; ledger <= 15; ledger++) await heal(ledger, ledger);
    await heal(16, 18, { by: "archive" });
    expect(await gaps()).toEqual(["10-15 lake", "16-18 archive", "19-20 accepted"]);
  });

  test("holes that overlap counts each ledger once, and leaves what is left of both", async () => {
    await name(10, 20, true);
    await name(8, 25, true);
    expect(await heal(12, 14)).toBe(3);
    expect((await gaps()).filter((gap) => gap.endsWith("accepted"))).toEqual([
      "8-11 accepted",
      "10-11 accepted",
      "15-25 accepted",
    ]);
  });

  test("without every contract leaves the holes that the stream went beyond", async () => {
    await name(10, 20, true);
    await name(30, 40);
    expect(await heal(1, 50, { accepted: false })).toBe(11);
    expect(await gaps()).toEqual(["10-20 accepted", "30-40 lake"]);
  });

  test("takes the ledgers out of what the status says is missing", async () => {
    await name(10, 20, true);
    await heal(14, 20);
    const streams = await readStreams(database);
    expect(streams[0]?.gaps).toEqual([{ fromLedger: 10, toLedger: 13, accepted: true }]);
  });

  test("is of one life of the chain", async () => {
    await name(10, 20);
    const other = { ...CHAIN, epoch: "20260617" };
    const range = { fromLedger: 1, throughLedger: 50 };
    await database.transaction((client) => healGaps(client, other, range, { by: "lake", accepted: true }));
    expect(await gaps()).toEqual(["10-20 open"]);
    await database.transaction((client) => acceptGaps(client, CHAIN));
    expect(await gaps()).toEqual(["10-20 accepted"]);
  });
});
