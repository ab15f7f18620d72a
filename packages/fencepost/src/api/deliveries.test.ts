import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";

let api: TestApi;
let endpoint: Endpoint;
beforeAll(async () => {
  api = await startTestApi();
  endpoint = await startEndpoint();
});
afterAll(async () => {
  await endpoint.close();
  await api.close();
});

interface Shown {
  readonly id: string;
  readonly event_id: string;
  readonly state: string;
  readonly [field: string]: unknown;
}
interface Dispatched {
  readonly event_id: string;
  readonly matched: number;
  readonly created: readonly Shown[];
  readonly existing: readonly Shown[];
  readonly forgotten: readonly string[];
}

async function createWebhook(types: readonly string[], settings: object = {}): Promise<string> {
  const body = { url: endpoint.url, types, ...settings };
  return (await api.call<{ id: string }>("POST /v1/webhooks", { body })).body.id;
}

async function dispatch(type: string, id: string, data: unknown = { n: 1 }): Promise<Dispatched> {
  const body = { event_type: type, event_id: id, data };
  const answer = await api.call<Dispatched>("POST /v1/events", { body });
  expect(answer.status).toBe(202);
  return answer.body;
}

/** The one delivery of a new event to a new webhook. */
async function deliveryOf(type: string, settings: object = {}): Promise<Shown> {
  await createWebhook([type], settings);
  const { created } = await dispatch(type, `event_of_${type}`.replaceAll(".", "_"));
  return created[0] as Shown;
}

it("an event makes one delivery for each webhook that takes it, and dispatched again it makes none", async () => {
  const first = await createWebhook(["order.paid"]);
  const second = await createWebhook(["order.paid", "order.sent"]);
  const made = await dispatch("order.paid", "order_1", { amount: "1" });
  expect(made.created.map((delivery) => delivery["webhook_id"]).sort()).toEqual([first, second].sort());
  expect(made).toMatchObject({ event_id: "order_1", matched: 2, existing: [], forgotten: [] });
  const again = await dispatch("order.paid", "order_1", { amount: "1" });
  expect(again).toEqual({ ...made, created: [], existing: made.created });
});

it("an event of a type that nobody takes makes nothing and says so", async () => {
  expect(await dispatch("nobody.cares", "lost_1")).toEqual({
    event_id: "lost_1",
    matched: 0,
    created: [],
    existing: [],
    forgotten: [],
  });
});

it("the same event id with other content is refused", async () => {
  await createWebhook(["order.changed"]);
  await dispatch("order.changed", "changed_1", { n: 1 });
  for (const body of [
    { event_type: "order.changed", event_id: "changed_1", data: { n: 2 } },
    { event_type: "order.other", event_id: "changed_1", data: { n: 1 } },
  ]) {
    expect(await api.refused("POST /v1/events", { body })).toMatchObject({
      status: 409,
      body: { type: "/docs#event-content-mismatch" },
    });
  }
});

it("an event that cannot be a message is refused, and the field that is missing is named", async () => {
  const event = { event_type: "order.paid", event_id: "fine_1", data: 1 };
  const derived = `evt_${"a".repeat(26)}`;
  for (const wrong of [
    { event_type: "webhook.disabled" },
    { event_id: derived },
    { fencing_token: "pubnet-1" },
    { data: 2 ** 53 },
    { data: "x".repeat(300_000) },
  ]) {
    const { status, body } = await api.refused("POST /v1/events", { body: { ...event, ...wrong } });
    expect({ status, type: body.type }, JSON.stringify(wrong).slice(0, 60)).toEqual({
      status: 422,
      type: "/docs#invalid-message",
    });
  }
  for (const [field, value] of [
    ["event_type", "no spaces"],
    ["event_id", "a.b"],
    ["event_id", ""],
  ] as const) {
    expect(await api.refused("POST /v1/events", { body: { ...event, [field]: value } }), value).toMatchObject(
      {
        status: 422,
        body: { type: "/docs#invalid-request", errors: [{ in: "body", field }] },
      },
    );
  }
  const { data: _, ...missing } = event;
  expect(await api.refused("POST /v1/events", { body: missing })).toMatchObject({
    status: 422,
    body: { type: "/docs#invalid-request", errors: [{ in: "body", field: "data" }] },
  });
});

it("a fencing token and any JSON are carried to the endpoint unchanged", async () => {
  const token = "pubnet-20150930-0063092990-0000027-0006-0000000002";
  await createWebhook(["carried.on"]);
  const data = { "": null, deep: [[{ a: -0.5 }]], text: "ü\u0000\ud800", __proto__x: 1 };
  const { body } = await api.call<Dispatched>("POST /v1/events", {
    body: { event_type: "carried.on", event_id: "carried:1~", data, fencing_token: token },
  });
  await api.call(`POST /v1/deliveries/${body.created[0]?.id}/attempt`);
  const request = endpoint.requests.find(({ headers }) => headers["webhook-id"] === "carried:1~");
  expect(request?.headers["fencing-token"]).toBe(token);
  expect(JSON.parse(request?.body.toString() ?? "")).toMatchObject({ data, fencing_token: token });
});

it("a delivery is read with its attempts, the oldest first", async () => {
  const { id } = await deliveryOf("read.one", { retry_schedule_ms: [60_000], jitter: 0 });
  expect((await api.call(`GET /v1/deliveries/${id}`)).body).toMatchObject({
    state: "pending",
    attempts: 0,
    attempt_list: [],
  });
  endpoint.next({ status: 503, body: "busy" });
  expect((await api.call(`POST /v1/deliveries/${id}/attempt`)).body).toMatchObject({
    state: "pending",
    attempts: 1,
    last_status: 503,
    finished_at: null,
  });
  const after = await api.call<Shown>(`POST /v1/deliveries/${id}/attempt`);
  expect(after.body).toMatchObject({ state: "success", attempts: 2, next_at: null });
  const { body } = await api.call<Shown>(`GET /v1/deliveries/${id}`);
  expect(body).toEqual({ ...after.body, attempt_list: expect.anything() });
  expect(body["attempt_list"]).toMatchObject([
    {
      number: 1,
      url: `${endpoint.url}/`,
      outcome: "rejected",
      status: 503,
      response: "busy",
      late_outcome: null,
    },
    { number: 2, url: `${endpoint.url}/`, outcome: "delivered", status: 200, error: null },
  ]);
});

it("what has ended is not attempted, only redelivered, with the same ids and bytes", async () => {
  const { id, event_id } = await deliveryOf("ended.once");
  endpoint.next({ status: 404 });
  expect((await api.call(`POST /v1/deliveries/${id}/attempt`)).body).toMatchObject({
    state: "failed",
    attempts: 1,
  });
  expect((await api.call(`POST /v1/deliveries/${id}/attempt`)).body).toMatchObject({
    state: "failed",
    attempts: 1,
  });
  expect(await dispatch("ended.once", event_id)).toMatchObject({
    created: [],
    existing: [{ state: "failed" }],
  });
  const again = await api.call<Shown>(`POST /v1/deliveries/${id}/redeliver`);
  expect(again).toMatchObject({ status: 202, body: { id, state: "pending", attempts: 1 } });
  expect((await api.call(`POST /v1/deliveries/${id}/redeliver`)).body).toEqual(again.body);
  expect((await api.call(`POST /v1/deliveries/${id}/attempt`)).body).toMatchObject({
    state: "success",
    attempts: 2,
  });
  const sent = endpoint.requests.filter(({ headers }) => headers["webhook-id"] === event_id);
  expect(sent).toHaveLength(2);
  expect(sent[0]?.body).toEqual(sent[1]?.body);
});

it("what is failed is settled by a person in each way, and what is pending is not", async () => {
  const failed = async (type: string): Promise<string> => {
    const { id } = await deliveryOf(type);
    endpoint.next({ status: 404 });
    await api.call(`POST /v1/deliveries/${id}/attempt`);
    return id;
  };
  const resolve = (id: string, resolution: string) =>
    api.call(`POST /v1/deliveries/${id}/resolve`, { body: { resolution } });
  expect((await resolve(await failed("settled.a"), "delivered")).body).toMatchObject({ state: "success" });
  expect((await resolve(await failed("settled.b"), "resend")).body).toMatchObject({ state: "pending" });
  expect((await resolve(await failed("settled.c"), "skip")).body).toMatchObject({ state: "failed" });
  const { id } = await deliveryOf("settled.d");
  expect(await resolve(id, "delivered")).toMatchObject({ status: 409, body: { type: "/docs#wrong-state" } });
  expect((await resolve(id, "perhaps")).status).toBe(422);
  expect((await api.call(`GET /v1/deliveries/${id}`)).body).toMatchObject({ state: "pending" });
});

it("a delivery of a deleted webhook is not sent again", async () => {
  const delivery = await deliveryOf("deleted.later");
  await api.call(`POST /v1/deliveries/${delivery.id}/attempt`);
  await api.call(`DELETE /v1/webhooks/${delivery["webhook_id"]}`);
  expect(await api.refused(`POST /v1/deliveries/${delivery.id}/redeliver`)).toMatchObject({
    status: 409,
    body: { type: "/docs#wrong-state" },
  });
});

it("a delivery that is none is not found", async () => {
  for (const id of ["dlv_999999999", "dlv_", "x", "dlv_1%00", `dlv_${"9".repeat(40)}`]) {
    for (const route of [
      "GET /v1/deliveries/ID",
      "POST /v1/deliveries/ID/redeliver",
      "POST /v1/deliveries/ID/attempt",
    ]) {
      expect((await api.refused(route.replace("ID", id))).status, `${route} ${id}`).toBe(404);
    }
    const body = { resolution: "skip" };
    expect((await api.refused(`POST /v1/deliveries/${id}/resolve`, { body })).status, id).toBe(404);
  }
});
