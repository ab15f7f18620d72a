// The whole line of a test: a chain behind an RPC, two endpoints, a database, and what must be true at its end.
import { createReceiver, ensureInbox, postgresInbox } from "@fencepost/receiver";
import {
  type Chain,
  type Endpoint,
  type EndpointHandler,
  type FaultPlan,
  type RpcServer,
  startChain,
  startEndpoint,
  startRpc,
} from "@fencepost/simulator";
import { deriveEventId, type EventId, tokenFromRpcId } from "@fencepost/token";
import pg from "pg";
import { expect } from "vitest";
import {
  createDispatcher,
  type Database,
  type Dispatcher,
  migrate,
  openDatabase,
  postgresStore,
  type Webhook,
} from "../../index.ts";
import type { Queryable } from "../../store/postgres/database.ts";
import { expectedPools } from "./pools.ts";
import { createTestDatabase } from "./testDatabase.ts";
import { waitUntil } from "./waitUntil.ts";

export interface Line {
  readonly chain: Chain;
  readonly rpc: RpcServer;
  readonly database: Database;
  readonly databaseUrl: string;
  readonly dispatcher: Dispatcher<Queryable>;
  /** Answers 200 and nothing else. */
  readonly plain: Endpoint;
  readonly plainWebhook: Webhook;
  /** Behind @fencepost/receiver, with its inbox and effects in a schema of the same database. */
  readonly receiving: Endpoint;
  readonly receivingWebhook: Webhook;
  /** Waits until every event of the chain is through every stage and no delivery is left. */
  settled(options?: { readonly timeoutMs?: number }): Promise<void>;
  /** Fails unless every event of the chain is in tables, messages, deliveries and effects exactly once. */
  expectExactlyOnce(callerEvents?: readonly string[]): Promise<void>;
  close(): Promise<void>;
}

export interface LineOptions {
  readonly plan?: FaultPlan;
  /** Stands before the receiver: may answer itself, or answer otherwise than the receiver did. */
  readonly aroundReceiver?: (receive: EndpointHandler) => EndpointHandler;
}

/** Makes everything but the engine. `close()` ends it all. */
export async function startLine({
  plan,
  aroundReceiver = (receive) => receive,
}: LineOptions = {}): Promise<Line> {
  const closing: (() => Promise<unknown>)[] = [];
  const chain = startChain();
  const rpc = await startRpc({ chain, ...(plan && { plan }) });
  closing.push(rpc.close);
  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  await migrate(database);
  const dispatcher = createDispatcher({
    store: postgresStore(database),
    now: () => new Date(),
    allowInsecure: true,
  });

  const plain = await startEndpoint();
  closing.push(plain.close);
  const plainWebhook = await dispatcher.addWebhook({ url: plain.url, types: ["*"] });
  const customer = new pg.Pool({ connectionString: testDatabase.url });
  customer.on("error", () => {}); // an idle connection that goes with its database
  closing.push(() => customer.end());
  await ensureInbox(customer);
  await customer.query("CREATE TABLE effects (event_id text NOT NULL, token text, amount numeric)");
  const receiving = await startEndpoint();
  closing.push(receiving.close);
  const receivingWebhook = await dispatcher.addWebhook({ url: receiving.url, types: ["*"] });
  receiving.answerWith(aroundReceiver(receiverOf(customer, receivingWebhook)));
  // The simulated chain lives in the past, and a webhook is offered what happens after it was made.
  await database.query("UPDATE fencepost.webhooks SET deliver_from = '2000-01-01'");

  async function isSettled(): Promise<boolean> {
    const { rows } = await database.query<{ settled: boolean }>(
      `SELECT s.next_ledger > $1 AND p.cursor = s.seq AND NOT EXISTS (SELECT FROM fencepost.outbox)
              AND NOT EXISTS (SELECT FROM fencepost.delivery_queue) AS settled
       FROM fencepost.streams s JOIN fencepost.projections p ON p.stream = s.stream AND p.state = 'live'`,
      [chain.latest],
    );
    return rows[0]?.settled === true;
  }

  async function expectExactlyOnce(callerEvents: readonly string[] = []): Promise<void> {
    const tokens = [...chain.events()].map((row) =>
      tokenFromRpcId({ stream: "testnet", epoch: "20251217" }, row.id),
    );
    const eventIds = tokens.map((token) => deriveEventId(token, "pool.assets_locked"));
    const allIds = [...eventIds, ...(callerEvents as readonly EventId[])].sort();
    const column = async (sql: string): Promise<unknown[]> =>
      (await database.query<{ v: unknown }>(sql)).rows.map((row) => row.v);

    expect(await column("SELECT token AS v FROM fencepost.events ORDER BY token"), "events stored").toEqual(
      tokens,
    );
    expect(
      await column("SELECT seq::int AS v FROM fencepost.events ORDER BY seq"),
      "seq has no hole",
    ).toEqual(tokens.map((_, i) => i + 1));
    const { rows: pools } = await database.query("SELECT id, locked, events FROM pools.pools ORDER BY id");
    expect(pools, "rows of the projection").toEqual(expectedPools(tokens.length));
    expect(
      await column("SELECT event_id AS v FROM fencepost.messages ORDER BY event_id"),
      "messages",
    ).toEqual(allIds);
    for (const webhook of [plainWebhook, receivingWebhook]) {
      const { rows } = await database.query(
        "SELECT event_id, state FROM fencepost.deliveries WHERE webhook_id = $1 ORDER BY event_id",
        [webhook.id],
      );
      expect(rows, `deliveries to ${webhook.url}`).toEqual(
        allIds.map((id) => ({ event_id: id, state: "success" })),
      );
    }
    expect(await column("SELECT event_id AS v FROM effects ORDER BY event_id"), "effects").toEqual(allIds);
    const tokenOf = new Map(eventIds.map((id, i) => [id as string, tokens[i]]));
    for (const request of [...plain.requests, ...receiving.requests]) {
      const id = request.headers["webhook-id"] ?? "";
      const payload = JSON.parse(request.body.toString()) as { event_id: string; fencing_token?: string };
      expect(payload.event_id).toBe(id);
      expect(payload.fencing_token, "the token is carried unmodified").toBe(tokenOf.get(id));
      expect(request.headers["fencing-token"]).toBe(tokenOf.get(id));
    }
  }

  return {
    chain,
    rpc,
    database,
    databaseUrl: testDatabase.url,
    dispatcher,
    plain,
    plainWebhook,
    receiving,
    receivingWebhook,
    settled: ({ timeoutMs = 60_000 } = {}) =>
      waitUntil(isSettled, { what: "every event is through every stage", timeoutMs }),
    expectExactlyOnce,
    async close() {
      for (const close of closing.reverse()) await close();
    },
  };
}

/** The ids of the requests an endpoint got, each with how often. */
export function requestCounts(endpoint: Endpoint): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const { headers } of endpoint.requests) {
    const id = headers["webhook-id"] ?? "";
    counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  return counts;
}

function receiverOf(customer: pg.Pool, webhook: Webhook): EndpointHandler {
  const receiver = createReceiver({
    secrets: webhook.secrets.map(({ secret }) => secret),
    inbox: postgresInbox({ pool: customer }),
  });
  return async ({ headers, body }) => {
    const { outcome } = await receiver.handle({ headers, body }, async (message, tx) => {
      const { amount = null } = message.data as { amount?: string };
      await tx.query("INSERT INTO effects (event_id, token, amount) VALUES ($1, $2, $3)", [
        message.eventId,
        message.fencingToken ?? null,
        amount,
      ]);
    });
    return { status: 200, body: outcome };
  };
}
