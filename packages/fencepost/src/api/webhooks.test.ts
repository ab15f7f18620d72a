import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";
import { emitMessages } from "../__tests__/support/emittedMessages.ts";

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

interface Hook {
  readonly id: string;
  readonly secrets?: readonly string[];
  readonly [field: string]: unknown;
}

async function create(body: object = {}): Promise<Hook> {
  const answer = await api.call<Hook>("POST /v1/webhooks", {
    body: { url: endpoint.url, types: ["test.only"], ...body },
  });
  expect(answer.status).toBe(201);
  return answer.body;
}

it("a webhook is created with what was asked for, and defaults for the rest", async () => {
  const settings = {
    url: "https://example.com/hooks",
    types: ["order.paid", "*"],
    filter: { pool: { id: 7 } },
    description: "the first",
    on_unknown: "ask",
    retry_on: "all",
    retry_schedule_ms: [1_000, 60_000],
    jitter: 0,
    ordering: "strict",
    rate_per_second: 2.5,
    max_in_flight: 3,
    disable_after_ms: null,
  };
  const headers = { "X-Tenant": "7", authorization: "Bearer secret" };
  const { id, secrets, created_at, deliver_from, ...made } = await create({ ...settings, headers });
  expect(made).toEqual({
    ...settings,
    header_names: ["x-tenant", "authorization"],
    active: true,
    disabled_reason: null,
    disabled_at: null,
    failing_since: null,
    pruned_until: null,
  });
  expect(secrets).toEqual([expect.stringMatching(/^whsec_/)]);
  expect(created_at).toBe(deliver_from);
  expect(await create()).toMatchObject({
    filter: null,
    header_names: [],
    description: "",
    on_unknown: "resend",
    retry_on: "default",
    retry_schedule_ms: null,
    jitter: 0.5,
    ordering: "none",
    rate_per_second: null,
    max_in_flight: null,
    disable_after_ms: 432_000_000,
  });
  expect((await api.call(`GET /v1/webhooks/${id}`)).status).toBe(200);
});

it("secrets and the values of headers are shown when they are new, and never again", async () => {
  const given = `whsec_${Buffer.alloc(32, 9).toString("base64")}`;
  const { id, secrets } = await create({ secrets: [given], headers: { "x-password": "hunter2" } });
  expect(secrets).toEqual([given]);
  const rotated = await api.call<Hook>(`POST /v1/webhooks/${id}/rotate-secret`, {
    body: { overlap_ms: 1_000 },
  });
  expect(rotated.body.secrets).toEqual([expect.stringMatching(/^whsec_/)]);
  expect(rotated.body.secrets).not.toEqual([given]);
  const answers = [
    await api.call(`GET /v1/webhooks/${id}`),
    await api.call("GET /v1/webhooks?limit=100"),
    await api.call(`PATCH /v1/webhooks/${id}`, { body: { description: "changed" } }),
    await api.call(`POST /v1/webhooks/${id}/pause`),
    await api.call(`POST /v1/webhooks/${id}/activate`),
  ];
  for (const { body } of answers) {
    for (const secret of [...(rotated.body.secrets ?? []), given, "hunter2"]) {
      expect(JSON.stringify(body)).not.toContain(secret);
    }
  }
});

it("a url that may not be sent to is refused, with the rule that says so, and nothing is stored", async () => {
  const before = (await api.database.query("SELECT FROM fencepost.webhooks")).rows.length;
  for (const [url, rule] of [
    ["https://10.0.0.1/", "private"],
    ["https://[::ffff:169.254.169.254]/", "linkLocal"],
    ["https://user@example.com/", "userInfo"],
    ["ftp://example.com/", "https"],
  ] as const) {
    const { status, body } = await api.refused("POST /v1/webhooks", { body: { url, types: ["*"] } });
    expect({ status, type: body.type }, url).toEqual({ status: 422, type: "/docs#invalid-webhook" });
    expect(body.detail).toContain(`"${rule}"`);
  }
  expect((await api.database.query("SELECT FROM fencepost.webhooks")).rows).toHaveLength(before);
});

it("what is named in a change is changed, and the rest stays; a wrong change changes nothing", async () => {
  const { id } = await create({ description: "before", filter: { a: 1 }, rate_per_second: 5 });
  const changes = { types: ["a.b"], filter: null, rate_per_second: null, max_in_flight: 9 };
  const { status, body } = await api.call(`PATCH /v1/webhooks/${id}`, { body: changes });
  expect({ status, ...body }).toMatchObject({ status: 200, description: "before", ...changes });
  for (const wrong of [{ url: "https://127.0.0.1.nip.io:x/" }, { filter: {} }, { filter: { a: "\u0000" } }]) {
    expect((await api.refused(`PATCH /v1/webhooks/${id}`, { body: wrong })).status).toBe(422);
  }
  for (const unknown of [{ ordering: "strict" }, { secrets: [] }, { active: false }]) {
    const refused = await api.refused(`PATCH /v1/webhooks/${id}`, { body: unknown });
    expect(refused.body.type).toBe("/docs#invalid-request");
  }
  expect((await api.call(`GET /v1/webhooks/${id}`)).body).toEqual(body);
});

it("a webhook is paused with a reason and activated again, and tells what it missed", async () => {
  const { id } = await create({ types: ["missed.it"] });
  const paused = await api.call(`POST /v1/webhooks/${id}/pause`, { body: { reason: "on holiday" } });
  expect(paused.body).toMatchObject({ active: false, disabled_reason: "on holiday" });
  await emitMessages(api.database, "missed.it", 3);
  const active = await api.call(`POST /v1/webhooks/${id}/activate`, { body: { missed: "skip" } });
  expect(active.body).toMatchObject({ active: true, disabled_reason: null, missed: 3 });
});

it("a deleted webhook is gone from everywhere, and its id is not found again", async () => {
  const { id } = await create();
  const gone = await api.call(`DELETE /v1/webhooks/${id}`);
  expect({ status: gone.status, body: gone.body }).toEqual({ status: 204, body: "" });
  const routes = [
    `DELETE /v1/webhooks/${id}`,
    `GET /v1/webhooks/${id}`,
    `GET /v1/webhooks/${id}/deliveries`,
    `POST /v1/webhooks/${id}/test`,
    `POST /v1/webhooks/${id}/activate`,
    `POST /v1/webhooks/${id}/pause`,
    `POST /v1/webhooks/${id}/rotate-secret`,
  ];
  for (const route of routes) {
    expect(await api.refused(route), route).toMatchObject({ status: 404, body: { type: "/docs#not-found" } });
  }
  const changes = { body: { description: "x" } };
  expect((await api.refused(`PATCH /v1/webhooks/${id}`, changes)).status).toBe(404);
  const range = { from: "2026-01-01T00:00:00Z", to: "2027-01-01T00:00:00Z" };
  expect((await api.refused(`POST /v1/webhooks/${id}/replay`, { body: range })).status).toBe(404);
  const { body } = await api.call<{ items: Hook[] }>("GET /v1/webhooks?limit=100");
  expect(body.items.map((item) => item.id)).not.toContain(id);
});

it("an id that cannot be one is not found", async () => {
  for (const id of ["wh_nobody", "wh_", "x", "%00", "..%2F..", "wh_%F0%9F", `wh_${"a".repeat(70)}`]) {
    expect((await api.refused(`GET /v1/webhooks/${id}`)).status, id).toBe(404);
  }
});

it("lists go by pages, each webhook once, and a cursor that is none is refused", async () => {
  for (let i = 0; i < 5; i++) await create();
  const seen: string[] = [];
  let cursor: string | null = "";
  do {
    const next: string = cursor ? `&cursor=${cursor}` : "";
    const { body } = await api.call<{ items: Hook[]; next_cursor: string | null }>(
      `GET /v1/webhooks?limit=2${next}`,
    );
    expect(body.items.length).toBeLessThanOrEqual(2);
    seen.push(...body.items.map(({ id }) => id));
    cursor = body.next_cursor;
  } while (cursor !== null);
  const { rows } = await api.database.query<{ id: string }>(
    "SELECT id FROM fencepost.webhooks WHERE deleted_at IS NULL ORDER BY id",
  );
  expect(seen).toEqual(rows.map(({ id }) => id));
  for (const wrong of ["x", "d2hf", "%00", Buffer.from("dlv_1").toString("base64url")]) {
    const { status, body } = await api.refused(`GET /v1/webhooks?cursor=${wrong}`);
    expect({ status, errors: body.errors }, wrong).toMatchObject({
      status: 422,
      errors: [{ field: "cursor" }],
    });
  }
});

it("a secret is not rotated while too many sign", async () => {
  const { id } = await create();
  const rotate = { body: { overlap_ms: 3_600_000 } };
  for (let i = 0; i < 9; i++) {
    expect((await api.call(`POST /v1/webhooks/${id}/rotate-secret`, rotate)).status).toBe(200);
  }
  expect(await api.refused(`POST /v1/webhooks/${id}/rotate-secret`, rotate)).toMatchObject({
    status: 409,
    body: { type: "/docs#wrong-state" },
  });
});

it("a test message is queued for a webhook whatever its types, and not for one that is paused", async () => {
  const { id } = await create({ types: ["nothing.else"] });
  const { status, body } = await api.call(`POST /v1/webhooks/${id}/test`);
  expect({ status, ...body }).toMatchObject({ status: 202, webhook_id: id, state: "pending", attempts: 0 });
  expect(body["event_id"]).toMatch(/^test_/);
  await api.call(`POST /v1/webhooks/${id}/pause`);
  const messages = async (): Promise<number> =>
    (await api.database.query("SELECT FROM fencepost.messages")).rows.length;
  const before = await messages();
  expect(await api.refused(`POST /v1/webhooks/${id}/test`)).toMatchObject({
    status: 409,
    body: { type: "/docs#wrong-state" },
  });
  expect(await messages()).toBe(before);
});

it("deliveries are listed the newest first, by state, and by whether a person must decide", async () => {
  const { id } = await create({ types: ["listed.one"] });
  const ids: string[] = [];
  for (let i = 0; i < 4; i++) {
    const { body } = await api.call<{ created: { id: string }[] }>("POST /v1/events", {
      body: { event_type: "listed.one", event_id: `listed_${i}`, data: i },
    });
    ids.unshift(body.created[0]?.id ?? "");
  }
  await api.database.query(
    "UPDATE fencepost.deliveries SET state = 'in_doubt', doubt_since = now(), next_at = NULL WHERE event_id = 'listed_2'",
  );
  type Page = { items: { id: string }[]; next_cursor: string | null };
  const list = async (query: string) =>
    (await api.call<Page>(`GET /v1/webhooks/${id}/deliveries${query}`)).body;
  expect((await list("")).items.map((item) => item.id)).toEqual(ids);
  expect((await list("?state=pending")).items).toHaveLength(3);
  expect((await list("?needs_person=true")).items.map((item) => item.id)).toEqual([ids[1]]);
  const first = await list("?limit=3");
  expect(first.items.map((item) => item.id)).toEqual(ids.slice(0, 3));
  expect(await list(`?limit=3&cursor=${first.next_cursor}`)).toMatchObject({
    items: [{ id: ids[3] }],
    next_cursor: null,
  });
  for (const wrong of ["?state=lost", "?needs_person=yes", "?limit=0", "?limit=x", "?cursor=eA"]) {
    expect((await api.refused(`GET /v1/webhooks/${id}/deliveries${wrong}`)).status, wrong).toBe(422);
  }
});

it("a replay makes what is missing, page by page, once", async () => {
  await emitMessages(api.database, "replayed.one", 5);
  const { id } = await create({ types: ["replayed.one"] });
  const range = { from: "2020-01-01T00:00:00Z", to: "2030-01-01T00:00:00+02:00", limit: 2 };
  const replay = async (body: object) =>
    (
      await api.call<Record<string, number> & { next_cursor: string | null }>(
        `POST /v1/webhooks/${id}/replay`,
        { body },
      )
    ).body;
  let created = 0;
  for (let pass = 0; pass < 2; pass++) {
    let cursor: string | null = null;
    let pages = 0;
    do {
      const report: Awaited<ReturnType<typeof replay>> = await replay({
        ...range,
        ...(cursor && { cursor }),
      });
      created += report["created"] ?? 0;
      cursor = report.next_cursor;
    } while (cursor !== null && ++pages < 50);
    expect(cursor).toBeNull();
    expect(created).toBe(5);
  }
  const wrong = { ...range, to: range.from };
  expect((await api.refused(`POST /v1/webhooks/${id}/replay`, { body: wrong })).status).toBe(422);
  const lost = { ...range, cursor: "nowhere" };
  expect((await api.refused(`POST /v1/webhooks/${id}/replay`, { body: lost })).status).toBe(422);
  await api.call(`POST /v1/webhooks/${id}/pause`);
  expect((await api.refused(`POST /v1/webhooks/${id}/replay`, { body: range })).status).toBe(409);
});
