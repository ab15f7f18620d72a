// The HTTP interface of a test: a real server on a database of its own, and a client that holds every answer against
// what the routes say about it.
import { expect } from "vitest";
import { createApi } from "../../api/app.ts";
import { PROBLEM_TYPE, type Problem } from "../../api/problem.ts";
import { ROUTES } from "../../api/routes.ts";
import { serve } from "../../api/server.ts";
import { createDispatcher, type Dispatcher } from "../../dispatcher.ts";
import { createLog } from "../../observe/log.ts";
import { createMetrics } from "../../observe/metrics.ts";
import type { Source } from "../../source/source.ts";
import { createApiKey } from "../../store/postgres/apiKeys.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";
import { readSecretsKeys, sealedSecrets } from "../../store/sealedSecrets.ts";
import { createTestDatabase } from "./testDatabase.ts";

interface ApiCall {
  readonly body?: unknown;
  /** In place of `body`: these bytes. */
  readonly raw?: string | Buffer;
  readonly headers?: Readonly<Record<string, string>>;
  /** That of the fixture unless given; null: none. */
  readonly key?: string | null;
}

export interface ApiAnswer<Body = Record<string, unknown>> {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Body;
}

export interface TestApi {
  readonly url: string;
  readonly key: string;
  /** The routes that are served, as `POST /v1/webhooks/{id}`. */
  readonly routes: readonly string[];
  readonly database: Database;
  /** It sends nothing until it is started. */
  readonly dispatcher: Dispatcher<never>;
  /** `route` as `POST /v1/webhooks`. Fails where the answer is not one that the routes declare. */
  call<Body = Record<string, unknown>>(route: string, call?: ApiCall): Promise<ApiAnswer<Body>>;
  /** As `call`, for what must be refused: the status, and the problem. */
  refused(route: string, call?: ApiCall): Promise<ApiAnswer<Problem>>;
  close(): Promise<void>;
}

interface TestApiOptions {
  readonly secretsKey?: string;
  /** What an audit reads again. */
  readonly source?: Source | null;
}

export async function startTestApi({ secretsKey, source = null }: TestApiOptions = {}): Promise<TestApi> {
  const testDatabase = await createTestDatabase();
  const database = openDatabase(testDatabase.url);
  await migrate(database);
  const log = createLog("silent");
  const seal = readSecretsKeys(secretsKey);
  const store = sealedSecrets(postgresStore(database), seal);
  const dispatcher = createDispatcher<never>({ store, log, allowInsecure: true });
  const metrics = createMetrics();
  const app = createApi({ dispatcher, store, database, metrics, log, seal, source });
  const server = await serve({ fetch: app.fetch, host: "127.0.0.1", port: 0, log });
  const { key } = await createApiKey(database, "test");

  async function call<Body>(route: string, options: ApiCall = {}): Promise<ApiAnswer<Body>> {
    const [method = "", path = ""] = route.split(" ");
    const bearer = options.key === undefined ? key : options.key;
    const sent = options.raw ?? (options.body === undefined ? undefined : JSON.stringify(options.body));
    const response = await fetch(`${server.url}${path}`, {
      method,
      headers: {
        ...(bearer !== null && { authorization: `Bearer ${bearer}` }),
        ...(sent !== undefined && { "content-type": "application/json" }),
        ...options.headers,
      },
      ...(sent !== undefined && { body: typeof sent === "string" ? sent : new Uint8Array(sent) }),
    });
    const text = await response.text();
    const type = response.headers.get("content-type") ?? "";
    const body = (type.includes("json") ? JSON.parse(text) : text) as Body;
    const answer = { status: response.status, headers: response.headers, body };
    expectDeclared(method, path, answer, text);
    return answer;
  }

  return {
    url: server.url,
    key,
    routes: app.routes
      .filter(({ method }) => method !== "ALL")
      .map(({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, "{$1}")}`),
    database,
    dispatcher,
    call,
    async refused(route, options) {
      const answer = await call<Problem>(route, options);
      expect(answer.headers.get("content-type"), route).toBe(PROBLEM_TYPE);
      return answer;
    },
    async close() {
      await server.close();
      await dispatcher.stop();
      await database.close();
      await testDatabase.drop();
    },
  };
}

interface DeclaredContent {
  readonly schema: { safeParse(value: unknown): { success: boolean; data?: unknown; error?: Error } };
}
type Declared = Readonly<
  Record<number, { readonly content?: Readonly<Record<string, DeclaredContent>> } | undefined>
>;

/** The answer of a known route is of a status and a shape that it declares, and has nothing beyond that. */
function expectDeclared(
  method: string,
  path: string,
  { status, headers, body }: ApiAnswer<unknown>,
  text: string,
): void {
  const route = routeOf(method, path);
  if (!route) return;
  const type = (headers.get("content-type") ?? "").split(";")[0] ?? "";
  const answer = `${method} ${path}: ${status} ${type} ${text.slice(0, 500)}`;
  const declared = (route.responses as Declared)[status];
  if (!declared) throw new Error(`This answer is not declared: ${answer}`);
  if (!declared.content) {
    expect(text, answer).toBe("");
    return;
  }
  const parsed = declared.content[type]?.schema.safeParse(body);
  if (!parsed?.success) throw new Error(`This answer does not fit: ${parsed?.error?.message} ${answer}`);
  expect(body, answer).toEqual(parsed.data);
}

function routeOf(method: string, path: string): (typeof ROUTES)[keyof typeof ROUTES] | undefined {
  const { pathname } = new URL(path, "http://localhost");
  return Object.values(ROUTES).find((route) => {
    const pattern = route.path.replaceAll(/\{[^}]+\}/g, "[^/]+");
    return route.method === method.toLowerCase() && new RegExp(`^${pattern}$`).test(pathname);
  });
}
