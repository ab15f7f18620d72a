// Which POSTs with an Idempotency-Key are under way, and what the finished ones were answered.
import { randomBytes } from "node:crypto";
import type { ApiKeyId } from "./apiKeys.ts";
import type { Queryable } from "./database.ts";

export interface IdempotentRequest {
  readonly apiKeyId: ApiKeyId;
  readonly key: string;
  /** Of method, path and body: the same key with another one is another request. */
  readonly requestHash: Buffer;
}

/** The right to carry a request out, until somebody may take it over. */
export interface RequestClaim extends IdempotentRequest {
  /** Random, and the same for whoever takes the claim over: what ids of new things are derived from. */
  readonly seed: Buffer;
  /** Tells this claim from one that took it over. */
  readonly claimedAt: string;
}

export type ClaimResult =
  | { readonly kind: "claimed"; readonly claim: RequestClaim }
  | { readonly kind: "answered"; readonly status: number; readonly answer: Buffer }
  | { readonly kind: "under_way" }
  | { readonly kind: "other_request" };

/** A claim without an answer may be taken over after so long, in seconds: its process is taken for dead. */
const TAKE_OVER_S = 60;
/** How long a key and its answer are kept, in hours. */
const KEPT_H = 24;

/**
 * Claims a request that is new, older than a day, or whose process died. Everybody else is told how it stands. Two
 * that come at once cannot both claim it.
 */
export async function claimRequest(db: Queryable, request: IdempotentRequest): Promise<ClaimResult> {
  const { apiKeyId, key, requestHash } = request;
  const { rows } = await db.query<{ seed: Buffer; claimedAt: string }>(
    `INSERT INTO fencepost.idempotent_requests AS r (api_key_id, key, request_hash, seed) VALUES ($1, $2, $3, $4)
     ON CONFLICT (api_key_id, key) DO UPDATE SET
       claimed_at = now(), request_hash = excluded.request_hash, status = NULL, answer = NULL,
       seed = CASE WHEN r.claimed_at < now() - make_interval(hours => ${KEPT_H}) THEN excluded.seed ELSE r.seed END
     WHERE r.claimed_at < now() - make_interval(hours => ${KEPT_H})
        OR (r.status IS NULL AND r.request_hash = excluded.request_hash
            AND r.claimed_at < now() - make_interval(secs => ${TAKE_OVER_S}))
     RETURNING seed, claimed_at::text AS "claimedAt"`,
    [apiKeyId, key, requestHash, randomBytes(16)],
  );
  const [claimed] = rows;
  if (claimed) return { kind: "claimed", claim: { ...request, ...claimed } };
  const { rows: found } = await db.query<{ same: boolean; status: number | null; answer: Buffer | null }>(
    `SELECT request_hash = $3 AS same, status, answer FROM fencepost.idempotent_requests
     WHERE api_key_id = $1 AND key = $2`,
    [apiKeyId, key, requestHash],
  );
  const [other] = found;
  // Gone in between: it was refused a moment ago, and may be tried again.
  if (!other) return { kind: "under_way" };
  if (!other.same) return { kind: "other_request" };
  if (other.status === null || other.answer === null) return { kind: "under_way" };
  return { kind: "answered", status: other.status, answer: other.answer };
}

const IS_CLAIM = "api_key_id = $1 AND key = $2 AND claimed_at = $3::timestamptz AND status IS NULL";

/** Keeps the answer, unless somebody took the claim over: then theirs is kept. */
export async function keepAnswer(
  db: Queryable,
  { apiKeyId, key, claimedAt }: RequestClaim,
  { status, answer }: { readonly status: number; readonly answer: Buffer },
): Promise<void> {
  await db.query(`UPDATE fencepost.idempotent_requests SET status = $4, answer = $5 WHERE ${IS_CLAIM}`, [
    apiKeyId,
    key,
    claimedAt,
    status,
    answer,
  ]);
}

/** Lets the next one take the claim over at once: what the request has done is not known. */
export async function letGo(db: Queryable, { apiKeyId, key, claimedAt }: RequestClaim): Promise<void> {
  await db.query(
    `UPDATE fencepost.idempotent_requests SET claimed_at = claimed_at - make_interval(secs => ${TAKE_OVER_S})
     WHERE ${IS_CLAIM}`,
    [apiKeyId, key, claimedAt],
  );
}

/** Forgets a request that was refused: it has changed nothing. */
export async function dropClaim(db: Queryable, { apiKeyId, key, claimedAt }: RequestClaim): Promise<void> {
  await db.query(`DELETE FROM fencepost.idempotent_requests WHERE ${IS_CLAIM}`, [apiKeyId, key, claimedAt]);
}

/** Removes up to `limit` keys that are older than a day; returns how many. */
export async function pruneIdempotentRequests(db: Queryable, limit: number): Promise<number> {
  const { rowCount } = await db.query(
    `DELETE FROM fencepost.idempotent_requests r USING (
       SELECT api_key_id, key FROM fencepost.idempotent_requests
       WHERE claimed_at < now() - make_interval(hours => ${KEPT_H}) ORDER BY claimed_at LIMIT $1 FOR UPDATE SKIP LOCKED
     ) old WHERE r.api_key_id = old.api_key_id AND r.key = old.key`,
    [limit],
  );
  return rowCount ?? 0;
}
