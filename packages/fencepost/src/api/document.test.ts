import { readFile } from "node:fs/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";
import { openApiDocument } from "./document.ts";
import { PROBLEMS } from "./problem.ts";
import { ROUTES } from "./routes.ts";

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api.close());

const documented = Object.entries(openApiDocument().paths ?? {}).flatMap(([path, item]) =>
  Object.keys(item as object).map((method) => `${method.toUpperCase()} ${path}`),
);

it("the published document is the one that the routes make, and the one that is served", async () => {
  const published = await readFile(new URL("../../openapi.json", import.meta.url), "utf8");
  const made = JSON.parse(JSON.stringify(openApiDocument()));
  expect(JSON.parse(published), 'run "npm run openapi"').toEqual(made);
  const served = await api.call("GET /openapi.json", { key: null });
  expect(served.body).toEqual(made);
  expect(made.openapi).toBe("3.1.0");
});

it("every documented route is served, and every route that is served is documented", () => {
  const served = new Set(api.routes); // a route has an entry for each of its validators
  const beside = ["GET /openapi.json", "GET /docs"];
  expect([...served].sort()).toEqual([...documented, ...beside].sort());
});

it("every operation has a name of its own, and needs a key unless it is for the operator's machines", () => {
  const operations = Object.values(ROUTES);
  expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(operations.length);
  const open = operations.filter((route) => !("security" in route)).map(({ path }) => path);
  expect(open).toEqual(["/health", "/ready", "/metrics"]);
});

it("the reference page shows every operation and problem, and may load and run nothing", async () => {
  const { status, headers, body } = await api.call<string>("GET /docs", { key: null });
  expect(status).toBe(200);
  expect(headers.get("content-type")).toMatch(/^text\/html/);
  expect(headers.get("content-security-policy")).toMatch(
    /^default-src 'none'; style-src 'sha256-[\w+/]+='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$/,
  );
  expect(body).not.toMatch(/<script|<link|<img|src=|@import|url\(|https?:/);
  for (const { operationId, summary } of Object.values(ROUTES)) {
    expect(body).toContain(`<h3 id="${operationId}">${summary}</h3>`);
  }
  for (const kind of Object.keys(PROBLEMS)) expect(body).toContain(`<tr id="${kind}">`);
  // Each link of the page leads somewhere in it.
  for (const [, target] of body.matchAll(/href="#([^"]+)"/g)) expect(body).toContain(`id="${target}"`);
});
