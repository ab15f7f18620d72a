// biome-ignore-all lint/style/noNonNullAssertion: this is test code
import { randomBytes } from "node:crypto";
import { afterAll, afterEach, beforeAll, describe, expect, it, test } from "vitest";
import { emptyDeliveryTables } from "../__tests__/support/deliveryTables.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { messageOf } from "./conformance/conformingStore.ts";
import {
  EVERYTHING,
  ended,
  HOUR_MS,
  LEASE_MS,
  secretOf,
  UNAVAILABLE,
  webhookOf,
} from "./conformance/deliverySteps.ts";
import type { DeliveryStore, RecordedAttempt } from "./deliveryStore.ts";
import { type Database, openDatabase } from "./postgres/database.ts";
import { migrate } from "./postgres/migrate.ts";
import { postgresStore } from "./postgres/postgresStore.ts";
import type { PostgresTransaction } from "./postgres/transactions.ts";
import {
  InvalidSecretsKeyError,
  readSecretsKeys,
  SealedSecretError,
  sealedSecrets,
} from "./sealedSecrets.ts";
import type { Webhook, WebhookId } from "./webhook.ts";

const newKey = (): string => randomBytes(32).toString("base64");
const [KEY, OTHER_KEY] = [newKey(), newKey()];

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
});
afterEach(() => emptyDeliveryTables(database));
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

const storeWith = (keys?: string): DeliveryStore<PostgresTransaction> =>
  sealedSecrets(postgresStore(database), readSecretsKeys(keys));
const ID = "wh_a" as WebhookId;
const secretsOf = (webhook: Webhook | undefined): readonly string[] =>
  webhook!.secrets.map(({ secret }) => secret);
const storedSecrets = async (): Promise<readonly string[]> =>
  secretsOf(await postgresStore(database).findWebhook(ID));

/** Claims everything that is due and records attempts of it. */
async function attemptAll(store: DeliveryStore<PostgresTransaction>): Promise<readonly RecordedAttempt[]> {
  const claims = await store.claim(EVERYTHING);
  if (claims.length === 0) return [];
  return store.recordAttempts(
    claims[0]!.fence,
    claims.map(({ id }) => id),
    LEASE_MS,
  );
}

describe("a seal", () => {
  const seal = readSecretsKeys(KEY);
  test.each(["", "whsec_\u{1f4e6}", "x".repeat(10_000)])("opens what it sealed, each time anew", (text) => {
    const [one, two] = [1, 2].map(() => seal.seal(Buffer.from(text), ID));
    expect(one!.equals(two!)).toBe(false);
    for (const sealed of [one!, two!]) {
      expect(sealed.includes(text) && text !== "").toBe(false);
      expect(seal.open(sealed, ID).toString()).toBe(text);
    }
  });

  it("does not open what belongs to something else, was changed, or is no seal", () => {
    const sealed = seal.seal(Buffer.from("secret"), ID);
    expect(() => seal.open(sealed, "wh_b")).toThrow(SealedSecretError);
    for (let i = 0; i < sealed.length; i++) {
      const changed = Buffer.from(sealed);
      changed[i]! ^= 1;
      expect(() => seal.open(changed, ID)).toThrow(SealedSecretError);
    }
    for (const length of [0, 1, 12, 27, 28, sealed.length - 1]) {
      expect(() => seal.open(sealed.subarray(0, length), ID)).toThrow(SealedSecretError);
    }
  });

  it("opens with each of its keys, and seals with the first", () => {
    const sealed = readSecretsKeys(OTHER_KEY).seal(Buffer.from("secret"), ID);
    expect(() => seal.open(sealed, ID)).toThrow(SealedSecretError);
    const both = readSecretsKeys(` ${KEY} , ${OTHER_KEY}`);
    expect(both.open(sealed, ID).toString()).toBe("secret");
    expect(seal.open(both.seal(Buffer.from("new"), ID), ID).toString()).toBe("new");
  });

  test.each<readonly [string, string, number]>([
    ["a word", "secret", 1],
    ["31 bytes", randomBytes(31).toString("base64"), 1],
    ["33 bytes", randomBytes(33).toString("base64"), 1],
    ["hex", randomBytes(32).toString("hex"), 1],
    ["no padding", KEY.replace("=", ""), 1],
    ["a second key that is none", `${KEY},x`, 2],
    ["a comma at the end", `${KEY},`, 2],
  ])("is refused with %s as its key, which is not shown", (_what, keys, position) => {
    expect(() => readSecretsKeys(keys)).toThrow(InvalidSecretsKeyError);
    expect(() => readSecretsKeys(keys)).toThrow(`Key ${position} of FENCEPOST_SECRETS_KEY`);
    expect(() => readSecretsKeys(keys)).toThrow("openssl rand -base64 32");
    expect(() => readSecretsKeys(keys)).not.toThrow(KEY);
  });
});

describe("a store with sealed secrets", () => {
  it("has none of them in plain text, and gives them back everywhere", async () => {
    const store = storeWith(KEY);
    const given = [secretOf(1), secretOf(2)];
    const added = await store.addWebhook(webhookOf(ID, { secrets: given }));
    expect(secretsOf(added)).toEqual(given);
    const stored = await storedSecrets();
    for (const secret of stored) expect(secret).toMatch(/^sealed:v1:[A-Za-z0-9+/]+=*$/);
    expect(new Set(stored).size).toBe(2);
    expect(await store.findWebhook(ID)).toEqual(added);
    expect(await store.listWebhooks({ limit: 10 })).toEqual([added]);
    expect(secretsOf(await store.updateWebhook(ID, { description: "a" }))).toEqual(given);
    const three = [secretOf(3), ...given];
    expect(secretsOf(await store.rotateSecret(ID, secretOf(3), HOUR_MS))).toEqual(three);
    expect(secretsOf(await store.deactivateWebhook(ID, "Paused."))).toEqual(three);
    expect(secretsOf((await store.activateWebhook(ID, "skip"))!.webhook)).toEqual(three);
    expect(secretsOf(await store.addWebhook(webhookOf(ID)))).toEqual(three);
    expect(await store.findWebhook("wh_none" as WebhookId)).toBe(undefined);
    await store.dispatch(messageOf("order:1"), {});
    const [attempt] = await attemptAll(store);
    expect(attempt!.secrets).toEqual(three);
    const [review] = await store.review(attempt!.fence, [attempt!.id]);
    expect(review!.secrets).toEqual(three);
    expect(
      JSON.stringify(await database.query("SELECT * FROM fencepost.webhooks").then(({ rows }) => rows)),
    ).not.toContain("whsec_");
  });

  it("reads what was stored as plain text before it had a key, and seals what comes then", async () => {
    await storeWith().addWebhook(webhookOf(ID));
    expect(await storedSecrets()).toEqual([secretOf(1)]);
    const store = storeWith(KEY);
    expect(secretsOf(await store.findWebhook(ID))).toEqual([secretOf(1)]);
    await store.rotateSecret(ID, secretOf(2), HOUR_MS);
    expect((await storedSecrets()).map((secret) => secret.slice(0, 7))).toEqual(["sealed:", "whsec_A"]);
    expect(secretsOf(await store.findWebhook(ID))).toEqual([secretOf(2), secretOf(1)]);
  });

  it("is read with a new key in front of the old one", async () => {
    await storeWith(OTHER_KEY).addWebhook(webhookOf(ID));
    const store = storeWith(`${KEY},${OTHER_KEY}`);
    await store.rotateSecret(ID, secretOf(2), HOUR_MS);
    expect(secretsOf(await store.findWebhook(ID))).toEqual([secretOf(2), secretOf(1)]);
  });

  test.each<readonly [string, string | undefined, string]>([
    ["no key", undefined, "FENCEPOST_SECRETS_KEY is not set"],
    ["another key", OTHER_KEY, "none of the keys in FENCEPOST_SECRETS_KEY opens it"],
  ])("says what to do where it is opened with %s", async (_what, keys, text) => {
    await storeWith(KEY).addWebhook(webhookOf(ID));
    const store = storeWith(keys);
    for (const read of [() => store.findWebhook(ID), () => store.listWebhooks({ limit: 10 })]) {
      const reading = read();
      await expect(reading).rejects.toThrow(SealedSecretError);
      await expect(reading).rejects.toThrow(text);
      await expect(reading).rejects.toThrow(ID);
      await expect(reading).rejects.toThrow("Add the key that it was sealed with to the list");
    }
    // What is written has happened: it is told, without what cannot be opened.
    expect(await store.deactivateWebhook(ID, "Paused.")).toMatchObject({ active: false, secrets: [] });
    expect(secretsOf(await store.rotateSecret(ID, secretOf(2), HOUR_MS))).toEqual([secretOf(2)]);
    expect(secretsOf(await store.rotateSecret(ID, secretOf(3), 0))).toEqual([secretOf(3)]);
    expect(secretsOf(await store.findWebhook(ID))).toEqual([secretOf(3)]);
  });

  it("sends nothing unsigned: the attempt is not sent, says so, and holds up no other webhook", async () => {
    await storeWith(OTHER_KEY).addWebhook(webhookOf(ID));
    const store = storeWith(KEY);
    await store.addWebhook(webhookOf("wh_b"));
    const { created } = await store.dispatch(messageOf("order:1"), {});
    const attempts = await attemptAll(store);
    expect(attempts.map(({ webhookId }) => webhookId)).toEqual(["wh_b"]);
    const { id } = created.find(({ webhookId }) => webhookId === ID)!;
    expect(await store.findDelivery(id)).toMatchObject({
      state: "pending",
      attempts: 1,
      lastError: expect.stringContaining("none of the keys in FENCEPOST_SECRETS_KEY opens it"),
    });
    expect(await store.listAttempts(id)).toMatchObject([{ number: 1, outcome: "not_sent" }]);
    const report = await store.finish(attempts[0]!.fence, [ended(attempts[0]!, UNAVAILABLE)]);
    expect(report.recorded.length).toBe(1);
  });

  it("signs with those secrets that can be opened", async () => {
    await storeWith(OTHER_KEY).addWebhook(webhookOf(ID));
    const store = storeWith(KEY);
    await store.rotateSecret(ID, secretOf(2), HOUR_MS);
    await store.dispatch(messageOf("order:1"), {});
    expect((await attemptAll(store)).map(({ secrets }) => secrets)).toEqual([[secretOf(2)]]);
  });
});
