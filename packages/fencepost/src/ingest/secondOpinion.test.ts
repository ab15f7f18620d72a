import {
  type Chain,
  losesRows,
  type RpcServer,
  scv,
  startChain,
  startRpc,
  transfers,
} from "@fencepost/simulator";
import { tokenFromRpcId } from "@fencepost/token";
import { afterEach, describe, expect, test } from "vitest";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { lockAssets, POOL_CONTRACT, poolsProjection } from "../__tests__/support/pools.ts";
import { never, noWait } from "../__tests__/support/windows.ts";
import { createLog } from "../observe/log.ts";
import { projectStep } from "../project/projectStep.ts";
import { registerProjection } from "../project/registerProjection.ts";
import { ChainResetError } from "../source/errors.ts";
import { type StellarRpcSource, stellarRpcWith } from "../source/stellarRpc.ts";
import { acquireLease, openHolder } from "../store/postgres/leases.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { backfill } from "./backfill.ts";
import { secondOpinion } from "./secondOpinion.ts";

const A = scv.contractId("a");
const B = scv.contractId("b");

const closing: (() => Promise<unknown>)[] = [];
let bench: IngestBench;
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await bench.close();
});

/** The bench's node, and a second one of the same chain: each as a provider. */
async function openTwo(chain: Chain): Promise<{ other: RpcServer; source: StellarRpcSource }> {
  bench = await openIngest(chain);
  const other = await startRpc({ chain });
  closing.push(other.close);
  const urls = [bench.rpc.url, other.url];
  return { other, source: stellarRpcWith({ network: "testnet", urls }, noWait) };
}

const event = (contract: string, fields: object = {}) => ({
  contract,
  topics: [scv.sym("locked")],
  value: scv.u32(1),
  ...fields,
});
const opinionOf = ({ providers }: StellarRpcSource, i: number, ledgers = 1_000) => {
  const provider = providers[i];
  if (!provider) throw new Error("There is no such provider.");
  return secondOpinion(bench.database, provider, { ledgers, signal: never });
};
const tokenOf = (id: string) => tokenFromRpcId(bench.source.chain, id);

const SEED = 20_261_129;

test(`a provider that drops 1 % of events is caught, each missing token is named, backfill heals it, and each event makes one message (seed ${SEED})`, async () => {
  const chain = startChain();
  lockAssets(chain, 3_000);
  const { source } = await openTwo(chain);
  const loses = losesRows({ seed: SEED, rate: 0.01 });
  bench.rpc.node.hides = loses;
  await bench.watch([{ contractId: POOL_CONTRACT, startLedger: 1 }]);
  await bench.catchUp(await bench.lead());
  const rows = [...chain.events()];
  const lost = rows.filter(loses).map(({ id }) => tokenOf(id));
  expect(lost.length).toBeGreaterThan(15);
  expect(await bench.stored()).toHaveLength(3_000 - lost.length);

  const project = await startProjecting();
  await project();
  const opinion = await opinionOf(source, 1);
  expect(opinion).toEqual({
    provider: source.providers[1]?.name,
    fromLedger: 1,
    throughLedger: chain.latest,
    agreed: 3_000 - lost.length,
    notStored: lost,
    notServed: [],
    different: [],
    unreadFrom: null,
  });
  expect((await opinionOf(source, 0)).notStored).toEqual([]); // the one that lost them does not know

  const second = source.providers[1];
  if (!second) throw new Error("There is no second provider.");
  const report = await backfill(bench.context({ source: second }), {
    fromLedger: opinion.fromLedger,
    throughLedger: opinion.throughLedger,
    signal: never,
  });
  expect(report).toMatchObject({ events: 3_000, stored: lost.length });
  const late = (await bench.stored()).filter((row) => row.late).map((row) => row.token);
  expect(late).toEqual(lost);
  expect(await opinionOf(source, 1)).toMatchObject({ agreed: 3_000, notStored: [], notServed: [] });
  expect((await opinionOf(source, 0)).notServed).toEqual(lost);

  await project();
  const { rows: messages } = await bench.database.query<{ token: string; n: number }>(
    `SELECT m.token, count(*)::int AS n FROM fencepost.messages m JOIN fencepost.outbox o USING (event_id)
     GROUP BY m.token ORDER BY m.token`,
  );
  expect(messages).toEqual(rows.map(({ id }) => ({ token: tokenOf(id), n: 1 })));
});

/** Projects what is stored, as a leader that goes on. */
async function startProjecting(): Promise<() => Promise<void>> {
  const { database } = bench;
  const projection = poolsProjection();
  await database.query("TRUNCATE fencepost.projections, fencepost.messages, fencepost.outbox CASCADE");
  await registerProjection(database, projection, {
    stream: "testnet",
    rebuildChanged: false,
    rebuild: false,
  });
  const holder = openHolder(database.url);
  closing.push(holder.close);
  const key = { kind: "projection", name: projection.name, version: projection.version } as const;
  const term = (await acquireLease(database, key, await holder.current(), 60_000)) ?? 0n;
  const context = {
    database,
    projection,
    decoder: await loadDecoder(),
    leaseMs: 60_000,
    log: createLog("silent"),
  };
  return async () => {
    for (let i = 0; i < 500; i++) if ((await projectStep(context, term)) === "idle") return;
    throw new Error("The projection is never idle.");
  };
}

describe("a second opinion", () => {
  test("names what differs in both directions, and other content under one token", async () => {
    const chain = startChain();
    for (let i = 0; i < 9; i++) chain.close({ events: [event(A), event(A, { tx: 2 })] });
    const { other, source } = await openTwo(chain);
    const ids = [...chain.events()].map(({ id }) => id);
    bench.rpc.node.hides = ({ id }) => id === ids[3];
    other.node.hides = ({ id }) => id === ids[8];
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    await bench.database.query("UPDATE fencepost.events SET content_hash = '' WHERE token = $1", [
      tokenOf(ids[10] ?? ""),
    ]);
    expect(await opinionOf(source, 1)).toMatchObject({
      agreed: 15,
      notStored: [tokenOf(ids[3] ?? "")],
      notServed: [tokenOf(ids[8] ?? "")],
      different: [tokenOf(ids[10] ?? "")],
    });
  });

  test("is about the last ledgers only, and about what the stream has read", async () => {
    const chain = startChain();
    for (let i = 0; i < 30; i++) chain.close({ events: [event(A), event(B, { tx: 2 })] });
    const { source } = await openTwo(chain);
    bench.rpc.node.hides = () => true;
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    await bench.watch(
      [
        { contractId: A, startLedger: 1 },
        { contractId: B, startLedger: 25 },
      ],
      { adopt: true },
    );
    for (let i = 0; i < 9; i++) chain.close({ events: [event(A)] }); // not read yet
    const opinion = await opinionOf(source, 1, 10);
    expect(opinion).toMatchObject({ fromLedger: 21, throughLedger: 30 });
    const ids = [...chain.events()].filter(
      ({ contractId, ledger }) => contractId === A && ledger > 20 && ledger <= 30,
    );
    expect(opinion.notStored).toEqual(ids.map(({ id }) => tokenOf(id)));
  });

  test("is not about fee events, which nodes may leave out", async () => {
    const chain = startChain();
    chain.close({
      events: [
        event(A, { place: "fee" }),
        event(A),
        event(A, { place: "afterTransaction" }),
        event(A, { place: "afterAll" }),
      ],
    });
    const { other, source } = await openTwo(chain);
    other.node.hides = ({ operationIndex, transactionIndex }) =>
      operationIndex === 4_095 || transactionIndex === 0 || transactionIndex === 1_048_575;
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    expect(await bench.stored()).toHaveLength(4);
    expect(await opinionOf(source, 1)).toMatchObject({ agreed: 1, notStored: [], notServed: [] });
  });

  test("says from where on it could not be asked", async () => {
    const chain = startChain();
    for (let i = 0; i < 30; i++) chain.close({ events: [event(A)] });
    const { other, source } = await openTwo(chain);
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    other.node.lag = 10;
    expect(await opinionOf(source, 1)).toMatchObject({ agreed: 20, notServed: [], unreadFrom: 21 });
  });

  test("is refused to a provider of another life of the chain", async () => {
    const chain = startChain();
    for (let i = 0; i < 30; i++) chain.close({ events: [event(A)] });
    const { other, source } = await openTwo(chain);
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    const second = startChain({ life: "second" });
    for (let i = 0; i < 90; i++) second.close({ events: [event(A)] });
    other.node.chain = second;
    await expect(opinionOf(source, 1)).rejects.toThrow(ChainResetError);
  });

  test("of many windows compares each event once", async () => {
    const chain = startChain();
    const rows = transfers({ passphrase: chain.passphrase, contracts: [A], eventsPerLedger: 300, seed: 1 });
    chain.closeMany(40, rows);
    const { source } = await openTwo(chain);
    await bench.watch([{ contractId: A, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    expect(await opinionOf(source, 1)).toMatchObject({ agreed: 12_000, notStored: [], notServed: [] });
  });
});
