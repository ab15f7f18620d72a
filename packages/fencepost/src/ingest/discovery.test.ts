import { type Chain, type EventSpec, scv } from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterEach, describe, expect, test } from "vitest";
import { created, FACTORY, poolDiscovery, RULE } from "../__tests__/support/factory.ts";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { never } from "../__tests__/support/windows.ts";
import { readFoundContracts, readWatches } from "../store/postgres/streams.ts";
import { backfill } from "./backfill.ts";
import type { Discovery } from "./discovery.ts";
import { FilterSetChangedError } from "./errors.ts";

const [P, Q, R] = ["p", "q", "r"].map(scv.contractId) as [string, string, string];

let bench: IngestBench;
let discovery: Discovery;
afterEach(() => bench.close());

const event = (contract: string, fields: Partial<EventSpec> = {}): EventSpec => ({
  contract,
  topics: [scv.sym("swapped")],
  value: scv.u32(1),
  ...fields,
});

/** Each ledger has an event of each of these contracts. */
function closeLedgers(chain: Chain, count: number, contracts: readonly string[]): void {
  for (let i = 0; i < count; i++) chain.close({ events: contracts.map((id, n) => event(id, { tx: n + 1 })) });
}

async function open(): Promise<void> {
  bench = await openIngest();
  discovery = await poolDiscovery();
}
const watch = (options: { adopt?: boolean; rules?: boolean } = {}) =>
  bench.watch([{ contractId: FACTORY, startLedger: 1 }], {
    adopt: options.adopt ?? false,
    rules: options.rules === false ? [] : discovery.rules,
  });
const catchUp = async () => bench.catchUp(await bench.lead(), { discovery });
const tokens = async () => (await bench.stored()).map((row) => row.token).sort();
const discoveries = () =>
  rows("SELECT contract_id AS id, rule, epoch, ledger::int AS ledger FROM fencepost.discoveries");
const rows = async (sql: string) => (await bench.database.query(sql)).rows;

/** The tokens of the factory, and of each contract from the ledger that made it. */
function due(madeAt: Readonly<Record<string, number>>) {
  return [...bench.chain.events()]
    .filter(({ contractId, ledger }) => contractId === FACTORY || ledger >= (madeAt[contractId] ?? 1e9))
    .map(({ id }) => tokenFromRpcId(bench.source.chain, id));
}

async function expectInChainOrder(): Promise<void> {
  const { rows: stored } = await bench.database.query<{ token: string; contract: string }>(
    "SELECT token, contract_id AS contract FROM fencepost.events ORDER BY seq",
  );
  for (const id of new Set(stored.map(({ contract }) => contract))) {
    const own = stored.filter(({ contract }) => contract === id).map(({ token }) => token);
    expect(own).toEqual([...own].sort());
  }
}

describe("a contract that an event of another one names", () => {
  test("is read from the ledger that made it, and joins the stream's cursor", async () => {
    await open();
    closeLedgers(bench.chain, 3, [P, Q]); // before there is anything to know of them
    bench.chain.close({ events: [created(P), event(P), event(P, { tx: 2 })] });
    closeLedgers(bench.chain, 20, [P, Q]);
    bench.chain.close({ events: [event(P), created(Q, { tx: 2 }), event(Q, { tx: 3 })] });
    closeLedgers(bench.chain, 5, [P, Q]);
    await watch();
    await catchUp();
    expect(await tokens()).toEqual(due({ [P]: 4, [Q]: 25 }));
    await expectInChainOrder();
    const found = (await readWatches(bench.database, "testnet")).filter(({ foundBy }) => foundBy !== null);
    expect(
      found.map(({ contractId, startLedger, nextLedger }) => [contractId, startLedger, nextLedger]),
    ).toEqual(
      [
        [P, 4, null],
        [Q, 25, null],
      ].sort(),
    );
    expect(await readFoundContracts(bench.database, "testnet")).toEqual(
      new Map([
        [P, RULE.name],
        [Q, RULE.name],
      ]),
    );
    const made = [...bench.chain.events()].filter(({ contractId }) => contractId === FACTORY);
    expect(
      await rows("SELECT found_in FROM fencepost.watches WHERE found_by IS NOT NULL ORDER BY start_ledger"),
    ).toEqual(made.map(({ id }) => ({ found_in: tokenFromRpcId(bench.source.chain, id) })));
  });

  test("is found while the stream is at the newest ledger, and keeps up from then on", async () => {
    await open();
    bench.chain.close();
    await watch();
    const term = await bench.lead();
    const ingest = bench.ingest({ discovery });
    for (const contracts of [
      [created(P)],
      [event(P)],
      [created(Q), event(Q)],
      [event(Q), event(P, { tx: 2 })],
    ]) {
      bench.chain.close({ events: contracts });
      while ((await ingest.step(term, never)) !== "idle");
    }
    expect(await tokens()).toEqual(due({ [P]: 2, [Q]: 4 }));
    await expectInChainOrder();
  });

  test("is on record with the event that names it, or neither is: a crash between them loses nothing", async () => {
    await open();
    bench.chain.close({ events: [created(P), event(P)] });
    closeLedgers(bench.chain, 3, [P]);
    await watch();
    const { database } = bench;
    const failing = {
      ...database,
      transaction: <T>(work: Parameters<typeof database.transaction<T>>[0]) =>
        database.transaction<T>(async (client) => {
          await work(client);
          throw new Error("killed before COMMIT");
        }),
    };
    await expect(bench.step(await bench.lead(), { discovery, database: failing })).rejects.toThrow("killed");
    expect(await readFoundContracts(database, "testnet")).toEqual(new Map());
    expect(await bench.stored()).toEqual([]);
    await bench.step(await bench.lead(), { discovery });
    expect(await readFoundContracts(database, "testnet")).toEqual(new Map([[P, RULE.name]]));
    await catchUp();
    expect(await tokens()).toEqual(due({ [P]: 1 }));
  });

  test("that the config watches already stays as the config says", async () => {
    await open();
    closeLedgers(bench.chain, 2, [P]);
    bench.chain.close({ events: [created(P), event(P)] });
    const requests = [FACTORY, P].map((contractId) => ({ contractId, startLedger: 1 }));
    await bench.watch(requests, { rules: discovery.rules });
    await catchUp();
    expect(await tokens()).toEqual(due({ [P]: 1 }));
    expect(await readFoundContracts(bench.database, "testnet")).toEqual(new Map());
    expect(await discoveries()).toEqual([{ id: P, rule: RULE.name, epoch: "20251217", ledger: 3 }]);
  });

  test("is found by a backfill too, in the same window that heals a hole", async () => {
    await open();
    closeLedgers(bench.chain, 3, []);
    await watch();
    const term = await bench.lead();
    await bench.catchUp(term, { discovery });
    bench.chain.close({ events: [created(P), event(P)] });
    closeLedgers(bench.chain, 5, [P]);
    bench.chain.retain(3);
    await bench.catchUp(term, { discovery, onGap: "continue" });
    expect(await tokens()).toEqual([]);
    bench.chain.retain(100);
    const context = bench.context({ discovery });
    const report = await backfill(context, { fromLedger: 1, throughLedger: 6, signal: never });
    expect(report).toMatchObject({ healed: 3 });
    await bench.catchUp(await bench.lead(), { discovery });
    expect(await tokens()).toEqual(due({ [P]: 4 }));
  });
});

describe("a rule", () => {
  test("that is new looks at events that are stored already", async () => {
    await open();
    bench.chain.close({ events: [created(P), event(P)] });
    closeLedgers(bench.chain, 10, [P]);
    bench.chain.close({ events: [created(Q), event(Q)] });
    closeLedgers(bench.chain, 2, [P, Q]);
    await watch({ rules: false });
    await bench.catchUp(await bench.lead());
    await expect(watch()).rejects.toThrow(FilterSetChangedError);
    await watch({ adopt: true });
    closeLedgers(bench.chain, 2, [P, Q]);
    await catchUp();
    expect(await tokens()).toEqual(due({ [P]: 1, [Q]: 12 }));
    expect((await bench.stream()).discoveredSeq).toBe((await bench.stream()).seq);
  });

  test("that is gone takes its contracts with it, and what they stored stays", async () => {
    await open();
    bench.chain.close({ events: [created(P), event(P)] });
    await watch();
    await catchUp();
    await expect(watch({ rules: false })).rejects.toThrow(`-${P}`);
    await watch({ rules: false, adopt: true });
    expect((await readWatches(bench.database, "testnet")).map(({ contractId }) => contractId)).toEqual([
      FACTORY,
    ]);
    expect(await discoveries()).toMatchObject([{ id: P, rule: RULE.name, ledger: 1 }]); // for projections
    const before = await tokens();
    closeLedgers(bench.chain, 2, [P]);
    await bench.catchUp(await bench.lead());
    expect(await tokens()).toEqual(before);
  });

  test("stays with its contracts where something else of the config changes", async () => {
    await open();
    bench.chain.close({ events: [created(P), event(P)] });
    await watch();
    await catchUp();
    const requests = [FACTORY, R].map((contractId) => ({ contractId, startLedger: 1 }));
    await bench.watch(requests, { adopt: true, rules: discovery.rules });
    closeLedgers(bench.chain, 2, [P, R]);
    await catchUp();
    expect(await tokens()).toEqual(due({ [P]: 1, [R]: 1 }));
  });
});

test("an event that names no contract is set aside with its reason, and blocks nothing", async () => {
  await open();
  bench.chain.close({
    events: [
      created(P, { value: scv.u32(1) }),
      created(P, { value: scv.struct({ pool: scv.str("hello") }) }),
      created(P, { value: "not base64!" }),
      created(Q),
    ],
  });
  closeLedgers(bench.chain, 2, [P, Q]);
  await watch();
  await catchUp();
  expect(await tokens()).toEqual(due({ [Q]: 1 }));
  expect(
    await rows("SELECT reason FROM fencepost.quarantine WHERE projection = 'discovery:pools' ORDER BY token"),
  ).toEqual([
    { reason: "it has no pool" },
    { reason: '"hello" is not a contract id' },
    { reason: expect.stringContaining("invalid base64") },
  ]);
});
