// RFC 9457: what every refused request is answered with.
import { z } from "@hono/zod-openapi";

/** What can go wrong: the status, a title, and what to do. `/docs#<kind>` explains it. */
export const PROBLEMS = {
  "malformed-request": [400, "The request cannot be read", "Send valid HTTP, and valid JSON as the body."],
  unauthorized: [
    401,
    "No valid API key",
    'Send "Authorization: Bearer fp_…". Keys are made by "fencepost keys create".',
  ],
  "not-found": [404, "There is nothing here", "Check the id, and that it belongs to this installation."],
  "method-not-allowed": [
    405,
    "The method does not go with this path",
    "Use one that the Allow header names.",
  ],
  "event-content-mismatch": [
    409,
    "The event id is on record with other content",
    "One event id stands for one content: use a new one.",
  ],
  "wrong-state": [409, "The state does not allow this", "Read the resource again, and decide anew."],
  "request-under-way": [
    409,
    "A request with this Idempotency-Key is under way",
    "Wait as long as Retry-After says, and send the same request again.",
  ],
  "body-too-large": [413, "The body is too large", "A request body has 512 kB at the most."],
  "unsupported-media-type": [415, "The body is not JSON", 'Send it with "Content-Type: application/json".'],
  "invalid-request": [422, "The request does not fit its schema", "Mend the fields that are named."],
  "invalid-webhook": [422, "The webhook cannot be accepted", "The detail says which rule refused what."],
  "invalid-message": [422, "The message cannot be accepted", "The detail says which rule refused what."],
  "idempotency-key-reused": [
    422,
    "The Idempotency-Key belongs to another request",
    "Use a new key for each request, and the old one to repeat it unchanged.",
  ],
  internal: [500, "Something went wrong on our side", "Try again; the log of the server has the error."],
  "not-ready": [503, "Not ready", "The reasons are listed."],
  unavailable: [503, "A store does not answer", "Try again as long after as Retry-After says."],
} as const satisfies Record<string, readonly [status: number, title: string, advice: string]>;

export type ProblemKind = keyof typeof PROBLEMS;

const FieldError = z.object({
  in: z.enum(["body", "query", "header", "path"]),
  field: z
    .string()
    .openapi({ description: "Names between dots; empty: the whole of it.", example: "types.0" }),
  message: z.string(),
});
export type FieldError = z.infer<typeof FieldError>;

export const Problem = z
  .object({
    type: z.string().openapi({ description: "Where it is explained.", example: "/docs#not-found" }),
    title: z.string(),
    status: z.int(),
    detail: z.string(),
    instance: z.string().openapi({ description: "The path of the request." }),
    errors: z.array(FieldError).optional().openapi({ description: "The first 20 fields that do not fit." }),
    reasons: z.array(z.string()).optional().openapi({ description: "Why it is not ready." }),
  })
  .openapi("Problem");
export type Problem = z.infer<typeof Problem>;

export const PROBLEM_TYPE = "application/problem+json";
const MAX_DETAIL = 1_000;
const MAX_FIELDS = 20;

/** A request is refused; the app answers with the problem. Nothing was changed. */
export class RefusedRequestError extends Error {
  override readonly name = "RefusedRequestError";
  readonly kind: ProblemKind;
  readonly more: ProblemMore;

  constructor(kind: ProblemKind, detail: string, more: ProblemMore = {}) {
    super(detail);
    this.kind = kind;
    this.more = more;
  }
}

export interface ProblemMore {
  readonly errors?: readonly FieldError[];
  readonly reasons?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
}

export function problemResponse(
  kind: ProblemKind,
  detail: string,
  instance: string,
  { errors, reasons, headers }: ProblemMore = {},
): Response {
  const [status, title] = PROBLEMS[kind];
  const problem: Problem = {
    type: `/docs#${kind}`,
    title,
    status,
    detail: detail.slice(0, MAX_DETAIL),
    instance,
    ...(errors && { errors: errors.slice(0, MAX_FIELDS) }),
    ...(reasons && { reasons: [...reasons] }),
  };
  return new Response(JSON.stringify(problem), {
    status,
    headers: { "content-type": PROBLEM_TYPE, ...headers },
  });
}
