import { formatRpcId, parseRpcId } from "@fencepost/token";
import { scValToNative, xdr } from "@stellar/stellar-sdk/base";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { chainOf, ledgers } from "./__tests__/support/client.ts";
import { ChainError, PUBNET_PASSPHRASE, scv, startChain, transfers } from "./index.ts";

const value = scv.u32(1);

describe("a simulated chain", () => {
  test("closes a ledger only when told, five seconds apart unless told otherwise", () => {
    const chain = startChain({ firstLedger: 10, startTime: 1_000 });
    expect([chain.first, chain.latest, chain.ledger(10)]).toEqual([10, 9, undefined]);
    expect(chain.close()).toMatchObject({ sequence: 10, closedAt: 1_050 });
    expect(chain.close({ closedAt: 1_077 })).toMatchObject({ sequence: 11, closedAt: 1_077 });
    expect(chain.close()).toMatchObject({ sequence: 12, closedAt: 1_082 });
    expect(chain.latest).toBe(12);
    expect(() => chain.close({ closedAt: 1_000 })).toThrow(ChainError);
    expect(chain.latest).toBe(12);
  });

  test("implies, by default, the day on which the testnet's current life began", () => {
    const chain = startChain({ firstLedger: 3_000_000 });
    const { closedAt, sequence } = chain.close();
    expect(new Date((closedAt - sequence * 5) * 1000).toISOString()).toBe("2025-12-17T17:00:00.000Z");
  });

  test("gives events the ids of RPC v23: fees first, operations, after one transaction, after all", () => {
    const chain = startChain({ firstLedger: 50 });
    const { rows } = chain.close({
      events: [
        { value, place: "afterAll", tx: 1 },
        { value, place: "afterTransaction", tx: 1 },
        { value, tx: 2, op: 1 },
        { value, tx: 2, op: 0 },
        { value, tx: 1, op: 0 },
        { value, tx: 1, op: 0 },
        { value, place: "fee", tx: 2, failed: true },
        { value, place: "fee", tx: 1 },
        { value, place: "afterAll", tx: 2 },
      ],
    });
    const at = (tx: number, op: number, event: number) => ({ ledger: 50, tx, op, event });
    expect(rows().map(({ id }) => parseRpcId(id))).toEqual([
      at(0, 0, 0),
      at(0, 0, 1),
      at(1, 0, 0),
      at(1, 0, 1),
      at(1, 4095, 0),
      at(2, 0, 0),
      at(2, 1, 0),
      at(1_048_575, 0, 0),
      at(1_048_575, 0, 1),
    ]);
    expect(rows().map((row) => [row.transactionIndex, row.operationIndex])).toEqual(
      rows().map(({ id }) => [parseRpcId(id).tx, parseRpcId(id).op]),
    );
    const [secondFee, firstFee, inFirst, , , inSecond] = rows();
    expect([firstFee!.txHash, secondFee!.txHash]).toEqual([inFirst!.txHash, inSecond!.txHash]);
    expect(secondFee!.inSuccessfulContractCall).toBe(false);
  });

  test("keeps every event, once and in order, whatever the ledgers hold", () => {
    fc.assert(
      fc.property(ledgers, (events) => {
        const rows = [...chainOf(events).events()];
        const ids = rows.map(({ id }) => id);
        expect(ids).toEqual([...new Set(ids)].sort());
        expect(ids.length).toBe(events.flat().length);
        for (const { id } of rows) {
          const at = parseRpcId(id);
          // indexes inside one place have no hole
          if (at.event > 0) expect(ids).toContain(formatRpcId({ ...at, event: at.event - 1 }));
        }
      }),
    );
  });

  test("leaves out the topic of an event without topics, writes no contract as empty, and allows many topics", () => {
    const topics = Array.from({ length: 7 }, (_, i) => scv.u32(i));
    const { rows } = startChain().close({
      events: [
        { value },
        { value, topics: [] },
        { value: "garbage", topics, contract: scv.contractId("x"), type: "system" },
      ],
    });
    expect(rows().map((row) => "topic" in row)).toEqual([false, false, true]);
    expect(rows()[0]).toMatchObject({ contractId: "", type: "contract", value });
    expect(rows()[2]).toMatchObject({
      contractId: scv.contractId("x"),
      type: "system",
      value: "garbage",
      topic: topics,
    });
  });

  test("is the same when it is told the same", () => {
    fc.assert(
      fc.property(ledgers, (events) => {
        const [a, b] = [chainOf(events), chainOf(events)];
        expect([...a.events()]).toEqual([...b.events()]);
        expect(a.ledger(a.latest)!.hash).toBe(b.ledger(b.latest)!.hash);
      }),
      { numRuns: 20 },
    );
  });

  test("has other ledger hashes in another life, but the same ids and transaction hashes, as after a reset", () => {
    const [before, after] = ["first", "second"].map((life) =>
      startChain({ life }).close({ events: [{ value }] }),
    );
    expect(before!.hash).not.toBe(after!.hash);
    expect(before!.rows()).toEqual(after!.rows());
  });

  test("is at another time in another life", () => {
    const [before, after] = ["", "second"].map((life) => startChain({ life }).close().closedAt);
    expect(after! - before!).toBeGreaterThan(100 * 86_400);
  });

  test("links each ledger to the one before by its hash", () => {
    const chain = startChain();
    const [a, b] = [chain.close(), chain.close({ events: [{ value }] })];
    expect(b.previousHash).toBe(a.hash);
    expect(a.hash).toMatch(/^[0-9a-f]{64}$/);
  });

  test("loses its oldest ledgers by its retention, and still tells the whole truth", () => {
    const chain = startChain({ firstLedger: 5, retention: 3 });
    chain.close({ events: [{ value }] });
    chain.closeMany(9);
    expect([chain.oldestAt(6), chain.oldestAt(chain.latest)]).toEqual([5, 12]);
    chain.retain(1);
    expect(chain.oldestAt(chain.latest)).toBe(14);
    expect([...chain.events()]).toHaveLength(1);
  });

  test.each([{ tx: 0 }, { tx: 1_048_575 }, { op: 4_095 }, { op: -1 }])("refuses an event at %j", (at) => {
    expect(() => startChain().close({ events: [{ value, ...at }] })).toThrow(ChainError);
  });

  test("refuses recorded rows that are out of order or of another ledger", () => {
    const rows = startChain({ firstLedger: 9 })
      .close({ events: [{ value }, { value }] })
      .rows();
    expect(() => startChain({ firstLedger: 9 }).closeRecorded({ rows: [...rows].reverse() })).toThrow(
      /not in order/,
    );
    expect(() => startChain({ firstLedger: 8 }).closeRecorded({ rows })).toThrow(/not of ledger 8/);
    expect(startChain({ firstLedger: 9 }).closeRecorded({ rows }).rows()).toBe(rows);
  });
});

describe("bulk transfers", () => {
  const options = {
    passphrase: PUBNET_PASSPHRASE,
    contracts: [scv.contractId("a")],
    eventsPerLedger: 50,
    seed: 3,
  };

  test("are real values at valid places, the same whenever they are read", () => {
    const chain = startChain();
    chain.closeMany(3, transfers(options));
    const rows = [...chain.events()];
    expect(rows).toEqual([...chain.events()]);
    expect(rows).toHaveLength(150);
    expect(rows.map(({ id }) => id)).toEqual([...new Set(rows.map(({ id }) => id))].sort());
    for (const row of rows) {
      const { ledger, tx, op } = parseRpcId(row.id);
      expect([row.ledger, row.transactionIndex, row.operationIndex]).toEqual([ledger, tx, op]);
      const [topic, from, to, amount] = [...(row.topic ?? []), row.value].map((v) =>
        scValToNative(xdr.ScVal.fromXdr(v, "base64")),
      );
      expect(topic).toBe("transfer");
      expect([from, to].join()).toMatch(/^G[A-Z2-7]{55},G[A-Z2-7]{55}$/);
      expect(amount).toBeGreaterThan(0n);
    }
  });

  test("differ by seed", () => {
    expect(transfers(options)(1, 0)).not.toEqual(transfers({ ...options, seed: 4 })(1, 0));
  });
});
