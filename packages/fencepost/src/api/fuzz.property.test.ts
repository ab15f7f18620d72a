// Requests drawn from the OpenAPI document, fitting and not: no answer is a 5xx, every answer is one that its route
// declares, and what is refused has changed nothing at all.
import { type Endpoint, startEndpoint } from "@fencepost/simulator";
import fc from "fast-check";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";
import {
  anyJson,
  fitting,
  misfitting,
  type Schema,
  type Schemas,
} from "../__tests__/support/schemaArbitrary.ts";
import { openApiDocument } from "./document.ts";

const REQUESTS = 300;
const SEED = Number(process.env["FUZZ_SEED"] ?? Date.now() % 2 ** 31);

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

interface Parameter {
  readonly name: string;
  readonly in: string;
  readonly schema: Schema;
}
interface Operation {
  readonly method: string;
  readonly path: string;
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: { readonly content: Readonly<Record<string, { readonly schema: Schema }>> };
}

const document = openApiDocument();
const schemas = (document.components?.schemas ?? {}) as Schemas;
const operations: readonly Operation[] = Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
  Object.entries(item as Record<string, Omit<Operation, "method" | "path">>).map(([method, operation]) => ({
    method: method.toUpperCase(),
    path,
    ...operation,
  })),
);

interface Drawn {
  readonly operation: Operation;
  /** Values of path parameters; `undefined`: the id of something that is there. */
  readonly path: string | undefined;
  readonly pick: number;
  readonly query: Readonly<Record<string, unknown>>;
  readonly body: unknown;
  /** In place of the body: these bytes. */
  readonly raw: Uint8Array | undefined;
  readonly headers: Readonly<Record<string, string>>;
}

const pathText = fc.oneof(
  fc.string({ minLength: 1, maxLength: 40 }),
  fc.string({ minLength: 1, maxLength: 20, unit: "binary" }).filter((text) => !/\p{Surrogate}/u.test(text)),
  fc.constantFrom("wh_0", "dlv_0", "dlv_999999999999999999999", "..", "%", "\u0000", "a/b", "evt_", "*"),
);

const headerText = fc.oneof(
  fc.constantFrom("application/json", "text/plain", "application/json; charset=latin1", "", "*/*", "x"),
  fc.stringMatching(/^[\x21-\x7e]{0,60}$/),
);

/** Those that make something, more often than those that look at it. */
const drawnOperation = fc.constantFrom(
  ...operations.flatMap((operation) =>
    operation.method === "POST" && !operation.path.includes("{")
      ? [operation, operation, operation]
      : [operation],
  ),
);

const drawnRequest: fc.Arbitrary<Drawn> = drawnOperation.chain((operation) => {
  const bodySchema = Object.values(operation.requestBody?.content ?? {})[0]?.schema;
  const queries = (operation.parameters ?? []).filter((parameter) => parameter.in === "query");
  return fc.record({
    operation: fc.constant(operation),
    path: fc.oneof({ weight: 6, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: pathText }),
    pick: fc.nat(),
    query: fc.record(
      Object.fromEntries(
        queries.map(({ name, schema }) => [
          name,
          fc.oneof(
            { weight: 6, arbitrary: fc.constant(undefined) },
            { weight: 3, arbitrary: fitting(schema, schemas) },
            { weight: 1, arbitrary: anyJson },
          ),
        ]),
      ),
    ),
    body: bodySchema
      ? fc.oneof(
          { weight: 3, arbitrary: fitting(bodySchema, schemas) },
          { weight: 1, arbitrary: misfitting(bodySchema, schemas) },
        )
      : fc.oneof({ weight: 3, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: anyJson }),
    raw: fc.oneof(
      { weight: 15, arbitrary: fc.constant(undefined) },
      { weight: 1, arbitrary: fc.uint8Array({ maxLength: 200 }) },
    ),
    headers: fc.record(
      {
        "idempotency-key": fc.oneof(
          { weight: 5, arbitrary: fc.uuid() },
          { weight: 1, arbitrary: fc.constant("again") },
          { weight: 1, arbitrary: headerText },
        ),
        "content-type": fc.oneof(
          { weight: 5, arbitrary: fc.constant("application/json") },
          { weight: 1, arbitrary: headerText },
        ),
        accept: headerText,
        "x-http-method-override": fc.constantFrom("DELETE", "PATCH"),
      },
      { requiredKeys: [] },
    ),
  });
});

it(`no drawn request gets a 5xx or an undeclared answer, and no 4xx changes state (seed ${SEED})`, {
  timeout: 240_000,
}, async () => {
  let runs = 0;
  let accepted = 0;
  const reached = new Set<string>();
  let state: unknown;
  await fc.assert(
    fc.asyncProperty(drawnRequest, async (drawn) => {
      const { operation, body, raw, headers } = drawn;
      if (runs++ % 40 === 0) {
        await seedState(runs);
        state = await stateOf();
      }
      const route = `${operation.method} ${await targetOf(drawn)}`;
      const answer = await api.call(route, {
        ...(operation.method !== "GET" && raw ? { raw: Buffer.from(raw) } : {}),
        ...(operation.method !== "GET" && !raw && body !== undefined ? { body } : {}),
        headers,
      });
      const { status } = answer;
      expect(status, `${route} ${JSON.stringify(answer.body)}`).toBeLessThan(500);
      const before = state;
      state = await stateOf();
      if (status >= 400 || operation.method === "GET") expect(state, `${route} ${status}`).toEqual(before);
      else accepted++;
      reached.add(`${operation.method} ${operation.path}`);
    }),
    { numRuns: REQUESTS, seed: SEED, interruptAfterTimeLimit: 120_000, markInterruptAsFailure: false },
  );
  // A fuzzer whose every request is refused at the door would prove nothing.
  expect(accepted).toBeGreaterThan(runs / 10);
  expect(reached.size).toBe(operations.length);
});

/** Something of each kind for requests to be about: those before may have deleted it all. */
async function seedState(n: number): Promise<void> {
  for (const types of [["*"], ["order.paid"], ["order.paid", "webhook.disabled"]]) {
    await api.call("POST /v1/webhooks", { body: { url: endpoint.url, types } });
  }
  await api.call("POST /v1/webhooks", {
    body: { url: endpoint.url, types: ["*"], ordering: "strict", max_in_flight: 1 },
  });
  for (let i = 0; i < 3; i++) {
    await api.call("POST /v1/events", {
      body: { event_type: "order.paid", event_id: `order_${n}_${i}`, data: i },
    });
  }
  await api.database.query(
    "UPDATE fencepost.deliveries SET state = 'failed', finished_at = now() WHERE id % 3 = 0",
  );
}

/** The path and query of a request; a path parameter that was not drawn is an id that exists. */
async function targetOf({ operation, path, pick, query }: Drawn): Promise<string> {
  const filled = operation.path.replace(
    /\{[^}]+\}/,
    path === undefined ? await existing(operation, pick) : encodeURIComponent(path),
  );
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined) search.set(name, typeof value === "string" ? value : JSON.stringify(value));
  }
  return search.size === 0 ? filled : `${filled}?${search}`;
}

async function existing({ path }: Operation, pick: number): Promise<string> {
  // Deliveries to our own endpoint alone: one may be attempted, and drawn urls are of hosts that are not ours.
  const deliveries = `SELECT 'dlv_' || d.id AS id FROM fencepost.deliveries d
    JOIN fencepost.webhooks w ON w.id = d.webhook_id WHERE w.url = '${endpoint.url}/' ORDER BY d.id`;
  const table = path.startsWith("/v1/webhooks")
    ? "SELECT id FROM fencepost.webhooks WHERE deleted_at IS NULL ORDER BY id"
    : path.startsWith("/v1/deliveries")
      ? deliveries
      : "SELECT event_id AS id FROM fencepost.messages ORDER BY 1";
  const { rows } = await api.database.query<{ id: string }>(table);
  return rows[pick % Math.max(1, rows.length)]?.id ?? "none";
}

/** A checksum of every table. */
async function stateOf(): Promise<unknown> {
  checksums ??= await checksumStatement();
  return (await api.database.query(checksums)).rows;
}

let checksums: string | undefined;
async function checksumStatement(): Promise<string> {
  const { rows } = await api.database.query<{ name: string }>(
    "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'fencepost' ORDER BY 1",
  );
  const sums = rows.map(
    ({ name }) =>
      `SELECT '${name}' AS name, count(*) AS rows, md5(string_agg(md5(t::text), '' ORDER BY md5(t::text))) AS sum
       FROM fencepost.${name} t`,
  );
  return `${sums.join(" UNION ALL ")} ORDER BY name`;
}
