// Which problem an error is. What is not named here is a fault of ours: it goes to the log and is not shown.
import { InvalidTokenError } from "@fencepost/token";
import { HTTPException } from "hono/http-exception";
import { AuditRangeError } from "../audit/audit.ts";
import {
  DeletedWebhookError,
  InactiveWebhookError,
  InvalidRangeError,
  InvalidWebhookError,
  UnknownDeliveryError,
  UnknownWebhookError,
} from "../dispatch/errors.ts";
import { ProducedConflictError, ProducerStreamError } from "../ingest/errors.ts";
import { EventContentMismatchError, InvalidMessageError } from "../message/payload.ts";
import { InvalidCursorError, TooManySecretsError } from "../store/errors.ts";
import {
  ConnectionLostError,
  DatabaseFullError,
  DatabaseUnreachableError,
} from "../store/postgres/errors.ts";
import { DispatchIncompleteError } from "../store/redis/errors.ts";
import { invalidCursor } from "./cursor.ts";
import type { ProblemKind, ProblemMore } from "./problem.ts";
import { RefusedRequestError } from "./problem.ts";

interface Told {
  readonly kind: ProblemKind;
  readonly detail: string;
  readonly more?: ProblemMore;
}

const RETRY_AFTER_S = "2";

export function problemOf(error: unknown): Told {
  if (error instanceof RefusedRequestError) {
    return { kind: error.kind, detail: error.message, more: error.more };
  }
  if (error instanceof HTTPException && error.status < 500) {
    // Thrown by the validators: no JSON, or JSON that cannot be parsed.
    return error.status === 415
      ? { kind: "unsupported-media-type", detail: "The Content-Type is missing, or not application/json." }
      : { kind: "malformed-request", detail: "The body is not valid JSON." };
  }
  if (error instanceof InvalidCursorError) return problemOf(invalidCursor());
  const kind = KINDS.find(([type]) => error instanceof type)?.[1];
  if (kind !== undefined) return { kind, detail: (error as Error).message };
  if (isUnavailable(error)) {
    const unknown = "What came of the request is not known. An Idempotency-Key makes it safe to repeat.";
    return {
      kind: "unavailable",
      detail: error instanceof DispatchIncompleteError ? error.message : unknown,
      more: { headers: { "retry-after": RETRY_AFTER_S } },
    };
  }
  return { kind: "internal", detail: "The log of the server has the error." };
}

const KINDS: readonly (readonly [type: abstract new (...args: never[]) => Error, kind: ProblemKind])[] = [
  [InvalidWebhookError, "invalid-webhook"],
  [InvalidMessageError, "invalid-message"],
  [InvalidTokenError, "invalid-message"],
  [EventContentMismatchError, "event-content-mismatch"],
  [ProducedConflictError, "event-content-mismatch"],
  [ProducerStreamError, "invalid-message"],
  [AuditRangeError, "invalid-request"],
  [UnknownWebhookError, "not-found"],
  [UnknownDeliveryError, "not-found"],
  [InvalidRangeError, "invalid-request"],
  [TooManySecretsError, "wrong-state"],
  [InactiveWebhookError, "wrong-state"],
  [DeletedWebhookError, "wrong-state"],
];

/** Errors of the client of Redis, which has no classes for them that are its own. */
const REDIS_UNAVAILABLE = new Set(["MaxRetriesPerRequestError", "ClusterAllFailedError", "AbortError"]);

function isUnavailable(error: unknown): boolean {
  const classes = [
    DatabaseUnreachableError,
    DatabaseFullError,
    ConnectionLostError,
    DispatchIncompleteError,
    HTTPException,
  ];
  if (classes.some((type) => error instanceof type)) return true;
  return REDIS_UNAVAILABLE.has((error as Error).name);
}
