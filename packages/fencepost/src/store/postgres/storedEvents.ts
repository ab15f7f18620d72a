import { type FencingToken, rpcIdFromToken } from "@fencepost/token";
import type { SourceEvent } from "../../source/source.ts";
import type { Queryable } from "./database.ts";

/** An event as it is stored, in the form in which a source gives it. */
export interface StoredSourceEvent extends SourceEvent {
  readonly token: FencingToken;
  readonly seq: bigint;
  /** The hash that was stored with it. */
  readonly contentHash: Buffer;
}

/** Stored events of these contracts, in chain order: after one token, up to another, `limit` of them. */
export async function readStoredEvents(
  db: Queryable,
  range: { readonly after: string; readonly through: FencingToken },
  contractIds: readonly string[],
  limit: number,
): Promise<readonly StoredSourceEvent[]> {
  const { rows } = await db.query<Omit<StoredSourceEvent, "id">>(
    `SELECT token, seq, type, ledger::int AS ledger, contract_id AS "contractId", tx_hash AS "txHash", topics, value,
            to_char(closed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS "closedAt",
            content_hash AS "contentHash"
     FROM fencepost.events
     WHERE token > $1 COLLATE "C" AND token <= $2 COLLATE "C" AND contract_id = ANY($3)
     ORDER BY token LIMIT $4`,
    [range.after, range.through, contractIds, limit],
  );
  return rows.map((row) => ({ ...row, id: rpcIdFromToken(row.token) }));
}
