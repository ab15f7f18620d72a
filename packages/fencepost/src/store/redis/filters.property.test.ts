// A filter means the same in both stores: PostgreSQL's own `@>` is the judge.
import fc from "fast-check";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { hasRedis, startRedis } from "../../__tests__/support/redisServer.ts";
import { createTestDatabase, type TestDatabase } from "../../__tests__/support/testDatabase.ts";
import { messageOf } from "../conformance/conformingStore.ts";
import { webhookOf } from "../conformance/deliverySteps.ts";
import { type Database, openDatabase } from "../postgres/database.ts";
import { migrate } from "../postgres/migrate.ts";
import type { JsonObject } from "../webhook.ts";
import { redisStore } from "./redisStore.ts";

/** Few enough that data and filters often have something in common. */
const leaf = fc.constantFrom(
  0,
  1,
  -1,
  0.25,
  0.1 + 0.2,
  1e-7,
  9007199254740991,
  "",
  "a",
  "1",
  "\u{1f4e6}",
  "\0",
  "\ud800",
  true,
  false,
  null,
);
const key = fc.constantFrom("a", "b", "1", "é");
const { data } = fc.letrec((tie) => ({
  data: fc.oneof(
    { maxDepth: 4, depthSize: "medium" },
    leaf,
    fc.array(tie("data"), { maxLength: 3 }),
    fc.dictionary(key, tie("data"), { maxKeys: 3 }),
  ),
}));

/** Parts of data, as a filter would ask for them; sometimes of other data. What is empty is no filter. */
function partOf(value: unknown, keep: () => boolean): unknown {
  if (Array.isArray(value)) {
    const parts = value
      .filter(keep)
      .map((item) => partOf(item, keep))
      .filter((item) => item !== undefined);
    return parts.length > 0 ? parts.reverse() : undefined;
  }
  if (typeof value === "object" && value !== null) {
    const parts = Object.entries(value)
      .filter(keep)
      .map(([name, item]) => [name, partOf(item, keep)] as const)
      .filter(([, item]) => item !== undefined);
    return parts.length > 0 ? Object.fromEntries(parts) : undefined;
  }
  // jsonb holds neither, so no filter does.
  return typeof value === "string" && /[\0\ud800]/.test(value) ? "\ufffd" : value;
}

describe.skipIf(!hasRedis)("a filter", () => {
  let server: Awaited<ReturnType<typeof startRedis>>;
  let client: Redis;
  let testDatabase: TestDatabase;
  let database: Database;
  beforeAll(async () => {
    [server, testDatabase] = await Promise.all([startRedis(), createTestDatabase()]);
    client = new Redis(server.url);
    database = openDatabase(testDatabase.url);
    await migrate(database);
  });
  afterAll(async () => {
    client.disconnect();
    await database.close();
    await testDatabase.drop();
    await server.stop();
  });

  it("takes in Redis what it takes in PostgreSQL", async () => {
    const store = redisStore(client);
    let taken = 0;
    let number = 0;
    const sample = fc.record({
      data: fc.dictionary(key, data, { maxKeys: 4 }),
      other: fc.dictionary(key, data, { maxKeys: 2 }),
      ofOther: fc.integer({ min: 0, max: 3 }),
      dropped: fc.infiniteStream(fc.integer({ min: 0, max: 3 })),
    });
    const property = fc.asyncProperty(sample, async ({ data, other, ofOther, dropped }) => {
      const keep = (): boolean => dropped.next().value !== 0;
      const filter = partOf(ofOther === 0 ? other : data, keep) as JsonObject | undefined;
      if (!filter) return;
      number++;
      const message = messageOf(`order:${number}`, { data });
      await client.flushall();
      await store.addWebhook(webhookOf("wh_a", { filter }));
      const { rows } = await database.query<{ taken: boolean }>(
        "SELECT fencepost.message_data($1) @> $2::jsonb AS taken",
        [message.body, JSON.stringify(filter)],
      );
      const { created } = await store.dispatch(message, {});
      expect(created.length === 1).toBe(rows[0]!.taken);
      if (created.length === 1) taken++;
    });
    await fc.assert(property, { numRuns: 300 });
    // The samples are no use if all of them are alike.
    expect(Math.min(taken, number - taken)).toBeGreaterThan(10);
  });
});
