// Idempotency-Key: a POST that is repeated with its key is carried out once.
import { createHash } from "node:crypto";
import { createMiddleware } from "hono/factory";
import type { Log } from "../observe/log.ts";
import type { ApiKeyId } from "../store/postgres/apiKeys.ts";
import type { Database } from "../store/postgres/database.ts";
import {
  claimRequest,
  dropClaim,
  keepAnswer,
  letGo,
  type RequestClaim,
} from "../store/postgres/idempotentRequests.ts";
import type { Seal } from "../store/sealedSecrets.ts";
import { RefusedRequestError } from "./problem.ts";
import { IDEMPOTENCY_KEY } from "./schemas.ts";

export interface IdempotencyEnv {
  Variables: {
    apiKeyId: ApiKeyId;
    /** Of a request with an Idempotency-Key: the same bytes whenever it is carried out again. */
    seed?: Buffer;
  };
}

/** What a sealed answer begins with; JSON never does. */
const SEALED = Buffer.from([1]);
const RETRY_AFTER_S = 1;

/**
 * Claims the key before the request is carried out, and keeps its answer. A refused request changes nothing, and its
 * key is free again; of a failed one nobody knows what it did, so that the next one takes it over.
 */
export function idempotency({
  database,
  log,
  seal,
}: {
  readonly database: Database;
  readonly log: Log;
  /** Answers may hold new secrets. */
  readonly seal: Seal;
}) {
  return createMiddleware<IdempotencyEnv>(async (c, next) => {
    const key = c.req.header("idempotency-key");
    if (c.req.method !== "POST" || key === undefined) return next();
    if (!IDEMPOTENCY_KEY.test(key)) {
      const message = "Use 1 to 255 visible ASCII characters.";
      throw new RefusedRequestError("invalid-request", "The Idempotency-Key cannot be used.", {
        errors: [{ in: "header", field: "idempotency-key", message }],
      });
    }
    const { pathname, search } = new URL(c.req.url);
    const requestHash = createHash("sha256")
      .update(`POST\n${pathname}${search}\n`)
      .update(Buffer.from(await c.req.arrayBuffer()))
      .digest();
    const apiKeyId = c.get("apiKeyId");
    const context = `${apiKeyId}\n${key}`;
    const found = await claimRequest(database, { apiKeyId, key, requestHash });
    switch (found.kind) {
      case "other_request":
        throw new RefusedRequestError(
          "idempotency-key-reused",
          "It was sent with another path or body before.",
        );
      case "under_way":
        throw new RefusedRequestError("request-under-way", "The first request has no answer yet.", {
          headers: { "retry-after": String(RETRY_AFTER_S) },
        });
      case "answered":
        return new Response(opened(found.answer, context), {
          status: found.status,
          headers: { "content-type": "application/json", "idempotent-replayed": "true" },
        });
    }
    c.set("seed", found.claim.seed);
    await next();
    try {
      await conclude(found.claim, c.res, context);
    } catch (error) {
      // The caller has its answer; who asks again carries the request out again, which makes nothing twice.
      log.warn({ err: error, apiKeyId, key }, "the answer to an idempotent request could not be kept");
    }
  });

  async function conclude(claim: RequestClaim, response: Response, context: string): Promise<void> {
    const { status } = response;
    if (status >= 500) return letGo(database, claim);
    if (status >= 400) return dropClaim(database, claim);
    const answer = Buffer.from(await response.clone().arrayBuffer());
    await keepAnswer(database, claim, { status, answer: sealed(answer, context) });
  }

  function sealed(answer: Buffer, context: string): Buffer {
    return seal.keys === 0 ? answer : Buffer.concat([SEALED, seal.seal(answer, context)]);
  }

  function opened(answer: Buffer, context: string): Buffer {
    return answer[0] === SEALED[0] ? seal.open(answer.subarray(SEALED.length), context) : answer;
  }
}
