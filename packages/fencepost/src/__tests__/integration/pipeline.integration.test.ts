import { startChain, startEndpoint, startRpc } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import {
  createDispatcher,
  createLog,
  defineConfig,
  openDatabase,
  postgresStore,
  prepare,
  startEngine,
  stellarRpc,
} from "../../index.ts";
import { lockAssets, poolsProjection } from "../support/pools.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

test("a contract event becomes a row and one signed webhook with the same token", async () => {
  const chain = startChain();
  lockAssets(chain, 100);
  const rpc = await startRpc({ chain });
  closing.push(rpc.close);
  const endpoint = await startEndpoint();
  closing.push(endpoint.close);
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);

  const config = defineConfig({
    source: stellarRpc({ network: "testnet", urls: rpc.url, pollMs: 50 }),
    projections: [poolsProjection()],
  });
  await prepare(
    { database, config },
    { adopt: false, rebuildChanged: false, signal: new AbortController().signal },
  );
  const dispatcher = createDispatcher({
    store: postgresStore(database),
    now: () => new Date(),
    allowInsecure: true,
  });
  const webhook = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  await database.query("UPDATE fencepost.webhooks SET deliver_from = '2000-01-01' WHERE id = $1", [
    webhook.id,
  ]);

  const engine = await startEngine({
    database,
    config,
    log: createLog("warn"),
    deliver: { allowInsecure: true },
  });
  closing.push(engine.stop);
  await endpoint.waitFor(100, { timeoutMs: 20_000 });
  lockAssets(chain, 30);
  await endpoint.waitFor(130, { timeoutMs: 20_000 });
  await waitUntil(
    async () => (await database.query("SELECT FROM fencepost.delivery_queue")).rows.length === 0,
    { what: "the queue is empty" },
  );
  const ids = endpoint.requests.map((request) => request.headers["webhook-id"]);
  expect(new Set(ids).size).toBe(130);
  const { rows } = await database.query(
    "SELECT sum(events)::int AS n, sum(locked)::int AS s FROM pools.pools",
  );
  expect(rows).toEqual([{ n: 130, s: (130 * 131) / 2 }]);
  const { rows: deliveries } = await database.query(
    "SELECT state, attempts, count(*)::int AS n FROM fencepost.deliveries GROUP BY 1, 2",
  );
  expect(deliveries).toEqual([{ state: "success", attempts: 1, n: 130 }]);
});
