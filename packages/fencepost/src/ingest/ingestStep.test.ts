import { type Chain, type EventSpec, scv, startChain } from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { never } from "../__tests__/support/windows.ts";
import { StaleTermError } from "../lease/term.ts";
import { createLog } from "../observe/log.ts";
import type { Source, WindowRequest } from "../source/source.ts";
import { CommitBecameRollbackError } from "../store/postgres/errors.ts";
import { readGaps } from "../store/postgres/gaps.ts";
import { EventConflictError, FilterSetChangedError, GapError } from "./errors.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");
const C = scv.contractId("c");

const MAX_STEPS = 1_000;
let bench: IngestBench;
afterEach(() => bench.close());

const event = (contract: string, fields: Partial<EventSpec> = {}): EventSpec => ({
  contract,
  topics: [scv.sym("locked")],
  value: scv.u32(1),
  ...fields,
});

/** Each ledger has two events of A and one of B. */
function closeLedgers(chain: Chain, count: number, value = scv.u32(1)): void {
  for (let i = 0; i < count; i++) {
    chain.close({ events: [event(A, { value }), event(B, { tx: 2, value }), event(A, { tx: 3, value })] });
  }
}

const from = (startLedger: number | "latest" | "oldest", ...contractIds: string[]) =>
  contractIds.map((contractId) => ({ contractId, startLedger }));

const tokens = async () => (await bench.stored()).map((row) => row.token);
const rows = async (sql: string) => (await bench.database.query(sql)).rows;

async function expectGaplessSeq(): Promise<void> {
  const stored = await bench.stored();
  expect(stored.map((row) => row.seq)).toEqual(stored.map((_, i) => BigInt(i + 1)));
  expect((await bench.stream()).seq).toBe(BigInt(stored.length));
}

/** The same source, with something happening after a window was read and before it is committed. */
function withBetween(source: Source, between: () => Promise<unknown>): Source {
  return {
    ...source,
    async window(request, signal) {
      const answer = await source.window(request, signal);
      await between();
      return answer;
    },
  };
}

describe("a window", () => {
  test("is stored with its cursor, its events in chain order under a seq without holes", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 7);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    expect(await bench.step(term)).toBe("progress");
    expect(await bench.step(term)).toBe("idle");
    closeLedgers(bench.chain, 2);
    await bench.catchUp(term);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    expect(await bench.stream()).toMatchObject({ nextLedger: 10, latestLedger: 9, halted: null });
    expect((await bench.stored()).every((row) => !row.late)).toBe(true);
    await expectGaplessSeq();
  });

  test("that is read again stores nothing new, and gives no seq away", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    await bench.catchUp(term);
    const before = await rows("SELECT * FROM fencepost.events ORDER BY seq");
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 3");
    closeLedgers(bench.chain, 1);
    const reports: object[] = [];
    await bench.catchUp(term, { onStored: (report) => reports.push(report) });
    expect(reports).toEqual([{ events: 2, replayed: 6, ledger: 6 }]);
    expect((await rows("SELECT * FROM fencepost.events ORDER BY seq")).slice(0, before.length)).toEqual(
      before,
    );
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    await expectGaplessSeq();
  });

  test("in which a source repeats itself stores each event once, and leaves no hole in seq", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 3);
    await bench.watch(from(1, A));
    const doubling: Source = {
      ...bench.source,
      async window(request, signal) {
        const answer = await bench.source.window(request, signal);
        return answer.kind === "window"
          ? { ...answer, events: answer.events.flatMap((e) => [e, e]) }
          : answer;
      },
    };
    const term = await bench.lead();
    await bench.catchUp(term, { source: doubling });
    closeLedgers(bench.chain, 1);
    await bench.catchUp(term, { source: doubling });
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    await expectGaplessSeq();
  });

  test("goes by ledgers and not by time: those that closed in one second are told apart, also after a restart", async () => {
    bench = await openIngest();
    const closedAt = bench.chain.close().closedAt;
    for (let i = 0; i < 9; i++) bench.chain.close({ events: [event(A), event(A, { tx: 2 })], closedAt });
    bench.rpc.node.scanLimit = 2;
    await bench.watch(from(1, A));
    const source = bench.openSource({ pageLimit: 1 });
    for (let i = 0; i < 20; i++) await bench.step(await bench.lead(), { source });
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  });

  test("of which the database refuses one event is not stored, and the cursor stays before it", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    await bench.database.query("ALTER TABLE fencepost.events ADD CONSTRAINT refused CHECK (ledger <> 3)");
    await expect(bench.step(term)).rejects.toThrow(/refused/);
    expect(await tokens()).toEqual([]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 1, seq: 0n });
    await bench.database.query("ALTER TABLE fencepost.events DROP CONSTRAINT refused");
    await bench.catchUp(term);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    await expectGaplessSeq();
  });

  test("begins at each contract's own start ledger", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 6);
    bench.chain.retain(4); // 3 to 6
    await bench.watch([...from("oldest", A), ...from(5, B), ...from("latest", C)]);
    bench.chain.retain(100);
    closeLedgers(bench.chain, 1);
    bench.chain.close({ events: [event(C)] });
    await bench.catchUp(await bench.lead());
    const expected = [
      ...bench.tokensOnChain([A], 3),
      ...bench.tokensOnChain([B], 5),
      ...bench.tokensOnChain([C]),
    ];
    expect(await tokens()).toEqual(expected.sort());
  });
});

describe("an event that cannot be decoded", () => {
  test("is stored raw and set aside with its reason, and blocks nothing", async () => {
    bench = await openIngest();
    const deep = Buffer.concat([
      ...Array.from({ length: 5_000 }, () => Buffer.from([0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1])),
      Buffer.from(scv.u32(1), "base64"),
    ]).toString("base64");
    const bad = [
      event(A, { value: "not base64!" }),
      event(A, { value: "AAAA" }),
      event(A, {
        value: Buffer.concat([Buffer.from(scv.u32(1), "base64"), Buffer.alloc(4)]).toString("base64"),
      }),
      event(A, { topics: [scv.sym("locked"), "AAAAY2M="] }),
      event(A, { value: Buffer.from([0, 0, 0, 99]).toString("base64") }),
      event(A, { value: deep }),
    ];
    bench.chain.close({ events: [event(A), ...bad, event(A)] });
    closeLedgers(bench.chain, 1);
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    const quarantine = (await rows("SELECT * FROM fencepost.quarantine ORDER BY token")) as {
      token: string;
      projection: string;
      reason: string;
    }[];
    expect(quarantine.map((row) => row.token)).toEqual(bench.tokensOnChain([A]).slice(1, 7));
    expect(quarantine.map((row) => row.projection)).toEqual(Array(6).fill(""));
    expect(quarantine.map((row) => row.reason)).toEqual([
      "value: invalid base64 input",
      expect.stringMatching(/^value: .*incomplete/),
      expect.stringMatching(/^value: .*trailing 4 byte/),
      expect.stringMatching(/^topic 1: /),
      expect.stringMatching(/^value: .*unknown enum value 99/),
      expect.stringMatching(/^value: .*depth/),
    ]);
    for (const { reason } of quarantine) expect(reason.length).toBeLessThan(350);
    const raw = await rows("SELECT topics, value FROM fencepost.events ORDER BY seq OFFSET 1 LIMIT 6");
    expect(raw).toEqual(bad.map(({ topics, value }) => ({ topics, value })));
  });
});

describe("the same token with other content", () => {
  test("is committed to conflicts, stores nothing else of its window, and stops the stream", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 3);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    await bench.catchUp(term);
    const before = await tokens();

    const other = startChain();
    closeLedgers(other, 2);
    closeLedgers(other, 3, scv.u32(2));
    bench.rpc.node.chain = other;
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 2");
    await expect(bench.step(term)).rejects.toThrow(EventConflictError);
    const conflict = bench.tokensOnChain([A], 3)[0];
    expect(await tokens()).toEqual(before);
    expect(await rows("SELECT token, seen ->> 'value' AS value FROM fencepost.conflicts")).toEqual([
      { token: conflict, value: scv.u32(2) },
    ]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 2, halted: "conflict" });

    expect(await bench.step(term)).toEqual({ waitMs: 5_000 });
    expect(await bench.step(await bench.lead())).toEqual({ waitMs: 5_000 }); // a successor does not go on either
    expect(await tokens()).toEqual(before);

    // A person has looked at it: the node is replaced, and the stream goes on where it stopped.
    bench.rpc.node.chain = bench.chain;
    closeLedgers(bench.chain, 1);
    await bench.database.query("UPDATE fencepost.streams SET halted = NULL");
    await bench.catchUp(await bench.lead());
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    await expectGaplessSeq();
  });

  test("is found also inside of one window", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 1);
    await bench.watch(from(1, A));
    const two: Source = {
      ...bench.source,
      async window(request, signal) {
        const answer = await bench.source.window(request, signal);
        const [first] = answer.kind === "window" ? answer.events : [];
        return answer.kind === "window" && first
          ? { ...answer, events: [...answer.events, { ...first, txHash: "00".repeat(32) }] }
          : answer;
      },
    };
    await expect(bench.step(await bench.lead(), { source: two })).rejects.toThrow(EventConflictError);
    expect(await rows("SELECT count(*)::int AS n FROM fencepost.conflicts")).toEqual([{ n: 1 }]);
    expect(await tokens()).toEqual([]);
  });

  test("stays an alarm that a commit of another leader does not clear", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 2);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    const halt = () => bench.database.query("UPDATE fencepost.streams SET halted = 'conflict'");
    await bench.step(term, { source: withBetween(bench.source, halt) });
    expect((await bench.stream()).halted).toBe("conflict");
  });
});

describe("a gap", () => {
  async function fallBehind(): Promise<bigint> {
    bench = await openIngest();
    closeLedgers(bench.chain, 3);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    await bench.catchUp(term);
    closeLedgers(bench.chain, 10);
    bench.chain.retain(4); // 10 to 13
    return term;
  }
  const gaps = () =>
    rows(
      "SELECT from_ledger::int AS f, to_ledger::int AS t, accepted_at IS NOT NULL AS accepted FROM fencepost.gaps WHERE healed_at IS NULL",
    );

  test("is named and stops the stream, which looks again until a source has the ledgers", async () => {
    const term = await fallBehind();
    await expect(bench.step(term)).rejects.toThrow(GapError);
    await expect(bench.step(term)).rejects.toThrow(/no longer has ledgers 4 to 9/);
    expect(await gaps()).toEqual([{ f: 4, t: 9, accepted: false }]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 4, halted: "gap" });

    closeLedgers(bench.chain, 1);
    await expect(bench.step(term)).rejects.toThrow(GapError);
    expect(await gaps()).toEqual([{ f: 4, t: 10, accepted: false }]);

    bench.chain.retain(100);
    await bench.catchUp(term);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    expect(await gaps()).toEqual([]);
    expect(await readGaps(bench.database)).toMatchObject([
      { fromLedger: 4, throughLedger: 10, acceptedAt: null, healedBy: bench.source.name },
    ]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 15, halted: null });
  });

  test("is told when it is found and when it grows, and not at every look", async () => {
    const term = await fallBehind();
    const found: object[] = [];
    const lines: string[] = [];
    const over = {
      onGapFound: (gap: object) => found.push(gap),
      log: createLog("error", { write: (line) => lines.push(line) }),
    };
    for (const closed of [0, 0, 2, 0]) {
      closeLedgers(bench.chain, closed);
      await expect(bench.step(term, over)).rejects.toThrow(GapError);
    }
    expect(found).toEqual([
      { fromLedger: 4, throughLedger: 9, accepted: false },
      { fromLedger: 4, throughLedger: 11, accepted: false },
    ]);
    expect(lines).toHaveLength(2);
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({ msg: "gap in the source", fromLedger: 4 });
  });

  test.each(["error", "empty"] as const)(
    "is found at the first poll after it opened, also by a provider that answers expired cursors with: %s",
    async (expired) => {
      const term = await fallBehind();
      bench.rpc.node.expired = expired;
      await expect(bench.step(term)).rejects.toThrow(/no longer has ledgers 4 to 9/);
      expect(await bench.stored()).toHaveLength(6);
    },
  );

  test("is passed, and stays named, where the owner said to go on", async () => {
    const term = await fallBehind();
    await expect(bench.step(term)).rejects.toThrow(GapError);
    await bench.catchUp(term, { onGap: "continue" });
    expect(await gaps()).toEqual([{ f: 4, t: 9, accepted: true }]);
    expect(await tokens()).toEqual([
      ...bench.tokensOnChain([A]).slice(0, 6),
      ...bench.tokensOnChain([A], 10),
    ]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 14, halted: null });
    await expectGaplessSeq();
  });

  test("is none where only ledgers have gone that were finished", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 3);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    await bench.catchUp(term);
    closeLedgers(bench.chain, 4);
    bench.chain.retain(4); // 4 to 7
    await bench.catchUp(term);
    expect(await gaps()).toEqual([]);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  });

  test("in the past of an added contract does not hold up the others, and is passed on request", async () => {
    await fallBehind();
    bench.chain.retain(100);
    let term = await bench.lead();
    await bench.catchUp(term);
    bench.chain.retain(4);
    await bench.watch([...from(1, A), ...from(2, B)], { adopt: true });
    term = await bench.lead();
    await expect(bench.step(term)).rejects.toThrow(GapError);
    expect(await gaps()).toEqual([{ f: 2, t: 9, accepted: false }]);
    closeLedgers(bench.chain, 1);
    await expect(bench.step(term)).rejects.toThrow(GapError);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));

    await bench.catchUp(term, { onGap: "continue" });
    expect(await gaps()).toEqual([{ f: 2, t: 10, accepted: true }]);
    expect((await tokens()).sort()).toEqual(
      [...bench.tokensOnChain([A]), ...bench.tokensOnChain([B], 11)].sort(),
    );
    expect(await rows("SELECT next_ledger FROM fencepost.watches WHERE next_ledger IS NOT NULL")).toEqual([]);
  });
});

describe("contracts added later", () => {
  test.each([
    ["one before the other", [[A], [A, B]]],
    ["the other way round", [[B], [B, A]]],
    ["both at once", [[C], [A, B, C]]],
    ["one after the other", [[C], [C, A], [C, A, B]]],
    ["and one taken away and added again", [[A, B], [B], [A, B]]],
  ])("lose and repeat nothing: %s", async (_, sets) => {
    bench = await openIngest();
    closeLedgers(bench.chain, 6);
    for (const set of sets) {
      await bench.watch(from(2, ...set), { adopt: true });
      closeLedgers(bench.chain, 2);
      await bench.step(await bench.lead());
      closeLedgers(bench.chain, 1);
    }
    await bench.catchUp(await bench.lead());
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A, B, C], 2));
    await expectGaplessSeq();
    expect(await rows("SELECT DISTINCT next_ledger FROM fencepost.watches")).toEqual([{ next_ledger: null }]);
  });

  test("are marked late, in a seq after what was stored before", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 4);
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    await bench.watch([...from(1, A), ...from(3, B)], { adopt: true });
    closeLedgers(bench.chain, 1);
    await bench.catchUp(await bench.lead());
    const stored = await bench.stored();
    const late = stored.filter((row) => row.late).map((row) => row.token);
    expect(late).toEqual(bench.tokensOnChain([B], 3));
    expect(stored.slice(-late.length).map((row) => row.token)).toEqual(late);
  });

  test("join at once where they start at or after the stream's cursor", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 4);
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    await bench.watch([...from(1, A), ...from(7, B), ...from(5, C)], { adopt: true });
    expect(await rows("SELECT DISTINCT next_ledger FROM fencepost.watches")).toEqual([{ next_ledger: null }]);
    closeLedgers(bench.chain, 5);
    await bench.catchUp(await bench.lead());
    expect(await tokens()).toEqual([...bench.tokensOnChain([A]), ...bench.tokensOnChain([B], 7)].sort());
    expect((await bench.stored()).some((row) => row.late)).toBe(false);
  });

  test("join also where a person set the stream's cursor back behind them", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 6);
    await bench.watch(from(1, A));
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 3");
    await bench.database.query("UPDATE fencepost.watches SET next_ledger = 5");
    await bench.catchUp(await bench.lead());
    expect(await tokens()).toEqual(bench.tokensOnChain([A], 3));
    expect(await rows("SELECT DISTINCT next_ledger FROM fencepost.watches")).toEqual([{ next_ledger: null }]);
  });

  test("that lag do not make the loop spin while the source has nothing to give", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 6);
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    await bench.watch(from(5, A, B), { adopt: true });
    bench.rpc.node.lag = 4; // the node has ledgers 1 and 2: behind for both
    expect(await bench.step(await bench.lead())).toBe("idle");
  });
});

describe("a start that is set back", () => {
  test("is read beside, while the contract keeps up with the newest ledger, and without loss or repeat", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 30);
    await bench.watch(from(20, A, B));
    await bench.catchUp(await bench.lead());
    await expect(bench.watch([...from(5, A), ...from(20, B)])).rejects.toThrow(`${A} from an earlier ledger`);
    await bench.watch([...from(5, A), ...from(20, B)], { adopt: true });
    const term = await bench.lead();
    bench.rpc.node.scanLimit = 4;
    closeLedgers(bench.chain, 1);
    await bench.step(term);
    expect((await tokens()).filter((token) => token.includes("-0000000031-"))).toHaveLength(3); // at once
    await bench.catchUp(term);
    expect((await tokens()).sort()).toEqual(
      [...bench.tokensOnChain([A], 5), ...bench.tokensOnChain([B], 20)].sort(),
    );
    await expectGaplessSeq();
    expect(await rows("SELECT count(*)::int AS n FROM fencepost.watches WHERE earlier_next IS NULL")).toEqual(
      [{ n: 2 }],
    );
    await bench.watch([...from(5, A), ...from(20, B)]); // nothing is left to adopt
  });

  test("is read on after a crash from where it was, also where it was set back again meanwhile", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 40);
    await bench.watch(from(30, A));
    await bench.catchUp(await bench.lead());
    const source = bench.openSource({ pageLimit: 1 });
    bench.rpc.node.scanLimit = 3;
    const short = {
      ...source,
      window: (request: WindowRequest, signal: AbortSignal) =>
        source.window(
          { ...request, throughLedger: Math.min(request.throughLedger ?? 1e9, request.fromLedger + 1) },
          signal,
        ),
    };
    for (const start of [20, 10]) {
      await bench.watch(from(start, A), { adopt: true });
      await bench.step(await bench.lead(), { source: short });
      await bench.step(await bench.lead(), { source: short });
    }
    await bench.catchUp(await bench.lead());
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A], 10));
    await expectGaplessSeq();
  });
});

describe("a long way to go", () => {
  test("is read ahead, several windows at once, and stored in order", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 20);
    await bench.watch(from(1, A));
    await bench.catchUp(await bench.lead());
    closeLedgers(bench.chain, 700);
    await bench.database.query("UPDATE fencepost.streams SET latest_ledger = 720");
    bench.rpc.node.latencyMs = 2;
    const source = bench.openSource();
    const ledgers: number[] = [];
    await bench.catchUp(await bench.lead(), { source, onStored: ({ ledger }) => ledgers.push(ledger) });
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    expect((await bench.stored()).some((row) => row.late)).toBe(false);
    expect(ledgers).toEqual([...ledgers].sort((a, b) => a - b));
    expect(bench.rpc.mostInFlight).toBeGreaterThan(1);
    expect(bench.rpc.mostInFlight).toBeLessThanOrEqual(source.windowsAtOnce ?? 0);
  });

  test("of an added contract is read ahead too", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 700);
    await bench.watch(from("latest", A));
    await bench.catchUp(await bench.lead());
    await bench.watch([...from("latest", A), ...from(1, B)], { adopt: true });
    bench.rpc.node.latencyMs = 2;
    await bench.catchUp(await bench.lead());
    expect((await tokens()).sort()).toEqual(
      [...bench.tokensOnChain([A], 700), ...bench.tokensOnChain([B])].sort(),
    );
    expect(bench.rpc.mostInFlight).toBeGreaterThan(1);
  });

  test("is begun anew where the cursor is not where it was: what was read ahead for another place is not stored", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 700);
    await bench.watch(from(1, A));
    await bench.database.query("UPDATE fencepost.streams SET latest_ledger = 700");
    const term = await bench.lead();
    const ingest = bench.ingest();
    for (let i = 0; i < 3; i++) await ingest.step(term, never);
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 7");
    for (let i = 0; i < 3; i++) await ingest.step(term, never);
    await bench.watch([...from(1, A), ...from(1, B)], { adopt: true }); // and where the filters are others
    const next = await bench.lead();
    for (let i = 0; i < MAX_STEPS && (await ingest.step(next, never)) !== "idle"; i++);
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A, B]));
    await expectGaplessSeq();
  });
});

describe("who may commit", () => {
  test("a former leader cannot, by name, and its window is gone whole", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const former = await bench.lead();
    let successor = 0n;
    const source = withBetween(bench.source, async () => {
      successor = await bench.lead();
    });
    await expect(bench.step(former, { source })).rejects.toThrow(StaleTermError);
    expect(await tokens()).toEqual([]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 1, seq: 0n, term: successor });
    await expect(bench.step(former)).rejects.toThrow(/another process leads now/);
    await bench.catchUp(successor);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  });

  test("two steps under one term cannot both move the cursor from one place", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    const twice = withBetween(bench.source, async () => {
      if ((await bench.stream()).nextLedger === 1) await bench.step(term);
    });
    await expect(bench.step(term, { source: twice })).rejects.toThrow(/the cursor was moved/);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
    await expectGaplessSeq();
  });

  test.each(["stop", "continue"] as const)("a former leader names no gap (onGap: %s)", async (onGap) => {
    bench = await openIngest();
    closeLedgers(bench.chain, 9);
    await bench.watch(from(1, A));
    bench.chain.retain(3);
    const source = withBetween(bench.source, () => bench.lead());
    await expect(bench.step(await bench.lead(), { source, onGap })).rejects.toThrow(StaleTermError);
    expect(await rows("SELECT * FROM fencepost.gaps")).toEqual([]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 1, halted: null });
  });

  test("a former leader names no conflict", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 2);
    await bench.watch(from(1, A));
    const former = await bench.lead();
    await bench.catchUp(former);
    const other = startChain();
    closeLedgers(other, 2, scv.u32(2));
    bench.rpc.node.chain = other;
    await bench.database.query("UPDATE fencepost.streams SET next_ledger = 1");
    const source = withBetween(bench.source, () => bench.lead());
    await expect(bench.step(former, { source })).rejects.toThrow(StaleTermError);
    expect(await rows("SELECT * FROM fencepost.conflicts")).toEqual([]);
    expect((await bench.stream()).halted).toBeNull();
  });

  test("a process with the old filter set cannot, once another set was adopted", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    const source = withBetween(bench.source, () => bench.watch(from(1, A, B), { adopt: true }));
    await expect(bench.step(term, { source })).rejects.toThrow(StaleTermError);
    expect(await tokens()).toEqual([]);
    await expect(bench.watch(from(1, A))).rejects.toThrow(FilterSetChangedError);
    await bench.catchUp(await bench.lead());
    expect((await tokens()).sort()).toEqual(bench.tokensOnChain([A, B]));
  });

  test("a leader that is paused inside its transaction cannot, and does not hold up its successor", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const former = await bench.lead();
    const { database } = bench;
    let successor = 0n;
    const pausing = {
      ...database,
      transaction: <T>(work: Parameters<typeof database.transaction<T>>[0]) =>
        database.transaction<T>(async (client) => {
          const result = await work(client);
          successor = await bench.lead(); // waits for the row, which the pause has locked
          return result;
        }),
    };
    const step = bench.step(former, { database: pausing, leaseMs: 400 });
    await expect(step).rejects.toMatchObject({ name: "ConnectionLostError", code: "25P03" });
    expect(await tokens()).toEqual([]);
    await expect(bench.step(former)).rejects.toThrow(StaleTermError);
    await bench.catchUp(successor);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  });

  test("nobody can whose COMMIT the database turned into a ROLLBACK: nothing is stored, and it is noticed", async () => {
    bench = await openIngest();
    closeLedgers(bench.chain, 5);
    await bench.watch(from(1, A));
    const term = await bench.lead();
    const { database } = bench;
    const swallowing = {
      ...database,
      transaction: <T>(work: Parameters<typeof database.transaction<T>>[0]) =>
        database.transaction<T>(async (client) => {
          const result = await work(client);
          await client.query("SELECT 1 / 0").catch(() => {});
          return result;
        }),
    };
    await expect(bench.step(term, { database: swallowing })).rejects.toThrow(CommitBecameRollbackError);
    expect(await tokens()).toEqual([]);
    expect(await bench.stream()).toMatchObject({ nextLedger: 1, seq: 0n });
    await bench.catchUp(term);
    expect(await tokens()).toEqual(bench.tokensOnChain([A]));
  });
});
