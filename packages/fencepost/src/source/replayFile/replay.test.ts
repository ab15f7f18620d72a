import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { formatRpcId } from "@fencepost/token";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { never, windowOf } from "../../__tests__/support/windows.ts";
import { ChainResetError, WrongNetworkError } from "../errors.ts";
import { readAhead } from "../readAhead.ts";
import type { Source, SourceEvent } from "../source.ts";
import { ContractNotRecordedError, ReplayFileError } from "./errors.ts";
import { endLine, eventLine, headerLine } from "./fileFormat.ts";
import { replay } from "./replay.ts";

const A = "CA";
const B = "CB";
const HEADER = {
  stream: "testnet",
  epoch: "20251217",
  passphrase: "Test SDF Network ; September 2015",
  fromLedger: 10,
  throughLedger: 100,
  contracts: [
    { id: A, startLedger: 1 },
    { id: B, startLedger: 50 },
  ],
  gaps: [{ fromLedger: 70, throughLedger: 79 }],
};

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "fencepost-replay-"));
});
afterAll(() => rm(folder, { recursive: true }));

const closedAt = (ledger: number) => new Date(1_766_000_000_000 + ledger * 5_000).toISOString();

function eventOf(ledger: number, more: Partial<SourceEvent> = {}): SourceEvent {
  return {
    id: formatRpcId({ ledger, tx: 1, op: 0, event: 0 }),
    type: "contract",
    ledger,
    closedAt: closedAt(ledger),
    contractId: A,
    txHash: "ab".repeat(32),
    topics: ["AAAADwAAAAZsb2NrZWQAAA=="],
    value: "AAAAAwAAAAE=",
    ...more,
  };
}

let files = 0;
async function fileOf(lines: readonly string[]): Promise<string> {
  const path = join(folder, `${files++}.ndjson`);
  await writeFile(path, lines.join(""));
  return path;
}
const open = (path: string): Source => replay({ path, network: "testnet" });
async function recordedOf(events: readonly SourceEvent[], header = HEADER): Promise<Source> {
  return open(await fileOf([headerLine(header), ...events.map(eventLine), endLine(events.length)]));
}
const ledgersIn = (answer: Parameters<typeof windowOf>[0]) =>
  windowOf(answer).events.map(({ ledger }) => ledger);

describe("a recorded file", () => {
  test("answers about ledgers as any source does", async () => {
    const source = await recordedOf([
      eventOf(12),
      eventOf(12, { id: formatRpcId({ ledger: 12, tx: 2, op: 0, event: 0 }), contractId: B }),
      eventOf(60),
    ]);
    const ask = (fromLedger: number, more: object = {}) =>
      source.window({ fromLedger, contractIds: [A], ...more }, never);
    const head = { latestLedger: 100, oldestLedger: 10 };
    expect(await source.check(never)).toEqual(head);
    expect(await ask(1)).toEqual({ kind: "gap", fromLedger: 1, throughLedger: 9, ...head });
    expect(await ask(10)).toEqual({
      kind: "window",
      fromLedger: 10,
      throughLedger: 69,
      events: [eventOf(12), eventOf(60)],
      ...head,
    });
    expect(await ask(70)).toEqual({ kind: "gap", fromLedger: 70, throughLedger: 79, ...head });
    expect(await ask(75, { throughLedger: 77 })).toMatchObject({ fromLedger: 75, throughLedger: 77 });
    expect(await ask(80)).toMatchObject({ kind: "window", throughLedger: 100, events: [] });
    expect(await ask(101)).toEqual({ kind: "idle", ...head });
    expect(await ask(102)).toEqual({ kind: "behind", ...head });
    expect(await ask(13, { throughLedger: 60 })).toMatchObject({ events: [eventOf(60)] });
    expect(await ask(10, { throughLedger: 11 })).toMatchObject({ throughLedger: 11, events: [] });
    await expect(source.window({ fromLedger: 10, contractIds: [A, "CX"] }, never)).rejects.toThrow(
      ContractNotRecordedError,
    );
  });

  test("has a gap before the start of a contract, unless it is wanted only from there", async () => {
    const source = await recordedOf([eventOf(12), eventOf(55, { contractId: B })]);
    const request = { fromLedger: 10, contractIds: [A, B] };
    expect(await source.window(request, never)).toMatchObject({
      kind: "gap",
      fromLedger: 10,
      throughLedger: 49,
    });
    const startLedgers = new Map([[B, 50]]);
    expect(ledgersIn(await source.window({ ...request, startLedgers }, never))).toEqual([12, 55]);
    const early = new Map([[B, 40]]);
    const window = await source.window({ ...request, startLedgers: early }, never);
    expect(window).toMatchObject({ kind: "window", throughLedger: 39 });
    expect(await source.window({ ...request, fromLedger: 40, startLedgers: early }, never)).toMatchObject({
      kind: "gap",
      throughLedger: 49,
    });
  });

  test("is read in windows that end with a ledger, from wherever it is asked", async () => {
    const header = { ...HEADER, fromLedger: 1, throughLedger: 3_000, gaps: [] };
    const events = Array.from({ length: 9_000 }, (_, i) => {
      const ledger = 1 + Math.floor(i / 3);
      return eventOf(ledger, { id: formatRpcId({ ledger, tx: 1, op: 0, event: i % 3 }) });
    });
    const source = await recordedOf(events, header);
    const windows = readAhead(source, { fromLedger: 1, throughLedger: 3_000, contractIds: [A] }, never);
    const read: SourceEvent[] = [];
    const sizes: number[] = [];
    while (windows.hasNext) {
      const window = windowOf(await windows.next());
      read.push(...window.events);
      sizes.push(window.events.length);
      expect(window.events.at(-1)?.ledger).toBe(window.throughLedger);
    }
    expect(read).toEqual(events);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(2_002);
    for (const ledger of [2_500, 1, 700, 699, 3_000, 1_334]) {
      const window = windowOf(
        await source.window({ fromLedger: ledger, throughLedger: ledger, contractIds: [A] }, never),
      );
      expect(window.events, `ledger ${ledger}`).toEqual(events.slice(3 * ledger - 3, 3 * ledger));
    }
  });

  test("of the same ledgers with other close times is another life of the chain", async () => {
    const source = await recordedOf([eventOf(12), eventOf(60)]);
    const anchor = { ledger: 50, hash: null, closedAt: Date.parse(closedAt(50)) / 1_000 };
    const request = { fromLedger: 10, contractIds: [A] };
    expect(await source.window({ ...request, anchor }, never)).toMatchObject({ kind: "window" });
    await source.check(never, anchor);
    const later = { ...anchor, closedAt: anchor.closedAt + 1_000 };
    expect(await source.window({ ...request, anchor: later }, never)).toMatchObject({
      kind: "reset",
      found: { ledger: 60 },
    });
    const other = { ledger: 60, hash: null, closedAt: 1 };
    await expect(source.check(never, other)).rejects.toThrow(ChainResetError);
  });
});

describe("a recorded file is refused", () => {
  const good = [headerLine(HEADER), eventLine(eventOf(12)), eventLine(eventOf(60)), endLine(2)];
  const changed = (line: number, text: string) => good.map((each, i) => (i === line ? text : each));
  test.each([
    ["empty", [], "cut off", 0],
    ["without a header", good.slice(1), "garbled", 0],
    ["of another epoch", changed(0, headerLine({ ...HEADER, epoch: "20261216" })), "of another chain", 0],
    ["with a line that is no JSON", changed(1, "{]\n"), "garbled", 1],
    ["with a line that is no event", changed(1, '{"id":"1"}\n'), "garbled", 1],
    ["with a value that is no base64", changed(2, eventLine(eventOf(60, { value: "%" }))), "garbled", 2],
    ["with an id of another ledger", changed(2, eventLine({ ...eventOf(60), ledger: 61 })), "garbled", 2],
    ["with two lines the wrong way round", [good[0], good[2], good[1], good[3]], "out of order", 2],
    ["with a line twice", [good[0], good[1], good[1], good[2], good[3]], "out of order", 2],
    ["with a ledger beyond its range", changed(2, eventLine(eventOf(101))), "of another chain", 2],
    ["cut off between two lines", good.slice(0, 2), "cut off", 1],
    ["cut off in a line", [...good.slice(0, 2), good[2]?.slice(0, 20)], "cut off", 2],
    ["with a line taken out", [good[0], good[2], good[3]], "cut off", 2],
  ])("%s, by name and place, and nothing of it is given", async (_, lines, fault, line) => {
    const path = await fileOf(lines.map(String));
    const source = open(path);
    const offset = lines.slice(0, line).map(String).join("").length;
    const read = source
      .window({ fromLedger: 10, throughLedger: 65, contractIds: [A] }, never)
      .then(() => source.window({ fromLedger: 80, contractIds: [A] }, never));
    await expect(read).rejects.toThrow(ReplayFileError);
    await expect(read).rejects.toMatchObject({ path, fault, offset });
  });

  test("of another network, or where it is not there or no file", async () => {
    const path = await fileOf(good);
    await expect(replay({ path, network: "pubnet" }).check(never)).rejects.toThrow(WrongNetworkError);
    for (const [name, code] of [
      ["none", "ENOENT"],
      [".", "EISDIR"],
    ] as const) {
      const missing = join(folder, name);
      await expect(open(missing).check(never)).rejects.toMatchObject({
        name: "ReplayFileUnreadableError",
        message: expect.stringMatching(
          `^The recorded file ${missing} cannot be read: ${code}: .* Check the path`,
        ),
      });
    }
  });
});
