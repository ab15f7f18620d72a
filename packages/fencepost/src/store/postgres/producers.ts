import type { FencingToken, StreamEpoch } from "@fencepost/token";
import type { DatabaseClient } from "./database.ts";
import { insertStream, lockStream, type StreamRow } from "./streams.ts";

/** A chain has one; what counts its own events has none. */
const NO_PASSPHRASE = "";

/** Locks the row of a producer's stream, made where it is not there. Null: that name is a chain's. */
export async function lockProducer(
  client: DatabaseClient,
  { stream, epoch }: StreamEpoch,
): Promise<StreamRow | null> {
  const existing = await lockStream(client, stream);
  if (!existing) {
    await insertStream(client, { stream, epoch, passphrase: NO_PASSPHRASE, nextLedger: 0, filtersHash: "" });
  }
  const row = existing ?? (await lockStream(client, stream));
  return row?.passphrase === NO_PASSPHRASE ? row : null;
}

/** The database's time, up to the next millisecond: not before that of a webhook that was there already. */
export async function readTime(client: DatabaseClient): Promise<Date> {
  const { rows } = await client.query<{ now: Date }>(
    "SELECT date_trunc('milliseconds', now() + interval '999 microseconds') AS now",
  );
  return rows[0]?.now ?? new Date(Number.NaN);
}

export interface NewProducedEvent {
  readonly token: FencingToken;
  readonly type: string;
  /** JSON. */
  readonly data: string;
  readonly occurredAt: Date;
  readonly contentHash: Buffer;
}

/**
 * Stores the events, which are new, in the order given, with the seq that follow that of the row, which the caller has
 * locked. One with a lower number than a stored one is late. The type stands for the first topic, the stream for the
 * contract.
 */
export async function insertProduced(
  client: DatabaseClient,
  { stream, epoch, seq }: StreamRow,
  events: readonly NewProducedEvent[],
): Promise<void> {
  if (events.length === 0) return;
  await client.query(
    `INSERT INTO fencepost.events
       (token, stream, seq, type, contract_id, tx_hash, ledger, closed_at, topics, value, content_hash, late)
     SELECT token, $1, $2::bigint + n, 'produced', $1, '', 0, occurred_at, ARRAY[type], data, content_hash,
            EXISTS (SELECT FROM fencepost.events e WHERE e.token > i.token COLLATE "C" AND e.token < $3 COLLATE "C")
     FROM unnest($4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::bytea[]) WITH ORDINALITY
       AS i(token, type, data, occurred_at, content_hash, n)`,
    [
      stream,
      seq,
      `${stream}-${epoch}.`, // after every token of the stream's epoch
      events.map(({ token }) => token),
      events.map(({ type }) => type),
      events.map(({ data }) => data),
      events.map(({ occurredAt }) => occurredAt),
      events.map(({ contentHash }) => contentHash),
    ],
  );
  await client.query(
    "UPDATE fencepost.streams SET seq = $2, discovered_seq = $2, updated_at = now() WHERE stream = $1",
    [stream, seq + BigInt(events.length)],
  );
}
