import { startChain, startRpc } from "@fencepost/simulator";
import { deriveEventId, sequenceToken, tokenFromRpcId } from "@fencepost/token";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { never, noWait } from "../__tests__/support/windows.ts";
import { backfill } from "../ingest/backfill.ts";
import { registerStream } from "../ingest/registerStream.ts";
import { createLog } from "../observe/log.ts";
import { stellarRpcWith } from "../source/stellarRpc.ts";
import { loadDecoder } from "../xdr/decode.ts";

const tokenOf = (n: number) => sequenceToken({ stream: "billing", epoch: "20260101", n: BigInt(n) });
const event = (n: number, more: object = {}) => ({
  stream: "billing",
  epoch: "20260101",
  n: `${n}`,
  event_type: "invoice.paid",
  data: { amount: n },
  ...more,
});

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api.close());

const post = (body: object) => api.call("POST /v1/events", { body });

describe("an event of a producer's stream", () => {
  test("is stored once under its token, and its message waits for the dispatcher", async () => {
    const eventId = deriveEventId(tokenOf(1), "invoice.paid");
    const answer = { event_id: eventId, fencing_token: tokenOf(1) };
    expect(await post(event(1))).toMatchObject({ status: 202, body: { ...answer, stored: true } });
    expect(await post(event(1))).toMatchObject({ status: 202, body: { ...answer, stored: false } });
    const trace = await api.call<{ messages: unknown[] }>(`GET /v1/trace/${tokenOf(1)}`);
    expect(trace.body).toMatchObject({ event: { stream: "billing", type: "produced" } });
    expect(trace.body.messages).toMatchObject([{ event_id: eventId, in_outbox: true }]);
  });

  test("with other content under its number is refused", async () => {
    await post(event(2));
    const { body } = await api.refused("POST /v1/events", { body: event(2, { data: {} }) });
    expect(body).toMatchObject({ status: 409, type: "/docs#event-content-mismatch" });
    expect(body.detail).toContain(tokenOf(2));
  });

  test.each([
    ["without a number", { n: undefined }, "n"],
    ["with an id of its own", { event_id: "order_1" }, "event_id"],
    ["with a token of its own", { fencing_token: tokenOf(1) }, "fencing_token"],
    ["with a number but no stream", { stream: undefined, event_id: "order_1" }, "n"],
    ["without id and stream", { stream: undefined, epoch: undefined, n: undefined }, "event_id"],
  ])("%s is refused, and the field is named", async (_, more, field) => {
    const { body } = await api.refused("POST /v1/events", { body: event(3, more) });
    expect(body.status).toBe(422);
    expect(body.errors?.map((error) => error.field)).toContain(field);
  });

  test("is refused in the stream of a chain", async () => {
    const { body } = await api.refused("POST /v1/events", { body: event(4, { stream: "testnet" }) });
    expect(body).toMatchObject({ status: 422, type: "/docs#invalid-message" });
  });
});

describe("the list of what a webhook was due", () => {
  test("is in token order, page by page, with each delivery, and begins where it is asked to", async () => {
    const stream = "orders";
    const webhook = await api.dispatcher.addWebhook({ url: "http://127.0.0.1:9/", types: ["order.made"] });
    for (const n of [3, 1, 5, 2, 4]) await post(event(n, { stream, event_type: "order.made" }));
    await post(event(9, { stream, event_type: "order.lost" }));
    const list = async (query: string) => {
      const { body } = await api.call<{
        items: { fencing_token: string; state: string | null }[];
        next_cursor: string | null;
      }>(`GET /v1/webhooks/${webhook.id}/events?${query}`);
      return { ...body, numbers: body.items.map((item) => Number(item.fencing_token.slice(-5))) };
    };
    const first = await list("limit=2");
    expect(first).toMatchObject({ numbers: [1, 2], items: [{ event_type: "order.made", state: null }, {}] });
    const second = await list(`limit=2&cursor=${first.next_cursor}`);
    expect(second.numbers).toEqual([3, 4]);
    expect(await list(`limit=2&cursor=${second.next_cursor}`)).toMatchObject({
      numbers: [5],
      next_cursor: null,
    });
    const after = sequenceToken({ stream, epoch: "20260101", n: 3n });
    expect((await list(`after=${after}`)).numbers).toEqual([4, 5]);
    for (const query of ["cursor=eA", "after=testnet"]) {
      const { body } = await api.refused(`GET /v1/webhooks/${webhook.id}/events?${query}`);
      expect(body.status).toBe(422);
    }
    expect((await api.refused("GET /v1/webhooks/wh_000000000000000000000000/events")).status).toBe(404);
  });
});

test("an audit reads the source again, and names what is not stored", async () => {
  const chain = startChain();
  lockAssets(chain, 40, { perLedger: 10 });
  const rpc = await startRpc({ chain });
  const source = stellarRpcWith({ network: "testnet", urls: rpc.url }, noWait);
  const own = await startTestApi({ source });
  try {
    const { database } = own;
    await registerStream(database, source, [{ contractId: POOL_CONTRACT, startLedger: 1 }], {
      adopt: false,
      signal: never,
    });
    const context = {
      database,
      source,
      decoder: await loadDecoder(),
      leaseMs: 30_000,
      log: createLog("silent"),
    };
    const range = { fromLedger: 1, throughLedger: chain.latest };
    await backfill(context, { ...range, signal: never });
    const path = `GET /v1/audit?from=1&to=${chain.latest}`;
    expect(await own.call(path)).toMatchObject({
      status: 200,
      body: { differences: 0, unread_from: null, events: { agreed: 40 } },
    });
    const [first] = [...chain.events()].map(({ id }) => tokenFromRpcId(source.chain, id));
    await database.query("DELETE FROM fencepost.events WHERE token = $1", [first]);
    expect((await own.call(path)).body).toMatchObject({
      differences: 1,
      events: { agreed: 39, missing: { count: 1, listed: [first] } },
    });
    expect((await own.refused("GET /v1/audit?from=1&to=2000")).status).toBe(422);
    expect((await own.refused("GET /v1/audit?from=900&to=901")).status).toBe(422);
  } finally {
    await own.close();
    await rpc.close();
  }
});

test("an audit is not found in a process that reads no source", async () => {
  expect((await api.refused("GET /v1/audit?from=1&to=2")).status).toBe(404);
});
