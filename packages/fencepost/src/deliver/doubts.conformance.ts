// biome-ignore-all lint/style/noNonNullAssertion: this is test code
// Endpoints that are asked about deliveries in doubt, over every store, with the receiver library and its inbox in
// PostgreSQL at the other end.
import { answerError, createReceiver, ensureInbox, isReceiptQuery, postgresInbox } from "@fencepost/receiver";
import {
  type Endpoint,
  type EndpointRequest,
  type Reply,
  startProxy,
  type TcpProxy,
} from "@fencepost/simulator";
import pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, it, test } from "vitest";
import { useDeliverers } from "../__tests__/support/deliverSteps.ts";
import { createTestDatabase, type TestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import type { ConformingStore, CreateStore } from "../store/conformance/conformingStore.ts";
import { HOUR_MS, secretOf } from "../store/conformance/deliverySteps.ts";
import type { DeliveryId, DeliveryStore } from "../store/deliveryStore.ts";
import type { Webhook } from "../store/webhook.ts";

const DAY_MS = 86_400_000;
/** Questions enough for what a test waits for. */
const PATIENT = Array.from({ length: 9 }, () => 100);

/** A customer behind a proxy that can lose answers, or hold requests up. */
interface Customer {
  readonly endpoint: Endpoint;
  readonly proxy: TcpProxy;
  readonly webhook: Webhook;
  readonly consumer: string;
  /** Attempts of the event that arrived, queries left out. */
  attempts(): readonly EndpointRequest[];
  queries(): readonly { readonly event_id: string; readonly before: number }[][];
  /** What the receiver did with each attempt, in the order of its answers. */
  readonly answers: string[];
  effects(): Promise<number>;
  /** Before the receiver sees an attempt. */
  onAttempt: (request: EndpointRequest) => Promise<void> | void;
  /** In the transaction of the handler, before its effect. */
  onHandle: (request: EndpointRequest) => Promise<void> | void;
  onQuery: () => Promise<void> | void;
}

/** Defines the tests. */
export function doubtsConformance(create: CreateStore): void {
  const steps = useDeliverers(create);
  const { addWebhook, dispatch, openEndpoint, start, open, waitForStates, stateOf, outcomes } = steps;
  let conforming: ConformingStore;
  let store: DeliveryStore;
  let database: TestDatabase;
  let pool: pg.Pool;
  let customers = 0;
  beforeAll(async () => {
    database = await createTestDatabase();
    pool = new pg.Pool({ connectionString: database.url });
    await ensureInbox(pool);
    await pool.query("CREATE TABLE effects (consumer text NOT NULL, event_id text NOT NULL)");
  });
  afterAll(async () => {
    await pool.end();
    await database.drop();
  });
  beforeEach(() => {
    ({ conforming, store } = steps);
  });

  async function openCustomer(retryScheduleMs: readonly number[] = PATIENT): Promise<Customer> {
    const endpoint = await openEndpoint();
    const proxy = await startProxy({ targetPort: Number(new URL(endpoint.url).port) });
    steps.onClose(proxy.close);
    const consumer = `customer_${++customers}`;
    const receiver = createReceiver({ secrets: secretOf(1), inbox: postgresInbox({ pool }), consumer });
    const webhook = await addWebhook(`http://127.0.0.1:${proxy.port}/`, {
      onUnknown: "ask",
      retryScheduleMs,
    });
    const isQuery = ({ headers }: EndpointRequest): boolean => headers["webhook-id"]!.startsWith("query_");
    const customer: Customer = {
      endpoint,
      proxy,
      webhook,
      consumer,
      answers: [],
      attempts: () => endpoint.requests.filter((request) => !isQuery(request)),
      queries: () => endpoint.requests.filter(isQuery).map(({ body }) => JSON.parse(body.toString()).events),
      async effects() {
        return (await pool.query("SELECT FROM effects WHERE consumer = $1", [consumer])).rows.length;
      },
      onAttempt: () => {},
      onHandle: () => {},
      onQuery: () => {},
    };
    endpoint.answerWith(async (request): Promise<Reply> => {
      try {
        const received = receiver.open(request);
        if (isReceiptQuery(received)) {
          await customer.onQuery();
          return { status: 200, body: JSON.stringify(await receiver.answerQuery(received)) };
        }
        await customer.onAttempt(request);
        const { outcome } = await receiver.handle(received, async ({ eventId }, tx) => {
          await customer.onHandle(request);
          await tx.query("INSERT INTO effects VALUES ($1, $2)", [consumer, eventId]);
        });
        customer.answers.push(outcome);
        return { status: 200 };
      } catch (error) {
        const { status, headers, body } = answerError(error);
        customer.answers.push(`refused with ${status}`);
        return { status, headers: Object.fromEntries(Object.entries(headers)), body };
      }
    });
    return customer;
  }

  /** Loses the answer to the first attempt: the receiver has handled it, and the sender cannot know. */
  function loseFirstAnswer({ proxy }: Customer): void {
    proxy.cutWhen((_chunk, direction) => direction === "down");
  }

  /** Loses the first attempt itself, after its bytes have left. */
  function loseFirstAttempt({ proxy }: Customer): void {
    proxy.cutWhen((chunk, direction) => direction === "up" && chunk.includes("webhook-id"));
  }

  const asksNoMore = async (id: DeliveryId): Promise<void> => {
    await waitUntil(
      async () => {
        const { state, nextAt } = (await store.findDelivery(id))!;
        return state === "in_doubt" && nextAt === null;
      },
      { what: "it waits for a person" },
    );
  };

  describe("an endpoint that is asked", () => {
    it("and has the event gets it no second time: the delivery is a success", async () => {
      const customer = await openCustomer();
      loseFirstAnswer(customer);
      const [made] = await dispatch();
      start();
      await waitForStates({ success: 1 });
      expect(await store.findDelivery(made!.id)).toMatchObject({
        attempts: 1,
        lastError: null,
        nextAt: null,
      });
      expect(await outcomes()).toEqual([[1, "unknown"]]);
      const [attempt] = await conforming.attempts(made!.id);
      const asked = [{ event_id: made!.eventId, before: Number(attempt!.timestamp) }];
      expect(customer.queries()).toEqual([asked]);
      expect([customer.attempts().length, await customer.effects()]).toEqual([1, 1]);
    });

    it("and has not got it is sent it again, later than what it has fenced off, and is told once", async () => {
      const customer = await openCustomer();
      loseFirstAttempt(customer);
      const [made] = await dispatch();
      start();
      await waitForStates({ success: 1 });
      expect(await outcomes()).toEqual([
        [1, "unknown"],
        [2, "delivered", 200],
      ]);
      const [first, second] = await conforming.attempts(made!.id);
      expect(second!.timestamp > first!.timestamp).toBe(true);
      expect([customer.attempts().length, await customer.effects()]).toEqual([1, 1]);
    });

    it("while it handles the event is asked again later", async () => {
      const customer = await openCustomer();
      const handled = Promise.withResolvers<void>();
      customer.onHandle = () => {
        customer.proxy.cut();
        return handled.promise;
      };
      await dispatch();
      start();
      await waitUntil(() => customer.queries().length >= 2, { what: "it was asked twice" });
      handled.resolve();
      await waitForStates({ success: 1 });
      expect([customer.attempts().length, await customer.effects()]).toEqual([1, 1]);
    });

    it("and may have forgotten the event is not believed: a person decides", async () => {
      const customer = await openCustomer();
      loseFirstAnswer(customer);
      customer.onQuery = async () => {
        // As if it had pruned too early: an inbox may only forget what is not sent again.
        const inbox = postgresInbox({ pool });
        const now = () => new Date(Date.now() + 8 * DAY_MS);
        const pruning = createReceiver({
          secrets: secretOf(1),
          inbox,
          consumer: customer.consumer,
          now,
        });
        await pruning.pruneInbox({ olderThan: new Date(Date.now() + 60_000) });
      };
      const [made] = await dispatch();
      const lines: string[] = [];
      start({ log: createLog("warn", { write: (line) => lines.push(line) }) });
      await asksNoMore(made!.id);
      expect((await store.findDelivery(made!.id))!.lastError).toMatch(/it may have forgotten\.$/);
      expect([customer.attempts().length, customer.queries().length, await customer.effects()]).toEqual([
        1, 1, 1,
      ]);
      const waits = { delivery: made!.id, msg: "delivery is in doubt and waits for a person" };
      await waitUntil(() => lines.length > 0, { what: "it is told in the log" });
      expect(lines.map((line) => JSON.parse(line))).toMatchObject([waits]);
      await store.resolve(made!.id, "delivered");
      await waitForStates({ success: 1 });
    });

    it("but whose inbox goes back to the first attempt is believed, though it has pruned", async () => {
      const customer = await openCustomer();
      const now = () => new Date(Date.now() + 8 * DAY_MS);
      const inbox = postgresInbox({ pool });
      const pruning = createReceiver({ secrets: secretOf(1), inbox, consumer: customer.consumer, now });
      await dispatch(1, "old");
      const deliverer = start();
      await waitForStates({ success: 1 });
      await deliverer.stop();
      // Up to the second of the next attempt, and not beyond it.
      await pruning.pruneInbox({ olderThan: new Date(Math.floor(Date.now() / 1_000) * 1_000) });
      loseFirstAttempt(customer);
      await dispatch(1, "new");
      start();
      await waitForStates({ success: 2 });
      expect(await customer.effects()).toBe(2);
    });

    test.each<readonly [string, Reply]>([
      ["an empty 200", { status: 200 }],
      [
        "what is no list of receipts",
        { status: 200, body: '{"events":[{"event_id":"event:1","status":"received"}]}' },
      ],
      ["about other events", { status: 200, body: '{"retained_since":null,"events":[]}' }],
      ["too much", { status: 200, body: "x".repeat(300_000) }],
      ["an error", { status: 503 }],
    ])("and answers with %s is asked by the schedule, and then a person decides", async (_what, reply) => {
      const customer = await openCustomer([20, 20]);
      loseFirstAnswer(customer);
      customer.endpoint.answerWith(({ headers }) =>
        headers["webhook-id"]!.startsWith("query_") ? reply : { status: 200 },
      );
      const [made] = await dispatch();
      start();
      await asksNoMore(made!.id);
      expect((await store.findDelivery(made!.id))!.lastError).toMatch(/^The endpoint was asked, in vain: /);
      expect([customer.attempts().length, customer.queries().length]).toEqual([1, 3]);
      expect(await stateOf(made!.id)).toBe("in_doubt after 1");
    });

    it("is asked about all that is in doubt for it with one signed request, over one connection", async () => {
      const customer = await openCustomer([HOUR_MS, HOUR_MS]);
      customer.endpoint.answerWith({ kind: "resetAfterBody" });
      const made = await dispatch(8);
      const before = start();
      await waitUntil(
        async () => (await conforming.deliveries()).every(({ state }) => state === "in_doubt"),
        {
          what: "all are in doubt",
        },
      );
      const isWaiting = async (): Promise<boolean> => {
        const all = await Promise.all(made.map(({ id }) => store.findDelivery(id)));
        return all.every((one) => one!.nextAt!.getTime() - Date.now() > HOUR_MS / 4);
      };
      await waitUntil(isWaiting, { what: "all were asked about in vain" });
      await before.stop();
      const asked = customer.queries().length;
      for (const { id } of made) await conforming.makeDue(id);
      const other = await openCustomer();
      await store.updateWebhook(customer.webhook.id, { url: other.webhook.url, headers: { "x-team": "a" } });
      start();
      await waitForStates({ success: 8 });
      expect(customer.queries().length).toBe(asked);
      expect(other.queries().length).toBe(1);
      expect(
        other
          .queries()[0]!
          .map(({ event_id }) => event_id)
          .sort(),
      ).toEqual(made.map(({ eventId }) => eventId as string).sort());
      const query = other.endpoint.requests.find(({ headers }) =>
        headers["webhook-id"]!.startsWith("query_"),
      );
      expect(query!.headers).toMatchObject({ "x-team": "a", "content-type": "application/json" });
      expect(await other.effects()).toBe(8);
    });

    it("is asked no more once its owner wants it resent", async () => {
      const customer = await openCustomer([HOUR_MS]);
      customer.endpoint.answerWith({ kind: "resetAfterBody" });
      const [made] = await dispatch();
      const before = start();
      await waitUntil(() => customer.queries().length === 1, { what: "it was asked" });
      await before.stop();
      const other = await openCustomer();
      await store.updateWebhook(customer.webhook.id, { onUnknown: "resend", url: other.webhook.url });
      await conforming.makeDue(made!.id);
      const deliverer = start();
      await waitForStates({ pending: 1 });
      expect(await deliverer.attempt(made!.id)).toBe(true);
      await waitForStates({ success: 1 });
      expect([other.queries().length, other.attempts().length]).toEqual([0, 1]);
    });

    it("is asked at once by an attempt of one that waits to be asked about", async () => {
      const customer = await openCustomer([HOUR_MS]);
      loseFirstAnswer(customer);
      customer.endpoint.next({ status: 200 }, { status: 503 });
      const [made] = await dispatch();
      const deliverer = open();
      expect(await deliverer.attempt(made!.id)).toBe(true); // sent, and unknown
      expect(await deliverer.attempt(made!.id)).toBe(true); // asked, in vain
      expect(await stateOf(made!.id)).toBe("in_doubt after 1");
      expect(await deliverer.attempt(made!.id)).toBe(true); // asked: fenced, for the scripted answers were no receiver's
      expect(await stateOf(made!.id)).toBe("pending after 1");
      expect(await deliverer.attempt(made!.id)).toBe(true);
      expect(await stateOf(made!.id)).toBe("success after 2");
      expect(await customer.effects()).toBe(1);
    });
  });

  describe("an attempt that is delayed on the network", () => {
    /** The first attempt is held up on its way, and given up; whatever is sent from then on gets through. */
    async function holdUp(customer: Customer): Promise<void> {
      customer.proxy.pause();
      start({ timeoutMs: 1_000 });
      await waitUntil(async () => (await conforming.deliveries())[0]!.state === "in_doubt", {
        what: "it is given up",
      });
      await store.updateWebhook(customer.webhook.id, { url: customer.endpoint.url });
    }

    it("until after its replacement was accepted is refused by the receiver, and has no effect", async () => {
      const customer = await openCustomer();
      await dispatch();
      await holdUp(customer);
      await waitForStates({ success: 1 });
      expect([customer.answers, await customer.effects()]).toEqual([["applied"], 1]);
      customer.proxy.resume();
      await waitUntil(() => customer.answers.length === 2, { what: "the late copy was answered" });
      const times = customer.attempts().map(({ headers }) => Number(headers["webhook-timestamp"]));
      expect(times[1]).toBeLessThan(times[0]!);
      expect([customer.answers, await customer.effects()]).toEqual([["applied", "refused with 409"], 1]);
      expect(await outcomes()).toEqual([
        [1, "unknown"],
        [2, "delivered", 200],
      ]);
    });

    it("until after its replacement was sent, which it overtakes, is refused by the receiver", async () => {
      const customer = await openCustomer();
      customer.onAttempt = async ({ headers }) => {
        if (headers["webhook-attempt"] !== "2") return;
        customer.proxy.resume();
        await waitUntil(() => customer.answers.length === 1, { what: "the late copy was answered" });
      };
      await dispatch();
      await holdUp(customer);
      await waitForStates({ success: 1 });
      expect(customer.attempts().map(({ headers }) => headers["webhook-attempt"])).toEqual(["2", "1"]);
      expect([customer.answers, await customer.effects()]).toEqual([["refused with 409", "applied"], 1]);
    });
  });
}
