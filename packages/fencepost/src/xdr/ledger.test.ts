import {
  batchXdr,
  type Chain,
  type EventSpec,
  type LedgerForm,
  scv,
  startChain,
  startRpc,
} from "@fencepost/simulator";
import { xdr } from "@stellar/stellar-sdk/base";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { eventOf, recorded } from "../source/dataLake/__tests__/support/recorded.ts";
import { loadLedgerReader } from "./ledger.ts";
import { InvalidXdrError } from "./skip.ts";

const reader = await loadLedgerReader();
const [POOL, OTHER] = [scv.contractId("pool"), scv.contractId("other")];
const value = scv.u32(1);

function chainOf(...ledgers: (readonly EventSpec[])[]): Chain {
  const chain = startChain({ firstLedger: 50 });
  for (const events of ledgers) chain.close({ events });
  return chain;
}

function batchOf(chain: Chain, form?: LedgerForm): Buffer {
  return Buffer.from(batchXdr(chain, chain.first, chain.latest, form));
}

describe.skipIf(!recorded)("the recorded ledgers of the public network", () => {
  test.each([
    [63092988, 565],
    [63092990, 636],
  ])("%i has exactly the %i events that getEvents gives of it, byte for byte", (sequence, count) => {
    const expected = recorded!.rows(sequence);
    const contracts = [...new Set(expected.events.map((row) => row.contractId))];
    const { startSequence, endSequence, ledgers } = reader.forContracts(contracts)(recorded!.batch(sequence));
    expect([startSequence, endSequence, ledgers.length]).toEqual([sequence, sequence, 1]);
    const [ledger] = ledgers;
    expect(ledger).toMatchObject({
      sequence,
      hash: expected.hash,
      previousHash: expected.previousLedgerHash,
      closedAt: expected.events[0]!.ledgerClosedAt,
      protocolVersion: 26,
    });
    expect(ledger!.events).toEqual(expected.events.map(eventOf));
    expect(ledger!.events).toHaveLength(count);
  });

  test("one of 2024, an object of a lake, has 163 transactions and no contract event", () => {
    const batch = recorded!.oldBatch();
    const contracts = [...new Set(recorded!.rows(63092988).events.map((row) => row.contractId))];
    const { ledgers } = reader.forContracts(contracts)(batch);
    expect(ledgers).toEqual([
      expect.objectContaining({
        sequence: 53312000,
        protocolVersion: 21,
        closedAt: "2024-09-02T10:50:19Z",
        events: [],
      }),
    ]);
    // Nor one of any other contract.
    const [meta] = xdr.LedgerCloseMetaBatch.fromXdr(batch).ledgerCloseMetas;
    if (meta?.type !== "v1") throw new Error("not a ledger of version 1");
    const events = meta.value.txProcessing.map(({ txApplyProcessing }) =>
      txApplyProcessing.type === "v3" ? (txApplyProcessing.value.sorobanMeta?.events.length ?? 0) : -1,
    );
    expect(events).toEqual(Array(163).fill(0));
  });
});

test.skipIf(!recorded)(
  "a recorded ledger is read alike as it was written before protocol 20, in version 0",
  () => {
    const batch = recorded!.oldBatch();
    const [meta] = xdr.LedgerCloseMetaBatch.fromXdr(batch).ledgerCloseMetas;
    if (meta?.type !== "v1") throw new Error("not a ledger of version 1");
    const { ledgerHeader, txSet, txProcessing, upgradesProcessing, scpInfo } = meta.value;
    const txs = txSet.value.phases.flatMap((phase) =>
      phase.type === "v0Components" ? phase.value.flatMap(({ value: { txs } }) => txs) : [],
    );
    expect(txs).toHaveLength(163);
    const { previousLedgerHash } = ledgerHeader.header;
    const old = xdr.LedgerCloseMeta.v0(
      new xdr.LedgerCloseMetaV0({
        ledgerHeader,
        txSet: new xdr.TransactionSet({ previousLedgerHash, txs }),
        txProcessing: txProcessing.map(asBeforeContracts),
        upgradesProcessing,
        scpInfo,
      }),
    );
    const chain = chainOf([{ contract: POOL, value }]);
    const [next] = xdr.LedgerCloseMetaBatch.fromXdr(batchOf(chain)).ledgerCloseMetas;
    const written = new xdr.LedgerCloseMetaBatch({
      startSequence: 53312000,
      endSequence: 53312001,
      ledgerCloseMetas: [old, next!],
    }).toXdr();
    const read = reader.forContracts([POOL]);
    const [inVersion0, after] = read(Buffer.from(written)).ledgers;
    expect(inVersion0).toEqual(read(batch).ledgers[0]);
    expect(after!.events).toEqual([...chain.events()].map(eventOf)); // nothing of the ledger before it is in the way
  },
);

/** With the TransactionMeta of its time, 2, which has no place for events. */
function asBeforeContracts({ result, feeProcessing, txApplyProcessing }: xdr.TransactionResultMeta) {
  if (txApplyProcessing.type !== "v3") throw new Error("not a transaction of version 3");
  const { txChangesBefore, operations, txChangesAfter } = txApplyProcessing.value;
  return new xdr.TransactionResultMeta({
    result,
    feeProcessing,
    txApplyProcessing: xdr.TransactionMeta.v2(
      new xdr.TransactionMetaV2({ txChangesBefore, operations, txChangesAfter }),
    ),
  });
}

test("events of other contracts, of none, and diagnostic ones are left out, but keep their index", () => {
  const chain = chainOf([
    { contract: OTHER, value },
    { contract: POOL, value, topics: [scv.sym("a")] },
    { value },
    { contract: POOL, value, type: "system" },
  ]);
  const expected = [...chain.events()].filter((row) => row.contractId === POOL).map(eventOf);
  expect(reader.forContracts([POOL])(batchOf(chain)).ledgers[0]!.events).toEqual(expected);
  expect(expected.map(({ id }) => id.slice(-1))).toEqual(["1", "3"]);

  const batch = xdr.LedgerCloseMetaBatch.fromXdr(batchOf(chain));
  const meta = batch.ledgerCloseMetas[0];
  if (meta?.type !== "v2") throw new Error("not a ledger of version 2");
  const transaction = meta.value.txProcessing[0]!.txApplyProcessing;
  if (transaction.type !== "v4") throw new Error("not a transaction of version 4");
  Object.assign(transaction.value.operations[0]!.events[1]!, { type: xdr.ContractEventType.diagnostic });
  const events = reader.forContracts([POOL])(Buffer.from(batch.toXdr())).ledgers[0]!.events;
  expect(events).toEqual(expected.slice(1));
});

const place = fc.constantFrom(
  "fee" as const,
  "operation" as const,
  "afterTransaction" as const,
  "afterAll" as const,
);
const spec = fc
  .record({
    contract: fc.constantFrom(POOL, OTHER, undefined),
    type: fc.constantFrom("contract" as const, "system" as const),
    topics: fc.array(fc.constantFrom(scv.sym("transfer"), scv.u32(7), scv.str("odd")), { maxLength: 6 }),
    value: fc.constantFrom(scv.nothing(), scv.i128(-5n), scv.vec([scv.bytes(new Uint8Array(3))])),
    tx: fc.integer({ min: 1, max: 4 }),
    op: fc.integer({ min: 0, max: 2 }),
    place,
  })
  .map(({ contract, ...rest }): EventSpec => ({ ...rest, ...(contract && { contract }) }));
/** Fees come in the order of their transactions, as they do in a ledger. */
const ledgers = fc.array(
  fc.array(spec, { maxLength: 10 }).map((specs) => specs.sort((a, b) => (a.tx ?? 1) - (b.tx ?? 1))),
  { minLength: 1, maxLength: 4 },
);

test("whatever a ledger holds, in each of its forms, its events are those of the chain", () => {
  fc.assert(
    fc.property(
      ledgers,
      fc.constantFrom(0 as const, 1 as const, 2 as const),
      fc.boolean(),
      (specs, ledgerMeta, old) => {
        // Before protocol 23 only the first operation of a transaction had events.
        const possible = (each: EventSpec) => !old || (each.place === "operation" && each.op === 0);
        const chain = chainOf(...specs.map((each) => each.filter(possible)));
        const batch = reader.forContracts([OTHER, POOL])(
          batchOf(chain, { ledgerMeta, transactionMeta: old ? 3 : 4 }),
        );
        for (const { sequence, hash, previousHash, closedAt, events } of batch.ledgers) {
          const ledger = chain.ledger(sequence)!;
          expect([hash, previousHash]).toEqual([ledger.hash, ledger.previousHash]);
          expect(Date.parse(closedAt) / 1000).toBe(ledger.closedAt);
          const rows = ledger.rows().filter((row) => row.contractId !== "");
          expect(events).toEqual(rows.map(eventOf));
        }
        expect(batch.ledgers).toHaveLength(specs.length);
      },
    ),
    { numRuns: 150 },
  );
});

test("the metadata of a node's ledgers has the events that the node gives, byte for byte", async () => {
  const chain = chainOf(
    [
      { contract: POOL, value, place: "fee" },
      { contract: POOL, value, topics: [scv.sym("a")], op: 1 },
      { contract: POOL, value, place: "afterAll" },
    ],
    [],
    [
      { contract: OTHER, value },
      { contract: POOL, value, tx: 3 },
    ],
  );
  const rpc = await startRpc({ chain });
  try {
    const ask = async (method: string): Promise<Record<string, never[]>> => {
      const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { startLedger: 50 } });
      const answer = await fetch(rpc.url, { method: "POST", body });
      return ((await answer.json()) as { result: Record<string, never[]> }).result;
    };
    const { ledgers } = await ask("getLedgers");
    const { events } = await ask("getEvents");
    const metas = ledgers!.map(({ metadataXdr }) => Buffer.from(metadataXdr, "base64"));
    const batch = Buffer.concat([Buffer.from(Uint32Array.of(50, 52, 3).buffer).swap32(), ...metas]);
    const read = reader.forContracts([POOL, OTHER])(batch).ledgers;
    expect(read.map(({ sequence }) => sequence)).toEqual([50, 51, 52]);
    expect(read.flatMap((ledger) => ledger.events)).toEqual(events!.map(eventOf));
    expect(events).toHaveLength(5);
  } finally {
    await rpc.close();
  }
});

test("any other bytes are refused by name", () => {
  const whole = batchOf(
    chainOf([
      { contract: POOL, value },
      { contract: POOL, value, place: "fee" },
    ]),
  );
  const read = reader.forContracts([POOL]);
  fc.assert(
    fc.property(fc.nat({ max: whole.length - 1 }), fc.nat({ max: 255 }), (at, byte) => {
      const bytes = Buffer.from(whole);
      bytes[at] = byte;
      try {
        read(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(InvalidXdrError);
      }
      expect(() => read(whole.subarray(0, at))).toThrow(/middle of a value|no such value/);
    }),
    { numRuns: 500 },
  );
  expect(() => read(Buffer.concat([whole, Buffer.alloc(8)]))).toThrow("8 bytes follow its end.");
});

test("a contract that is none is refused when it is asked for", () => {
  expect(() => reader.forContracts(["CNONE"])).toThrow();
});
