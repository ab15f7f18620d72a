import { randomBytes } from "node:crypto";
import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterAll, beforeAll, beforeEach, expect, it } from "vitest";
import { type ApiAnswer, startTestApi, type TestApi } from "../__tests__/support/api.ts";
import { createApiKey } from "../store/postgres/apiKeys.ts";

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

let key: string;
beforeEach(() => {
  key = randomBytes(8).toString("hex");
});

type Call = Parameters<TestApi["call"]>[1];
const WEBHOOK = { url: "https://example.com/", types: ["*"] };

function keyed(call: Call = {}, idempotencyKey: string = key): Call {
  return { ...call, headers: { "idempotency-key": idempotencyKey, ...call.headers } };
}
const create = (body: object = WEBHOOK, call: Call = {}) =>
  api.call("POST /v1/webhooks", keyed({ body, ...call }));

async function webhookCount(): Promise<number> {
  return (await api.database.query("SELECT FROM fencepost.webhooks")).rows.length;
}

/** What a process leaves that dies after its effects and before it has kept the answer. */
async function forgetAnswer(seconds: number): Promise<void> {
  await api.database.query(
    `UPDATE fencepost.idempotent_requests SET status = NULL, answer = NULL, claimed_at = now() - make_interval(secs => $2)
     WHERE key = $1`,
    [key, seconds],
  );
}

async function isRemembered(): Promise<boolean> {
  const { rows } = await api.database.query("SELECT FROM fencepost.idempotent_requests WHERE key = $1", [
    key,
  ]);
  return rows.length > 0;
}

it("the same request with its key is answered as before, and carried out once", async () => {
  const before = await webhookCount();
  const first = await create();
  const again = await create();
  expect(again.body).toEqual(first.body);
  expect(again.status).toBe(201);
  expect(first.headers.get("idempotent-replayed")).toBeNull();
  expect(again.headers.get("idempotent-replayed")).toBe("true");
  expect(again.headers.get("content-type")).toBe("application/json");
  expect(await webhookCount()).toBe(before + 1);
  expect((await create(WEBHOOK, keyed({ body: WEBHOOK }, `${key}x`))).body["id"]).not.toBe(first.body["id"]);
});

it("without a key each request is carried out", async () => {
  const bodies = [
    await api.call("POST /v1/webhooks", { body: WEBHOOK }),
    await api.call("POST /v1/webhooks", { body: WEBHOOK }),
  ].map(({ body }) => body["id"]);
  expect(new Set(bodies).size).toBe(2);
});

it("the key is bound to path and body: another request with it is refused and changes nothing", async () => {
  const { body } = await create();
  const before = await webhookCount();
  for (const [route, call] of [
    ["POST /v1/webhooks", { body: { ...WEBHOOK, description: "other" } }],
    ["POST /v1/webhooks", { raw: `${JSON.stringify(WEBHOOK)} ` }],
    [`POST /v1/webhooks/${body["id"]}/test`, {}],
  ] as const) {
    expect(await api.refused(route, keyed(call)), route).toMatchObject({
      status: 422,
      body: { type: "/docs#idempotency-key-reused" },
    });
  }
  expect(await webhookCount()).toBe(before);
  const { key: other } = await createApiKey(api.database, "another caller");
  expect((await create(WEBHOOK, { key: other })).body["id"]).not.toBe(body["id"]);
});

it("a key that cannot be one is refused", async () => {
  for (const wrong of ["a b", "ü", "x".repeat(256), ""]) {
    const call = keyed({ body: WEBHOOK }, wrong);
    expect(await api.refused("POST /v1/webhooks", call), wrong).toMatchObject({
      status: 422,
      body: { type: "/docs#invalid-request", errors: [{ in: "header", field: "idempotency-key" }] },
    });
  }
});

it("of many at once one is carried out; the others are told to wait, or get its answer", async () => {
  const before = await webhookCount();
  const answers = await Promise.all(Array.from({ length: 12 }, () => create()));
  const made = answers.filter(({ status }) => status === 201);
  const waiting = answers.filter(({ status }) => status === 409);
  expect(made.length + waiting.length).toBe(12);
  expect(made.filter(({ headers }) => !headers.has("idempotent-replayed"))).toHaveLength(1);
  for (const { headers, body } of waiting) {
    expect({ after: headers.get("retry-after"), type: body["type"] }).toEqual({
      after: "1",
      type: "/docs#request-under-way",
    });
  }
  expect(new Set(made.map(({ body }) => body["id"])).size).toBe(1);
  expect(await webhookCount()).toBe(before + 1);
});

it("a refused request is not remembered: mended, it goes through with the same key", async () => {
  expect((await create({ url: "ftp://example.com/", types: ["*"] })).status).toBe(422);
  expect((await create({ url: 7 })).status).toBe(422);
  expect((await api.call("POST /v1/webhooks/wh_nobody/test", keyed())).status).toBe(404);
  expect(await isRemembered()).toBe(false);
  expect((await create()).status).toBe(201);
  expect(await isRemembered()).toBe(true);
});

it("a webhook that was made before its process died is not made again when the request is repeated", async () => {
  const first = await create();
  const before = await webhookCount();
  await forgetAnswer(30);
  expect(await create()).toMatchObject({ status: 409, body: { type: "/docs#request-under-way" } });
  await forgetAnswer(61);
  const again = await create();
  expect(again.headers.get("idempotent-replayed")).toBeNull();
  expect(again).toMatchObject({ status: 201, body: first.body });
  expect(await webhookCount()).toBe(before);
  expect((await create()).headers.get("idempotent-replayed")).toBe("true");
});

it("each other POST is safe to carry out again after its process died", async () => {
  const { body: webhook } = await api.call("POST /v1/webhooks", {
    body: { url: endpoint.url, types: ["repeated.one"] },
  });
  const repeat = async (route: string, body?: object): Promise<readonly ApiAnswer[]> => {
    key = randomBytes(8).toString("hex");
    const answers: ApiAnswer[] = [];
    for (let i = 0; i < 3; i++) {
      answers.push(await api.call(route, keyed(body && { body })));
      await forgetAnswer(61);
    }
    return answers;
  };
  const count = async (): Promise<number> =>
    (await api.database.query("SELECT FROM fencepost.deliveries WHERE webhook_id = $1", [webhook["id"]])).rows
      .length;

  const tests = await repeat(`POST /v1/webhooks/${webhook["id"]}/test`);
  expect(new Set(tests.map(({ body }) => body["id"])).size).toBe(1);
  expect(await count()).toBe(1);

  const event = { event_type: "repeated.one", event_id: "repeated_1", data: {} };
  const events = await repeat("POST /v1/events", event);
  expect(events.map(({ status }) => status)).toEqual([202, 202, 202]);
  expect(await count()).toBe(2);

  const delivery = tests[0]?.body["id"];
  const attempts = await repeat(`POST /v1/deliveries/${delivery}/attempt`);
  expect(attempts.map(({ body }) => body["attempts"])).toEqual([1, 1, 1]);
  const redelivered = await repeat(`POST /v1/deliveries/${delivery}/redeliver`);
  expect(redelivered.map(({ body }) => body["state"])).toEqual(["pending", "pending", "pending"]);

  for (const route of ["pause", "activate"]) {
    const answers = await repeat(`POST /v1/webhooks/${webhook["id"]}/${route}`);
    expect(answers.map(({ status, body }) => ({ status, active: body["active"] }))).toEqual(
      Array.from({ length: 3 }, () => ({ status: 200, active: route === "activate" })),
    );
  }
  // Each rotation that was not answered made a secret that nobody has: the one that is answered signs.
  const rotated = await repeat(`POST /v1/webhooks/${webhook["id"]}/rotate-secret`, { overlap_ms: 0 });
  const { rows } = await api.database.query<{ secret: string }>(
    "SELECT secrets -> 0 ->> 'secret' AS secret FROM fencepost.webhooks WHERE id = $1",
    [webhook["id"]],
  );
  expect(rotated.at(-1)?.body["secrets"]).toEqual([rows[0]?.secret]);
});

it("GET, PATCH and DELETE take no notice of a key", async () => {
  const { body } = await api.call("POST /v1/webhooks", { body: WEBHOOK });
  const route = `/v1/webhooks/${body["id"]}`;
  for (const description of ["a", "b"]) {
    const answer = await api.call(`PATCH ${route}`, keyed({ body: { description } }));
    expect(answer.body["description"]).toBe(description);
  }
  expect((await api.call(`GET ${route}`, keyed())).body["description"]).toBe("b");
  expect((await api.call(`DELETE ${route}`, keyed())).status).toBe(204);
  expect(await isRemembered()).toBe(false);
});

it("an answer that is kept holds no secret in plain text, where secrets are sealed", async () => {
  const sealing = await startTestApi({ secretsKey: Buffer.alloc(32, 7).toString("base64") });
  try {
    const call = keyed({ body: WEBHOOK });
    const first = await sealing.call<{ secrets: string[] }>("POST /v1/webhooks", call);
    const [secret = ""] = first.body.secrets;
    const { rows } = await sealing.database.query<{ answer: Buffer; secrets: string }>(
      "SELECT r.answer, w.secrets::text AS secrets FROM fencepost.idempotent_requests r, fencepost.webhooks w",
    );
    expect(rows).toHaveLength(1);
    expect(rows[0]?.answer.toString("latin1")).not.toContain(secret.slice("whsec_".length));
    expect(rows[0]?.secrets).not.toContain(secret.slice("whsec_".length));
    const again = await sealing.call("POST /v1/webhooks", call);
    expect(again.headers.get("idempotent-replayed")).toBe("true");
    expect(again.body).toEqual(first.body);
    // One that was kept before there was a key is read as it is.
    await sealing.database.query("UPDATE fencepost.idempotent_requests SET answer = $1", [
      Buffer.from(JSON.stringify(first.body)),
    ]);
    expect((await sealing.call("POST /v1/webhooks", call)).body).toEqual(first.body);
  } finally {
    await sealing.close();
  }
});
