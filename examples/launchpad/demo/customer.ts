// The customer: a program of somebody else's, with a database of its own, that books what the webhooks say.
import {
  createReceiver,
  ensureInbox,
  postgresInbox,
  type Receiver,
  type WebhookMessage,
} from "@fencepost/receiver";
import type pg from "pg";
import { z } from "zod";

/** What the customer wants to hear of. */
export const CUSTOMER_TYPES = [
  "campaign.pledged",
  "campaign.funded",
  "campaign.refunded",
  "stream.withdrawn",
  "stream.cancelled",
];

const pledge = z.object({ backer: z.string(), amount: z.string() });

/** Makes the customer's tables, and a receiver with its inbox beside them. */
export async function openCustomer(pool: pg.Pool, secret: string): Promise<Receiver<pg.PoolClient>> {
  // No unique key stands between the handler and a second booking: only the inbox does.
  await pool.query(`
    CREATE TABLE bookings (event_id text NOT NULL, type text NOT NULL, data jsonb NOT NULL);
    CREATE TABLE backers (backer text PRIMARY KEY, pledged numeric NOT NULL)`);
  await ensureInbox(pool);
  return createReceiver({ secrets: secret, inbox: postgresInbox({ pool }) });
}

/** The effects of a webhook: they commit together with its row in the inbox. */
export async function book({ eventId, type, data }: WebhookMessage, tx: pg.PoolClient): Promise<void> {
  await tx.query("INSERT INTO bookings (event_id, type, data) VALUES ($1, $2, $3)", [eventId, type, data]);
  if (type !== "campaign.pledged") return;
  const { backer, amount } = pledge.parse(data);
  await tx.query(
    `INSERT INTO backers (backer, pledged) VALUES ($1, $2)
     ON CONFLICT (backer) DO UPDATE SET pledged = backers.pledged + excluded.pledged`,
    [backer, amount],
  );
}
