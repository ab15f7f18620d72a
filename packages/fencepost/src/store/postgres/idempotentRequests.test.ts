import { createHash, randomUUID } from "node:crypto";
import { afterAll, beforeAll, expect, it } from "vitest";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { type ApiKeyId, createApiKey } from "./apiKeys.ts";
import { type Database, openDatabase } from "./database.ts";
import {
  type ClaimResult,
  claimRequest,
  dropClaim,
  type IdempotentRequest,
  keepAnswer,
  letGo,
  pruneIdempotentRequests,
  type RequestClaim,
} from "./idempotentRequests.ts";
import { migrate } from "./migrate.ts";

let testDatabase: TestDatabase;
let database: Database;
let apiKeyId: ApiKeyId;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
  apiKeyId = (await createApiKey(database, "test")).apiKey.id;
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

const ANSWER = { status: 201, answer: Buffer.from('{"id":"wh_1"}') };

function request(body = "one", key: string = randomUUID()): IdempotentRequest {
  return { apiKeyId, key, requestHash: createHash("sha256").update(body).digest() };
}

async function claimed(of: IdempotentRequest): Promise<RequestClaim> {
  const result = await claimRequest(database, of);
  if (result.kind !== "claimed") throw new Error(`The request is ${result.kind}.`);
  return result.claim;
}

/** Lets time pass for one key. */
async function age({ key }: IdempotentRequest, by: string): Promise<void> {
  await database.query(
    "UPDATE fencepost.idempotent_requests SET claimed_at = claimed_at - $2::interval WHERE key = $1",
    [key, by],
  );
}

const kinds = (results: readonly ClaimResult[]): readonly string[] => results.map(({ kind }) => kind).sort();

it("of many that come at once, one carries the request out and the others are told that it is under way", async () => {
  const same = request();
  const results = await Promise.all(Array.from({ length: 12 }, () => claimRequest(database, same)));
  expect(kinds(results)).toEqual(["claimed", ...Array.from({ length: 11 }, () => "under_way")]);
});

it("the same request gets the answer that was kept, and another one under its key is refused", async () => {
  const first = request("one");
  await keepAnswer(database, await claimed(first), ANSWER);
  expect(await claimRequest(database, first)).toEqual({ kind: "answered", ...ANSWER });
  expect(await claimRequest(database, request("two", first.key))).toEqual({ kind: "other_request" });
});

it("the keys of two API keys are not the same key", async () => {
  const other = (await createApiKey(database, "other")).apiKey.id;
  const mine = request();
  await keepAnswer(database, await claimed(mine), ANSWER);
  expect((await claimRequest(database, { ...mine, apiKeyId: other })).kind).toBe("claimed");
});

it("a claim whose process died is taken over after a minute, by one, with the same seed", async () => {
  const dead = request();
  const first = await claimed(dead);
  await age(dead, "59 seconds");
  expect(await claimRequest(database, dead)).toEqual({ kind: "under_way" });
  await age(dead, "2 seconds");
  expect(await claimRequest(database, request("other", dead.key))).toEqual({ kind: "other_request" });
  const results = await Promise.all(Array.from({ length: 8 }, () => claimRequest(database, dead)));
  expect(kinds(results)).toEqual(["claimed", ...Array.from({ length: 7 }, () => "under_way")]);
  const taken = results.find((result) => result.kind === "claimed");
  expect(taken?.claim.seed).toEqual(first.seed);
});

it("whose claim was taken over keeps no answer and drops nothing", async () => {
  const slow = request();
  const first = await claimed(slow);
  await age(slow, "61 seconds");
  const second = await claimed(slow);
  await keepAnswer(database, first, { status: 201, answer: Buffer.from("late") });
  await dropClaim(database, first);
  await letGo(database, first);
  expect(await claimRequest(database, slow)).toEqual({ kind: "under_way" });
  await keepAnswer(database, second, ANSWER);
  expect(await claimRequest(database, slow)).toEqual({ kind: "answered", ...ANSWER });
});

it("a refused request is forgotten, and a failed one is taken over at once with the same seed", async () => {
  const refused = request("refused");
  const first = await claimed(refused);
  await dropClaim(database, first);
  const again = await claimed(request("mended", refused.key));
  expect(again.seed).not.toEqual(first.seed);

  const failed = request("failed");
  const before = await claimed(failed);
  await letGo(database, before);
  expect((await claimed(failed)).seed).toEqual(before.seed);
});

it("after a day a key begins anew, whatever was answered, with another seed", async () => {
  const old = request("one");
  const first = await claimed(old);
  await keepAnswer(database, first, ANSWER);
  await age(old, "23 hours");
  expect((await claimRequest(database, old)).kind).toBe("answered");
  await age(old, "2 hours");
  const anew = await claimed(request("two", old.key));
  expect(anew.seed).not.toEqual(first.seed);
});

it("pruning removes what is older than a day, a bounded number at a time", async () => {
  const old = [request(), request(), request()];
  for (const each of old) {
    await claimed(each);
    await age(each, "25 hours");
  }
  const young = request();
  await claimed(young);
  expect(await pruneIdempotentRequests(database, 2)).toBe(2);
  expect(await pruneIdempotentRequests(database, 2)).toBe(1);
  expect(await pruneIdempotentRequests(database, 2)).toBe(0);
  expect((await claimRequest(database, young)).kind).toBe("under_way");
});
