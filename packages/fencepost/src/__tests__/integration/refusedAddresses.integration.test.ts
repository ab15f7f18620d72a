import { startEndpoint } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { startDeliverLoop } from "../../deliver/deliverLoop.ts";
import {
  createDispatcher,
  createLog,
  InvalidNetworkError,
  migrate,
  openDatabase,
  postgresStore,
} from "../../index.ts";
import { createTestDatabase } from "../support/testDatabase.ts";
import { waitUntil } from "../support/waitUntil.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

test("a webhook of development is refused by a production worker, which says so, and is sent by the next in development", async () => {
  const endpoint = await startEndpoint();
  closing.push(endpoint.close);
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  await migrate(database);
  const store = postgresStore(database, { retryScheduleMs: [10, 10, 600_000] });
  const log = createLog("warn");

  expect(() => startDeliverLoop({ store, log, allowNetworks: ["0.0.0.0/0"] })).toThrow(InvalidNetworkError);

  const dispatcher = createDispatcher({ store, now: () => new Date(), allowInsecure: true });
  const http = await dispatcher.addWebhook({ url: endpoint.url, types: ["*"] });
  const https = await dispatcher.addWebhook({ url: endpoint.url.replace("http:", "https:"), types: ["*"] });
  await dispatcher.dispatch({ event_type: "order.paid", event_id: "evt_1", data: {} });
  const deliveries = async () =>
    (
      await database.query<{
        webhook_id: string;
        state: string;
        attempts: number;
        last_error: string | null;
      }>("SELECT webhook_id, state, attempts, last_error FROM fencepost.deliveries")
    ).rows;

  const production = startDeliverLoop({ store, log, pollMs: 20 });
  closing.push(production.stop);
  await waitUntil(
    async () => (await deliveries()).every(({ attempts, state }) => attempts === 3 && state === "pending"),
    {
      what: "both deliveries were attempted and are retried",
    },
  );
  await production.stop();
  const errors = new Map((await deliveries()).map((row) => [row.webhook_id, row.last_error]));
  const host = new URL(endpoint.url).host;
  expect(errors.get(http.id)).toBe(
    `http://${host} is refused by the rule "https": a url must begin with https://.`,
  );
  expect(errors.get(https.id)).toMatch(/^127\.0\.0\.1 is refused by the rule "loopback": /);
  expect(endpoint.requests).toEqual([]);
  const { rows } = await database.query("SELECT DISTINCT outcome FROM fencepost.attempts");
  expect(rows).toEqual([{ outcome: "not_sent" }]);

  await database.query("UPDATE fencepost.delivery_queue SET next_at = now()");
  const development = startDeliverLoop({ store, log, pollMs: 20, allowInsecure: true });
  closing.push(development.stop);
  await endpoint.waitFor(1);
});
