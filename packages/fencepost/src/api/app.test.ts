import { request } from "node:http";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";
import { createApiKey, revokeApiKey } from "../store/postgres/apiKeys.ts";

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api.close());

it("without a valid key everything under /v1 is refused, and says how to authenticate", async () => {
  const { key: revoked, apiKey } = await createApiKey(api.database, "revoked");
  await revokeApiKey(api.database, apiKey.id);
  for (const key of [null, "", "fp_wrong", `fp_${"A".repeat(43)}`, `${api.key}A`, revoked]) {
    const { status, headers, body } = await api.refused("GET /v1/webhooks", { key });
    expect({ status, type: body.type, challenge: headers.get("www-authenticate") }, String(key)).toEqual({
      status: 401,
      type: "/docs#unauthorized",
      challenge: "Bearer",
    });
  }
  const basic = { authorization: `Basic ${Buffer.from(`x:${api.key}`).toString("base64")}` };
  expect((await api.refused("GET /v1/webhooks", { key: null, headers: basic })).status).toBe(401);
  const lower = { authorization: `bearer ${api.key}` };
  expect((await api.call("GET /v1/webhooks", { key: null, headers: lower })).status).toBe(200);
});

it("no answer may be cached, as some hold secrets", async () => {
  const body = { url: "https://example.com/", types: ["*"] };
  const answers = [
    await api.call("POST /v1/webhooks", { body }),
    await api.call("GET /v1/webhooks"),
    await api.call("GET /v1/webhooks/wh_nobody"),
  ];
  expect(answers.map(({ status }) => status)).toEqual([201, 200, 404]);
  for (const { headers } of answers) expect(headers.get("cache-control")).toBe("no-store");
});

it("without a key not even whether a path exists is told", async () => {
  for (const route of ["GET /v1", "GET /v1/nothing", "PUT /v1/webhooks", "POST /v1/webhooks"]) {
    expect((await api.refused(route, { key: null })).status, route).toBe(401);
  }
});

it("a path that is none is a problem, and so is a wrong method, which names the right ones", async () => {
  expect(await api.refused("GET /v1/nothing")).toMatchObject({
    status: 404,
    body: { type: "/docs#not-found", title: "There is nothing here", status: 404, instance: "/v1/nothing" },
  });
  expect((await api.refused("GET /", { key: null })).status).toBe(404);
  const wrong = await api.refused("PUT /v1/webhooks", { body: {} });
  expect(wrong).toMatchObject({ status: 405, body: { type: "/docs#method-not-allowed" } });
  expect(wrong.headers.get("allow")?.split(", ").sort()).toEqual(["GET", "HEAD", "POST"]);
  expect((await api.refused("DELETE /health", { key: null })).headers.get("allow")).toBe("GET, HEAD");
});

it("a body that is not JSON, not UTF-8, not declared as JSON, or too large, is refused", async () => {
  const event = { event_type: "order.paid", event_id: "order_1", data: null };
  const cases: readonly (readonly [number, string, Parameters<TestApi["refused"]>[1]])[] = [
    [400, "malformed-request", { raw: "{" }],
    [400, "malformed-request", { raw: "" }],
    [400, "malformed-request", { raw: Buffer.from([0x22, 0xff, 0x22]) }],
    [415, "unsupported-media-type", { body: event, headers: { "content-type": "text/plain" } }],
    [
      415,
      "unsupported-media-type",
      { body: event, headers: { "content-type": "application/x-www-form-urlencoded" } },
    ],
    [413, "body-too-large", { raw: JSON.stringify({ ...event, data: "x".repeat(600_000) }) }],
    [422, "invalid-request", { raw: "null" }],
    [422, "invalid-request", { raw: "[]" }],
  ];
  for (const [status, kind, call] of cases) {
    expect(await api.refused("POST /v1/events", call), kind).toMatchObject({
      status,
      body: { status, type: `/docs#${kind}` },
    });
  }
});

it("a body that is too large is refused although its length is not told beforehand", async () => {
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const sending = request(
      `${api.url}/v1/events`,
      { method: "POST", headers: { authorization: `Bearer ${api.key}`, "content-type": "application/json" } },
      (response) => {
        response.resume();
        resolve(response.statusCode);
      },
    );
    sending.on("error", reject);
    for (let i = 0; i < 20; i++) sending.write("x".repeat(60_000));
    sending.end();
  });
  expect(status).toBe(413);
});

it("every field that does not fit is named, up to twenty, and nothing that was sent comes back at length", async () => {
  const { status, body } = await api.refused("POST /v1/webhooks", {
    body: { types: [1, "a.b"], on_unknown: "maybe", jitter: 2, extra: 1 },
  });
  expect(status).toBe(422);
  expect(body.errors?.map(({ in: place, field }) => `${place} ${field}`)).toEqual([
    "body url",
    "body types.0",
    "body on_unknown",
    "body jitter",
    "body ",
  ]);
  const many = await api.refused("POST /v1/webhooks", {
    body: { url: "https://a.example/", types: Array.from({ length: 100 }, () => 1) },
  });
  expect(many.body.errors).toHaveLength(20);
  const long = await api.refused("POST /v1/webhooks", { body: { ["x".repeat(100_000)]: 1 } });
  expect(JSON.stringify(long.body).length).toBeLessThan(3_000);
  const query = await api.refused("GET /v1/webhooks?limit=101&cursor=x");
  expect(query.body.errors).toMatchObject([{ in: "query", field: "limit" }]);
});

it("a request whose target is none is answered with a problem", async () => {
  const answer = await new Promise<{ status: number | undefined; type: string | undefined }>(
    (resolve, reject) => {
      const { hostname, port } = new URL(api.url);
      request({ hostname, port, path: "/v1\\webhooks", method: "GET" }, (response) => {
        response.resume();
        resolve({ status: response.statusCode, type: response.headers["content-type"] });
      })
        .on("error", reject)
        .end();
    },
  );
  expect(answer).toEqual({ status: 400, type: "application/problem+json" });
});

it("health, readiness and metrics need no key", async () => {
  expect(await api.call("GET /health", { key: null })).toMatchObject({ status: 200, body: { status: "ok" } });
  expect(await api.call("GET /ready", { key: null })).toMatchObject({ status: 200, body: { status: "ok" } });
  const { status, headers, body } = await api.call<string>("GET /metrics", { key: null });
  expect(status).toBe(200);
  expect(headers.get("content-type")).toMatch(/^text\/plain; version=0\.0\.4/);
  expect(body).toContain("\nfencepost_deliveries_due_lag_seconds 0\n");
});
