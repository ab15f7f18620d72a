import { type EventSpec, scv, startChain, writeLake } from "@fencepost/simulator";
import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { opened, readAll } from "./__tests__/support/lakes.ts";
import { eventOf } from "./__tests__/support/recorded.ts";
import { dataLake } from "./dataLake.ts";

const open = opened();
afterEach(open.closeAll);

const CONTRACTS = ["a", "b", "c"].map(scv.contractId);
const spec = fc
  .record({
    contract: fc.constantFrom(...CONTRACTS),
    topics: fc.array(fc.constantFrom(scv.sym("transfer"), scv.u32(7)), { maxLength: 3 }),
    value: fc.constantFrom(scv.nothing(), scv.i128(5n)),
    tx: fc.integer({ min: 1, max: 3 }),
    op: fc.integer({ min: 0, max: 2 }),
    place: fc.constantFrom<NonNullable<EventSpec["place"]>>(
      "fee",
      "operation",
      "afterTransaction",
      "afterAll",
    ),
  })
  .map((each): EventSpec => each);
/** Fees come in the order of their transactions, as they do in a ledger. */
const ledgers = fc.array(
  fc.array(spec, { maxLength: 5 }).map((specs) => specs.sort((a, b) => (a.tx ?? 1) - (b.tx ?? 1))),
  { minLength: 1, maxLength: 40 },
);

test("for any layout, range and contracts, the windows of a lake hold the chain's events, each once and in order", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        ledgers,
        firstLedger: fc.integer({ min: 1, max: 90 }),
        ledgersPerBatch: fc.integer({ min: 1, max: 7 }),
        batchesPerPartition: fc.integer({ min: 1, max: 5 }),
        extension: fc.constantFrom("xdr.zst" as const, "xdr.zstd" as const),
        contracts: fc.subarray(CONTRACTS, { minLength: 1 }),
        over: fc.constantFrom("folder", "folder", "folder", "http", "s3"),
        ahead: fc.integer({ min: 1, max: 9 }),
        from: fc.nat({ max: 40 }),
        through: fc.option(fc.nat({ max: 40 }), { nil: undefined }),
      }),
      async ({ ledgers, firstLedger, contracts, over, ahead, ...given }) => {
        const chain = startChain({ firstLedger });
        for (const events of ledgers) chain.close({ events });
        const folder = await open.folder();
        const { ledgersPerBatch: size, batchesPerPartition, extension } = given;
        await writeLake(folder, chain, { ledgersPerBatch: size, batchesPerPartition, extension });
        // Whole batches only, and none with ledger 1.
        const oldest = Math.max(firstLedger <= 2 ? 2 : Math.ceil(firstLedger / size) * size, 2);
        const latest = Math.floor((chain.latest + 1) / size) * size - 1;
        if (latest < oldest) return;
        const from = oldest + (given.from % (latest - oldest + 1));
        const through = given.through === undefined ? undefined : from + given.through;

        const server =
          over === "folder" ? null : await (over === "http" ? open.http(folder) : open.s3Public(folder));
        const lake = dataLake({
          network: "testnet",
          url: over === "folder" ? folder : over === "http" ? server?.url : "s3://public",
          ...(over === "s3" && server && { s3: { endpoint: server.url } }),
          oldestLedger: oldest,
          ahead,
        });
        const end = Math.min(through ?? latest, latest);
        const rows = [...chain.events()].filter(
          (row) => row.ledger >= from && row.ledger <= end && contracts.includes(row.contractId),
        );
        const { events, ends, last } = await readAll(lake, contracts, from, through);
        expect(events).toEqual(rows.map(eventOf));
        expect(ends.at(-1)).toBe(end);
        if (last) expect(last).toEqual({ kind: "idle", oldestLedger: oldest, latestLedger: latest });
        else expect(through).toBe(end);
        await open.closeAll();
      },
    ),
    { numRuns: 60 },
  );
});
