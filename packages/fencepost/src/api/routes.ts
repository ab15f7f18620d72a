// Every route of the HTTP interface: what goes in, and what each status is answered with. The published
// openapi.json is made from these.
import { createRoute, z } from "@hono/zod-openapi";
import { PROBLEM_TYPE, PROBLEMS, Problem, type ProblemKind } from "./problem.ts";
import {
  Activate,
  ActivatedWebhook,
  AuditQuery,
  AuditReport,
  DeliveriesQuery,
  Delivery,
  DeliveryPage,
  DeliveryPath,
  DeliveryWithAttempts,
  DispatchedEvent,
  Health,
  IdempotencyHeader,
  NewEvent,
  NewWebhook,
  PageQuery,
  Pause,
  Projections,
  ReplayRange,
  ReplayReport,
  Resolve,
  RotateSecret,
  StoredEvent,
  Streams,
  Trace,
  TracePath,
  Webhook,
  WebhookChanges,
  WebhookEventPage,
  WebhookEventsQuery,
  WebhookPage,
  WebhookPath,
  WebhookWithSecrets,
} from "./schemas.ts";

const SECURED = [{ apiKey: [] }];

function json<Schema extends z.ZodType>(description: string, schema: Schema) {
  return { description, content: { "application/json": { schema } } };
}

function body<Schema extends z.ZodType>(schema: Schema) {
  return { content: { "application/json": { schema } }, required: true as const };
}

/** One that may be left away: every field of it is optional. */
function optionalBody<Schema extends z.ZodType>(schema: Schema) {
  return { content: { "application/json": { schema } } };
}

/** The problems of a route, by status. Handlers throw them: in their types there are none. */
function problems(...kinds: readonly ProblemKind[]): Record<never, never> {
  return Object.fromEntries(
    [...new Set(kinds.map((kind) => PROBLEMS[kind][0]))].map((status) => [
      status,
      {
        description: kinds
          .filter((kind) => PROBLEMS[kind][0] === status)
          .map((kind) => `${kind}: ${PROBLEMS[kind][1]}.`)
          .join(" "),
        content: { [PROBLEM_TYPE]: { schema: Problem } },
      },
    ]),
  );
}

const READ = ["malformed-request", "unauthorized", "internal", "unavailable"] as const;
const WRITE = [
  ...READ,
  "body-too-large",
  "unsupported-media-type",
  "invalid-request",
  "request-under-way",
  "idempotency-key-reused",
] as const;

const webhooks = {
  createWebhook: createRoute({
    operationId: "createWebhook",
    tags: ["webhooks"],
    summary: "Add a webhook",
    method: "post",
    path: "/v1/webhooks",
    security: SECURED,
    request: { headers: IdempotencyHeader, body: body(NewWebhook) },
    responses: {
      201: json("The new webhook, with its secrets: shown this once.", WebhookWithSecrets),
      ...problems(...WRITE, "invalid-webhook"),
    },
  }),
  listWebhooks: createRoute({
    operationId: "listWebhooks",
    tags: ["webhooks"],
    summary: "List the webhooks",
    method: "get",
    path: "/v1/webhooks",
    security: SECURED,
    request: { query: PageQuery },
    responses: { 200: json("By id.", WebhookPage), ...problems(...READ, "invalid-request") },
  }),
  getWebhook: createRoute({
    operationId: "getWebhook",
    tags: ["webhooks"],
    summary: "Read a webhook",
    method: "get",
    path: "/v1/webhooks/{id}",
    security: SECURED,
    request: { params: WebhookPath },
    responses: { 200: json("The webhook, without its secrets.", Webhook), ...problems(...READ, "not-found") },
  }),
  updateWebhook: createRoute({
    operationId: "updateWebhook",
    tags: ["webhooks"],
    summary: "Change a webhook",
    description: "Retries of older deliveries go by the new settings too.",
    method: "patch",
    path: "/v1/webhooks/{id}",
    security: SECURED,
    request: { params: WebhookPath, body: body(WebhookChanges) },
    responses: {
      200: json("The webhook as it is now.", Webhook),
      ...problems(
        ...READ,
        "body-too-large",
        "unsupported-media-type",
        "invalid-request",
        "invalid-webhook",
        "not-found",
      ),
    },
  }),
  deleteWebhook: createRoute({
    operationId: "deleteWebhook",
    tags: ["webhooks"],
    summary: "Delete a webhook",
    description: "What is pending fails with that reason. The id is never used again.",
    method: "delete",
    path: "/v1/webhooks/{id}",
    security: SECURED,
    request: { params: WebhookPath },
    responses: { 204: { description: "It is gone." }, ...problems(...READ, "not-found") },
  }),
  rotateSecret: createRoute({
    operationId: "rotateSecret",
    tags: ["webhooks"],
    summary: "Sign with a new secret",
    description: "The earlier ones sign beside it until the overlap ends.",
    method: "post",
    path: "/v1/webhooks/{id}/rotate-secret",
    security: SECURED,
    request: { params: WebhookPath, headers: IdempotencyHeader, body: optionalBody(RotateSecret) },
    responses: {
      200: json("The webhook, with the new secret: shown this once.", WebhookWithSecrets),
      ...problems(...WRITE, "invalid-webhook", "wrong-state", "not-found"),
    },
  }),
  testWebhook: createRoute({
    operationId: "testWebhook",
    tags: ["webhooks"],
    summary: "Send a test message",
    method: "post",
    path: "/v1/webhooks/{id}/test",
    security: SECURED,
    request: { params: WebhookPath, headers: IdempotencyHeader },
    responses: {
      202: json("The delivery of the test message.", Delivery),
      ...problems(...WRITE, "wrong-state", "not-found"),
    },
  }),
  activateWebhook: createRoute({
    operationId: "activateWebhook",
    tags: ["webhooks"],
    summary: "Activate a webhook",
    method: "post",
    path: "/v1/webhooks/{id}/activate",
    security: SECURED,
    request: { params: WebhookPath, headers: IdempotencyHeader, body: optionalBody(Activate) },
    responses: {
      200: json("The webhook, and how many messages it missed.", ActivatedWebhook),
      ...problems(...WRITE, "not-found"),
    },
  }),
  pauseWebhook: createRoute({
    operationId: "pauseWebhook",
    tags: ["webhooks"],
    summary: "Pause a webhook",
    description: "What is pending waits until it is active again.",
    method: "post",
    path: "/v1/webhooks/{id}/pause",
    security: SECURED,
    request: { params: WebhookPath, headers: IdempotencyHeader, body: optionalBody(Pause) },
    responses: { 200: json("The webhook as it is now.", Webhook), ...problems(...WRITE, "not-found") },
  }),
  listDeliveries: createRoute({
    operationId: "listDeliveries",
    tags: ["webhooks"],
    summary: "List the deliveries of a webhook",
    method: "get",
    path: "/v1/webhooks/{id}/deliveries",
    security: SECURED,
    request: { params: WebhookPath, query: DeliveriesQuery },
    responses: {
      200: json("The newest first.", DeliveryPage),
      ...problems(...READ, "invalid-request", "not-found"),
    },
  }),
  listWebhookEvents: createRoute({
    operationId: "listWebhookEvents",
    tags: ["webhooks"],
    summary: "List the messages that a webhook was due",
    description:
      "With a fencing token, in token order, by the webhook's settings as they are now: hold what was received against it. A page may be short, or empty, and not the last.",
    method: "get",
    path: "/v1/webhooks/{id}/events",
    security: SECURED,
    request: { params: WebhookPath, query: WebhookEventsQuery },
    responses: {
      200: json("The messages, each with its delivery.", WebhookEventPage),
      ...problems(...READ, "invalid-request", "not-found"),
    },
  }),
  replay: createRoute({
    operationId: "replay",
    tags: ["webhooks"],
    summary: "Make the missing deliveries of a time",
    description: "One page a request: go on with next_cursor until it is null.",
    method: "post",
    path: "/v1/webhooks/{id}/replay",
    security: SECURED,
    request: { params: WebhookPath, headers: IdempotencyHeader, body: body(ReplayRange) },
    responses: {
      200: json("What was made.", ReplayReport),
      ...problems(...WRITE, "wrong-state", "not-found"),
    },
  }),
} as const;

const events = {
  dispatchEvent: createRoute({
    operationId: "dispatchEvent",
    tags: ["events"],
    summary: "Dispatch an event of your own",
    description:
      "One delivery for each active webhook that takes it. The same event_id never makes a second one. With a stream it is stored under its fencing token, and its deliveries follow.",
    method: "post",
    path: "/v1/events",
    security: SECURED,
    request: { headers: IdempotencyHeader, body: body(NewEvent) },
    responses: {
      202: json(
        "The delivery of every webhook that takes it; of a stream, what was stored.",
        z.union([DispatchedEvent, StoredEvent]),
      ),
      ...problems(...WRITE, "invalid-message", "event-content-mismatch"),
    },
  }),
} as const;

const deliveries = {
  getDelivery: createRoute({
    operationId: "getDelivery",
    tags: ["deliveries"],
    summary: "Read a delivery with its attempts",
    method: "get",
    path: "/v1/deliveries/{id}",
    security: SECURED,
    request: { params: DeliveryPath },
    responses: { 200: json("The delivery.", DeliveryWithAttempts), ...problems(...READ, "not-found") },
  }),
  redeliver: createRoute({
    operationId: "redeliver",
    tags: ["deliveries"],
    summary: "Send again what ended",
    description: "With the same ids and bytes. What is pending stays as it is.",
    method: "post",
    path: "/v1/deliveries/{id}/redeliver",
    security: SECURED,
    request: { params: DeliveryPath, headers: IdempotencyHeader },
    responses: {
      202: json("The delivery as it is now.", Delivery),
      ...problems(...WRITE, "wrong-state", "not-found"),
    },
  }),
  resolve: createRoute({
    operationId: "resolve",
    tags: ["deliveries"],
    summary: "Settle what is in doubt or failed",
    method: "post",
    path: "/v1/deliveries/{id}/resolve",
    security: SECURED,
    request: { params: DeliveryPath, headers: IdempotencyHeader, body: body(Resolve) },
    responses: {
      200: json("The delivery as it is now.", Delivery),
      ...problems(...WRITE, "wrong-state", "not-found"),
    },
  }),
  attempt: createRoute({
    operationId: "attempt",
    tags: ["deliveries"],
    summary: "Send a pending delivery now",
    description:
      "From the process that answers; waits for the outcome. What is not pending, or held, stays as it is.",
    method: "post",
    path: "/v1/deliveries/{id}/attempt",
    security: SECURED,
    request: { params: DeliveryPath, headers: IdempotencyHeader },
    responses: { 200: json("The delivery after its attempt.", Delivery), ...problems(...WRITE, "not-found") },
  }),
} as const;

const pipeline = {
  trace: createRoute({
    operationId: "trace",
    tags: ["pipeline"],
    summary: "Follow one event through every stage",
    method: "get",
    path: "/v1/trace/{token}",
    security: SECURED,
    request: { params: TracePath },
    responses: { 200: json("What is on record.", Trace), ...problems(...READ, "not-found") },
  }),
  audit: createRoute({
    operationId: "audit",
    tags: ["pipeline"],
    summary: "Prove that ledgers are whole",
    description:
      "Reads up to 1,000 ledgers of the source again, and holds stored events, projections, messages and deliveries against them.",
    method: "get",
    path: "/v1/audit",
    security: SECURED,
    request: { query: AuditQuery },
    responses: {
      200: json("What was found.", AuditReport),
      ...problems(...READ, "invalid-request", "not-found"),
    },
  }),
  streams: createRoute({
    operationId: "streams",
    tags: ["pipeline"],
    summary: "How the streams stand",
    method: "get",
    path: "/v1/streams",
    security: SECURED,
    responses: { 200: json("The streams.", Streams), ...problems(...READ) },
  }),
  projections: createRoute({
    operationId: "projections",
    tags: ["pipeline"],
    summary: "How the projections stand",
    method: "get",
    path: "/v1/projections",
    security: SECURED,
    responses: { 200: json("The newest version of each first.", Projections), ...problems(...READ) },
  }),
} as const;

const operations = {
  health: createRoute({
    operationId: "health",
    tags: ["operations"],
    summary: "Whether the process is up",
    method: "get",
    path: "/health",
    responses: { 200: json("It is.", Health) },
  }),
  ready: createRoute({
    operationId: "ready",
    tags: ["operations"],
    summary: "Whether everything runs",
    description:
      "The database answers and is migrated, no stream has a gap or halted, no projection has stopped.",
    method: "get",
    path: "/ready",
    responses: { 200: json("It is.", Health), ...problems("not-ready") },
  }),
  metrics: createRoute({
    operationId: "metrics",
    tags: ["operations"],
    summary: "Metrics for Prometheus",
    method: "get",
    path: "/metrics",
    responses: {
      200: {
        description: "In the text format of Prometheus.",
        content: { "text/plain": { schema: z.string() } },
      },
    },
  }),
} as const;

export const ROUTES = { ...webhooks, ...events, ...deliveries, ...pipeline, ...operations } as const;
