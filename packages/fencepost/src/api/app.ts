import { OpenAPIHono } from "@hono/zod-openapi";
import { createMiddleware } from "hono/factory";
import { HTTPException } from "hono/http-exception";
import { methodNotAllowed } from "hono/method-not-allowed";
import { timeout } from "hono/timeout";
import type { ZodError } from "zod";
import { findApiKey } from "../store/postgres/apiKeys.ts";
import type { Database } from "../store/postgres/database.ts";
import { countOutbox, readProjections, readStreams } from "../store/postgres/status.ts";
import { readTrace } from "../store/postgres/trace.ts";
import { addAuditRoutes } from "./audits.ts";
import { readBody } from "./body.ts";
import { addDeliveryRoutes } from "./deliveries.ts";
import { openApiDocument } from "./document.ts";
import { problemOf } from "./errors.ts";
import { type IdempotencyEnv, idempotency } from "./idempotency.ts";
import type { ApiApp, ApiOptions } from "./options.ts";
import { PAGE_CSP, referencePage } from "./page.ts";
import { type FieldError, problemResponse, RefusedRequestError } from "./problem.ts";
import { notReadyBecause } from "./readiness.ts";
import { ROUTES } from "./routes.ts";
import { showProjection, showStream, showTrace } from "./view.ts";
import { addWebhookRoutes } from "./webhooks.ts";

/** Longer than an attempt may take, in milliseconds. What has no answer then may still happen: nobody knows. */
const ANSWER_WITHIN_MS = 60_000;
/** What needs no key is read from the database no more often than this, in milliseconds. */
const READY_EVERY_MS = 1_000;
const HEALTH_EVERY_MS = 5_000;

/**
 * The HTTP interface: one Hono app, whose every error is a problem of RFC 9457. A 4xx has changed nothing.
 */
export function createApi(options: ApiOptions): ApiApp {
  const { database, store, metrics, log } = options;
  const app: ApiApp = new OpenAPIHono<IdempotencyEnv>({ defaultHook: refuseInvalid });
  app.onError((error, c) => {
    const { kind, detail, more } = problemOf(error);
    const fields = { err: error, method: c.req.method, path: c.req.path };
    if (kind === "unavailable") log.warn(fields, "a request has no answer: a store is away");
    if (kind === "internal" && !c.req.raw.signal.aborted) log.error(fields, "a request failed");
    return problemResponse(kind, detail, c.req.path, more);
  });
  app.notFound((c) => problemResponse("not-found", "There is no such path.", c.req.path));
  app.use(
    methodNotAllowed({
      app,
      onMethodNotAllowed: (c, methods) =>
        problemResponse("method-not-allowed", `${c.req.method} is not one of its methods.`, c.req.path, {
          headers: { allow: methods.join(", ") },
        }),
    }),
  );
  app.use("/v1/*", neverCached, timeout(ANSWER_WITHIN_MS, new HTTPException(503)));
  app.use("/v1/*", authenticate(database), readBody);
  app.use("/v1/*", idempotency({ database, log, seal: options.seal }));

  addWebhookRoutes(app, options);
  addDeliveryRoutes(app, options);
  addAuditRoutes(app, options);
  app.openapi(ROUTES.trace, async (c) => {
    const { token } = c.req.valid("param");
    const found = await readTrace(database, store, token);
    if (!found) throw new RefusedRequestError("not-found", `Nothing is on record under ${token}.`);
    return c.json(showTrace(found), 200);
  });
  app.openapi(ROUTES.streams, async (c) =>
    c.json({ items: (await readStreams(database)).map(showStream) }, 200),
  );
  app.openapi(ROUTES.projections, async (c) =>
    c.json({ items: (await readProjections(database)).map(showProjection) }, 200),
  );

  const reasons = atMostEvery(READY_EVERY_MS, () => notReadyBecause({ database, store, log }));
  const health = atMostEvery(HEALTH_EVERY_MS, async () => ({
    ...(await store.readHealth()),
    outbox: await countOutbox(database),
  }));
  app.openapi(ROUTES.health, (c) => c.json({ status: "ok" } as const, 200));
  app.openapi(ROUTES.ready, async (c) => {
    const found = await reasons();
    if (found.length === 0) return c.json({ status: "ok" } as const, 200);
    throw new RefusedRequestError("not-ready", found.join(" "), { reasons: found });
  });
  app.openapi(ROUTES.metrics, async (c) => {
    try {
      metrics.deliveriesStand(await health());
    } catch (error) {
      // What this process counted is worth more than nothing, above all while a store is away.
      log.warn({ err: error }, "the state of the deliveries could not be read for the metrics");
    }
    return c.text(await metrics.registry.metrics(), 200, { "content-type": metrics.registry.contentType });
  });

  const document = JSON.stringify(openApiDocument());
  const page = referencePage(openApiDocument());
  app.get("/openapi.json", (c) => c.body(document, 200, { "content-type": "application/json" }));
  app.get("/docs", (c) =>
    c.html(page, 200, {
      "content-security-policy": PAGE_CSP,
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
    }),
  );
  return app;
}

/** Answers hold secrets, and what they tell changes. */
const neverCached = createMiddleware(async (c, next) => {
  await next();
  c.header("cache-control", "no-store");
});

function authenticate(database: Database) {
  return createMiddleware<IdempotencyEnv>(async (c, next) => {
    const key = /^Bearer +(fp_[\w-]{43})$/i.exec(c.req.header("authorization") ?? "")?.[1];
    const id = key === undefined ? undefined : await findApiKey(database, key);
    if (id === undefined) {
      throw new RefusedRequestError("unauthorized", "The key is missing, unknown or revoked.", {
        headers: { "www-authenticate": "Bearer" },
      });
    }
    c.set("apiKeyId", id);
    await next();
  });
}

/** Characters of what a caller sent that come back in one field of a problem. */
const MAX_SHOWN = 200;
const PLACES = { json: "body", query: "query", header: "header", param: "path" } as const;

/** What does not fit a schema: a path that does not is simply not there. */
function refuseInvalid(
  result: { readonly target: string } & (
    | { readonly success: true }
    | { readonly success: false; readonly error: ZodError }
  ),
): void {
  if (result.success) return;
  if (result.target === "param") throw new RefusedRequestError("not-found", "The id in the path is none.");
  const place = PLACES[result.target as keyof typeof PLACES];
  const errors = result.error.issues.map(
    ({ path, message }): FieldError => ({
      in: place,
      field: path.join(".").slice(0, MAX_SHOWN),
      message: message.slice(0, MAX_SHOWN),
    }),
  );
  const [first] = errors;
  const named = first ? `${first.field || place}: ${first.message}` : place;
  const detail =
    errors.length === 1 ? `${named}.` : `${errors.length} fields do not fit; the first is ${named}.`;
  throw new RefusedRequestError("invalid-request", detail, { errors });
}

/** The value of `read`, asked for again only after so long; those who ask meanwhile share it. */
function atMostEvery<T>(ms: number, read: () => Promise<T>): () => Promise<T> {
  let last: { readonly at: number; readonly value: Promise<T> } | undefined;
  return () => {
    const now = performance.now();
    if (!last || now - last.at > ms) {
      const value = read();
      last = { at: now, value };
      value.catch(() => {
        last = undefined;
      });
    }
    return last.value;
  };
}
