import { OpenAPIHono } from "@hono/zod-openapi";
import { ROUTES } from "./routes.ts";

export type OpenApiDocument = ReturnType<OpenAPIHono["getOpenAPI31Document"]>;

/** Of the interface, not of the package: it changes when a route or a schema does. */
const API_VERSION = "1.0.0";

/** The OpenAPI 3.1 document of all routes, as it is published and served. */
export function openApiDocument(): OpenApiDocument {
  const { openAPIRegistry, getOpenAPI31Document } = new OpenAPIHono();
  openAPIRegistry.registerComponent("securitySchemes", "apiKey", {
    type: "http",
    scheme: "bearer",
    description: 'A key that "fencepost keys create" made: fp_…',
  });
  for (const route of Object.values(ROUTES)) openAPIRegistry.registerPath(route);
  return getOpenAPI31Document({
    openapi: "3.1.0",
    info: {
      title: "Fencepost",
      version: API_VERSION,
      description:
        "Webhooks, deliveries and the pipeline of one installation. Names are snake_case, times ISO 8601 in UTC, numbers " +
        "beyond 2^53 decimal strings. Errors are problem details (RFC 9457).",
      license: { name: "MIT" },
    },
    servers: [{ url: "/" }],
  });
}
