// Many webhooks and much that waits: what a fan-out does in one step, and what a claim reads, by PostgreSQL's own count
// of pages. `npm run scale` is the full proof, with three million deliveries that wait.
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { emittedMessage } from "../../store/conformance/conformingStore.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { insertMessages } from "../../store/postgres/messages.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";
import { pagesOfClaim } from "../support/claimPages.ts";
import { createTestDatabase, type TestDatabase } from "../support/testDatabase.ts";

const WAITING = Number(process.env["FENCEPOST_WAITING"] ?? 60_000);
const WEBHOOKS = 10_000;
/** Of one fan-out step. */
const LIMITS = { messages: 100, webhooks: 200 };
const CLAIM = { limit: 256, perOrigin: 16, skipOrigins: [], leaseMs: 20_000 };

let testDatabase: TestDatabase;
let database: Database;
beforeAll(async () => {
  testDatabase = await createTestDatabase();
  database = openDatabase(testDatabase.url);
  await migrate(database);
  await database.query(
    `INSERT INTO fencepost.webhooks (id, url, types, secrets, deliver_from)
     SELECT 'wh_' || to_char(i, 'FM00000'), 'https://h' || i || '.example/', '{*}', '[]', '2000-01-01'
     FROM generate_series(1, $1::int) i`,
    [WEBHOOKS],
  );
});
afterAll(async () => {
  await database.close();
  await testDatabase.drop();
});

describe(`one message for ${WEBHOOKS} webhooks`, () => {
  test("is fanned out in chunks, each a transaction of its own, and makes each delivery once", async () => {
    const store = postgresStore(database);
    await database.transaction((client) => insertMessages(client, [emittedMessage(1)], "emitted", "orders"));
    const chunks: number[] = [];
    for (let step = 0; step < 2 * (WEBHOOKS / LIMITS.webhooks); step++) {
      const { messages, deliveries } = await store.fanOut(LIMITS);
      if (messages === 0) break;
      chunks.push(deliveries);
    }
    expect(Math.max(...chunks)).toBeLessThanOrEqual(LIMITS.webhooks);
    expect(chunks.reduce((sum, chunk) => sum + chunk, 0)).toBe(WEBHOOKS);
    expect(await count("fencepost.deliveries")).toBe(WEBHOOKS);
    expect(await count("fencepost.delivery_queue")).toBe(WEBHOOKS);
    expect(await count("fencepost.outbox")).toBe(0);
  });
});

describe(`${WAITING} deliveries that wait for their time, for a limit, or behind one that blocks them`, () => {
  test("do not make a claim read more", { timeout: 600_000 }, async () => {
    await database.query("VACUUM ANALYZE");
    const before = await pagesOfClaim(database, CLAIM);

    // A third each: not due yet, due at a webhook that has all it may have in flight, due at one that has used up its
    // rate; and some behind the head of a strict webhook.
    await database.query(
      `INSERT INTO fencepost.webhooks (id, url, types, secrets, max_in_flight, rate_per_second, ordering) VALUES
         ('wh_flight', 'https://flight.example/', '{none}', '[]', 1, NULL, 'none'),
         ('wh_rate', 'https://rate.example/', '{none}', '[]', NULL, 0.01, 'none'),
         ('wh_strict', 'https://strict.example/', '{none}', '[]', NULL, NULL, 'strict')`,
    );
    await database.query(
      `INSERT INTO fencepost.webhook_pace (webhook_id, free_at)
       VALUES ('wh_flight', '-infinity'), ('wh_rate', now() + interval '1 day')`,
    );
    await database.query("CREATE SEQUENCE waiting_ids START 100000000");
    const third = Math.floor(WAITING / 3);
    for (let done = 0; done < third; done += 100_000) {
      const size = Math.min(100_000, third - done);
      await database.query(
        `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
         SELECT nextval('waiting_ids'), 'wh_' || to_char(1 + i % $2::int, 'FM00000'), now() + interval '1 hour' + i * interval '1 ms'
         FROM generate_series(1, $1::int) i`,
        [size, WEBHOOKS],
      );
      await database.query(
        `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
         SELECT nextval('waiting_ids'), (ARRAY['wh_flight', 'wh_rate'])[1 + i % 2], now() - interval '1 hour'
         FROM generate_series(1, 2 * $1::int) i`,
        [size],
      );
    }
    // The one that the webhook with a limit has in flight, and a head that is in doubt.
    await database.query(
      `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at, fence, attempted, capped)
       VALUES (nextval('waiting_ids'), 'wh_flight', now() + interval '1 hour', 1, true, true)`,
    );
    await database.query(
      `INSERT INTO fencepost.deliveries (event_id, webhook_id, state, strict_position)
       SELECT 'strict_' || i, 'wh_strict', CASE WHEN i = 1 THEN 'in_doubt' ELSE 'pending' END, i
       FROM generate_series(1, 10000) i`,
    );
    await database.query(
      `INSERT INTO fencepost.delivery_queue (delivery_id, webhook_id, next_at)
       SELECT id, webhook_id, now() - interval '1 hour' FROM fencepost.deliveries WHERE webhook_id = 'wh_strict' AND state = 'pending'`,
    );

    const during = await pagesOfClaim(database, CLAIM);
    await database.query("ANALYZE");
    const analyzed = await pagesOfClaim(database, CLAIM);
    process.stdout.write(
      `pages of a claim of ${CLAIM.limit} among ${WEBHOOKS} webhooks: ${before}; with ${WAITING} that wait: ${during}, analyzed: ${analyzed}\n`,
    );
    // A tree is a level or two deeper for a hundred times the rows.
    expect(during).toBeLessThan(2 * before);
    expect(analyzed).toBeLessThan(2 * before);
    const { rows } = await database.query(
      "SELECT FROM fencepost.delivery_queue WHERE fence IS NOT NULL AND webhook_id !~ '^wh_[0-9]'",
    );
    expect(rows, "nothing beyond a limit was claimed").toHaveLength(1);
  });
});

async function count(table: string): Promise<number> {
  const { rows } = await database.query<{ n: number }>(`SELECT count(*)::int AS n FROM ${table}`);
  return rows[0]?.n ?? 0;
}
