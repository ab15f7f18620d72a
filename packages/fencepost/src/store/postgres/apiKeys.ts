// The keys of the HTTP interface. Only their hashes are kept: a key has 32 random bytes, which nobody can guess back.
import { createHash, randomBytes } from "node:crypto";
import type { Queryable } from "./database.ts";

declare const apiKeyBrand: unique symbol;

/** `key_…`: names a key and does not open anything. */
export type ApiKeyId = string & { readonly [apiKeyBrand]: "ApiKeyId" };

export interface ApiKey {
  readonly id: ApiKeyId;
  /** Who uses it, for people. */
  readonly name: string;
  readonly createdAt: Date;
  readonly revokedAt: Date | null;
}

const COLUMNS = 'id, name, created_at AS "createdAt", revoked_at AS "revokedAt"';
/** Keys that are listed, at the most: the newest. */
const LISTED = 200;

/** Makes a key. `key`, `fp_…`, is told this once and cannot be found out again. */
export async function createApiKey(
  db: Queryable,
  name: string,
): Promise<{ readonly apiKey: ApiKey; readonly key: string }> {
  const key = `fp_${randomBytes(32).toString("base64url")}`;
  const { rows } = await db.query<ApiKey>(
    `INSERT INTO fencepost.api_keys (id, name, key_hash) VALUES ($1, $2, $3) RETURNING ${COLUMNS}`,
    [`key_${randomBytes(12).toString("hex")}`, name, hashOf(key)],
  );
  const [apiKey] = rows;
  if (!apiKey) throw new Error("The database returned no row for the new key.");
  return { apiKey, key };
}

/** The newest first, revoked ones too. */
export async function listApiKeys(db: Queryable): Promise<readonly ApiKey[]> {
  const { rows } = await db.query<ApiKey>(
    `SELECT ${COLUMNS} FROM fencepost.api_keys ORDER BY created_at DESC, id LIMIT ${LISTED}`,
  );
  return rows;
}

/** From now on the key opens nothing. Undefined: there is none with this id; one that was revoked stays as it is. */
export async function revokeApiKey(db: Queryable, id: string): Promise<ApiKey | undefined> {
  const { rows } = await db.query<ApiKey>(
    `UPDATE fencepost.api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1 RETURNING ${COLUMNS}`,
    [id],
  );
  return rows[0];
}

/**
 * Which key this is, unless it is revoked or none of ours. It is looked up by its hash, so that how long it takes
 * tells nothing about a key.
 */
export async function findApiKey(db: Queryable, key: string): Promise<ApiKeyId | undefined> {
  const { rows } = await db.query<{ id: ApiKeyId }>(
    "SELECT id FROM fencepost.api_keys WHERE key_hash = $1 AND revoked_at IS NULL",
    [hashOf(key)],
  );
  return rows[0]?.id;
}

function hashOf(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}
