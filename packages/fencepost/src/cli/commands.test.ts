// Commands about webhooks, deliveries and keys, run in this process on a project with a database of its own. That the
// command line reaches them is tested with real processes, in inspect.test.ts.
import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, beforeEach, expect, it, vi } from "vitest";
import { createPoolProject, type TestFolder } from "../__tests__/support/cliProject.ts";
import { emitMessages } from "../__tests__/support/emittedMessages.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { createDispatcher, type Dispatcher } from "../dispatcher.ts";
import { createLog } from "../observe/log.ts";
import { findApiKey } from "../store/postgres/apiKeys.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { migrate } from "../store/postgres/migrate.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { listDeliveries, redeliver, resolve } from "./deliveriesCommand.ts";
import { createKey, listKeys, revokeKey } from "./keysCommand.ts";
import {
  activateWebhook,
  addWebhook,
  deleteWebhook,
  listWebhooks,
  pauseWebhook,
  replayWebhook,
  rotateSecret,
  updateWebhook,
} from "./webhooksCommand.ts";

let project: TestFolder;
let testDatabase: TestDatabase;
let database: Database;
let endpoint: Endpoint;
/** Sends what the commands leave to a running `dev` or `start`. */
let sender: Dispatcher<never>;
let config: { config: string };
beforeAll(async () => {
  project = await createPoolProject("http://127.0.0.1:9");
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
  endpoint = await startEndpoint();
  const store = postgresStore(database);
  sender = createDispatcher<never>({ store, log: createLog("silent"), allowInsecure: true });
  config = { config: `${project.path}/fencepost.config.ts` };
  vi.stubEnv("DATABASE_URL", testDatabase.url);
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await sender.stop();
  await endpoint.close();
  await database.close();
  await testDatabase.drop();
  await project.remove();
});

let printed: string;
beforeEach(() => {
  printed = "";
  vi.spyOn(process.stdout, "write").mockImplementation((text) => {
    printed += String(text);
    return true;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
});

/** What a command prints. */
async function output(command: Promise<void>): Promise<string> {
  printed = "";
  await command;
  return printed;
}

async function json<Shown>(command: Promise<void>): Promise<Shown> {
  return JSON.parse(await output(command)) as Shown;
}

async function add(types: string, settings: object = {}): Promise<string> {
  const options = { ...config, types: [types], ordering: "none", allowInsecure: true, ...settings } as const;
  return /wh_\w+/.exec(await output(addWebhook(endpoint.url, options)))?.[0] ?? "";
}

async function shown(id: string): Promise<Record<string, unknown> | undefined> {
  const { webhooks } = await json<{ webhooks: Record<string, unknown>[] }>(
    listWebhooks({ ...config, json: true }),
  );
  return webhooks.find((webhook) => webhook["id"] === id);
}

it("a webhook is changed, paused and activated, and tells what it missed", async () => {
  const id = await add("missed.one", { rate: 5, maxInFlight: 2, filter: { n: 1 } });
  const insecure = { allowInsecure: true };
  const changes = { filter: "none", rate: "none", onUnknown: "ask", description: "changed" } as const;
  expect(await output(updateWebhook(id, { ...config, ...insecure, ...changes }))).toBe(
    `${id} has changed: filter, description, onUnknown, ratePerSecond.\n`,
  );
  await expect(updateWebhook(id, { ...config, ...insecure })).rejects.toThrow(
    "Nothing is named that could change",
  );
  expect(await output(pauseWebhook(id, { ...config, reason: "moving" }))).toContain("is paused (moving)");
  expect(await shown(id)).toMatchObject({
    filter: null,
    ratePerSecond: null,
    maxInFlight: 2,
    onUnknown: "ask",
    description: "changed",
    active: false,
    disabledReason: "moving",
  });
  await emitMessages(database, "missed.one", 2);
  expect(await output(activateWebhook(id, { ...config, missed: "skip" }))).toContain(
    "which are not delivered: 2.",
  );
  expect(await shown(id)).toMatchObject({ active: true });
});

it("a new secret is printed once, and no list shows one, nor the value of a header", async () => {
  const id = await add("secret.one", { header: { "x-password": "hunter2" } });
  const rotated = await output(rotateSecret(id, { ...config, overlapHours: 2 }));
  const secret = /^secret: (whsec_\S+)\nIt signs from now on, and the ones before it for 2 hours more/.exec(
    rotated,
  )?.[1];
  const { secrets } = await sender.getWebhook(id);
  expect(secrets.map((one) => one.secret)[0]).toBe(secret);
  expect(secrets).toHaveLength(2);
  for (const shownAs of [true, false]) {
    const list = await output(listWebhooks({ ...config, json: shownAs }));
    expect(list).toContain(id);
    for (const hidden of [...secrets.map((one) => one.secret), "hunter2"]) expect(list).not.toContain(hidden);
  }
});

it("a deleted webhook is listed no more, and what is not there is named", async () => {
  const id = await add("deleted.one");
  expect(await output(deleteWebhook(id, config))).toContain(`${id} is deleted.`);
  expect(await shown(id)).toBeUndefined();
  await expect(deleteWebhook(id, config)).rejects.toThrow(`There is no webhook ${id}.`);
  await expect(pauseWebhook("wh_nobody", config)).rejects.toThrow("There is no webhook wh_nobody.");
  await expect(redeliver("dlv_999999", config)).rejects.toThrow("There is no delivery dlv_999999.");
});

it("deliveries are listed by state and by need, sent again, and settled by a person", async () => {
  const id = await add("listed.one");
  const made: string[] = [];
  for (const status of [200, 404, 404]) {
    const event = { event_type: "listed.one", event_id: `listed_${made.length}`, data: {} };
    const { created } = await sender.dispatch(event);
    const delivery = created.find(({ webhookId }) => webhookId === id)?.id ?? "";
    endpoint.next({ status });
    await sender.attempt(delivery);
    made.push(delivery);
  }
  const [sent = "", failed = "", doubtful = ""] = made;
  await database.query(
    "UPDATE fencepost.deliveries SET state = 'in_doubt', doubt_since = now(), next_at = NULL WHERE 'dlv_' || id = $1",
    [doubtful],
  );
  const list = async (filter: object = {}): Promise<readonly string[]> => {
    const options = { ...config, limit: 10, json: true, ...filter };
    const { deliveries } = await json<{ deliveries: { id: string }[] }>(listDeliveries(id, options));
    return deliveries.map((delivery) => delivery.id);
  };
  expect(await list()).toEqual([doubtful, failed, sent]);
  expect(await list({ state: "success" })).toEqual([sent]);
  expect(await list({ needsPerson: true })).toEqual([doubtful]);
  expect(await output(listDeliveries(id, { ...config, limit: 2, json: false }))).toMatch(
    /^id .*\ndlv_\d+ +listed_2 +in_doubt .*\ndlv_\d+ +listed_1 +failed +1 +- +The endpoint answered 404\.\nThere may be more/,
  );

  expect(await output(resolve(doubtful, "delivered", config))).toBe(`${doubtful} is success.\n`);
  await expect(resolve(doubtful, "skip", config)).rejects.toThrow(`The delivery ${doubtful} is success`);
  expect(await output(redeliver(failed, config))).toContain(`${failed} is pending.`);
  expect(await sender.attempt(failed)).toMatchObject({ state: "success", attempts: 2 });
});

it("a replay makes what is missing, and says what was there", async () => {
  await emitMessages(database, "replayed.one", 3);
  const id = await add("replayed.one");
  const range = { ...config, from: new Date("2000-01-01"), to: new Date("2100-01-01") };
  const message = "made 3 deliveries; 0 were there already\n";
  expect(await output(replayWebhook(id, range))).toBe(message);
  expect(await output(replayWebhook(id, range))).toBe("made 0 deliveries; 3 were there already\n");
  await expect(replayWebhook(id, { ...range, to: range.from })).rejects.toThrow("A range of time");
});

it("keys are made, listed without what opens anything, and revoked", async () => {
  const created = await output(createKey("the shop", config));
  const [, id = "", key = ""] = /^id: {2}(key_\w+)\nkey: (fp_\S+)\nStore the key now/.exec(created) ?? [];
  expect(await findApiKey(database, key)).toBe(id);
  expect(await output(listKeys({ ...config, json: false }))).toMatch(
    /^id +created +state +name\nkey_\w+ +\S+Z +valid +the shop\n$/,
  );
  expect(await output(revokeKey(id, config))).toBe(`${id} (the shop) opens nothing any more.\n`);
  expect(await findApiKey(database, key)).toBeUndefined();
  const listed = await output(listKeys({ ...config, json: true }));
  expect(JSON.parse(listed)).toMatchObject({ keys: [{ id, revokedAt: expect.stringMatching(/Z$/) }] });
  expect(listed).not.toContain(key);
  await expect(revokeKey("key_nobody", config)).rejects.toThrow("There is no key key_nobody.");
});
