// What is on record after a run: in the two databases, on the chain, and in the endpoints' own notes.
import type { Chain } from "@fencepost/simulator";
import type { FencingToken } from "@fencepost/token";
import type pg from "pg";
import { tokenOnChain, WATCHED } from "./activity.ts";
import type { SeenRequest } from "./endpoints.ts";
import type { Row, Rows } from "./truth.ts";

/** An event, and all that its contract said in it, as text. */
export interface StoredEvent {
  readonly token: FencingToken;
  readonly content: string;
}

interface Attempt {
  readonly eventId: string;
  readonly number: number;
  readonly outcome: string | null;
}

/** What was on its way to one endpoint, and what arrived there. */
export interface EndpointEvidence {
  readonly deliveries: readonly { readonly eventId: string; readonly state: string }[];
  readonly attempts: readonly Attempt[];
  readonly requests: readonly SeenRequest[];
}

export interface Evidence {
  readonly chain: readonly StoredEvent[];
  readonly stored: readonly StoredEvent[];
  /** Ledgers that could not be read, events that could not be decoded, projections that stand still. */
  readonly problems: readonly string[];
  readonly tables: Rows;
  readonly messages: readonly { readonly eventId: string; readonly type: string; readonly token: string }[];
  readonly plain: EndpointEvidence;
  readonly receiver: EndpointEvidence;
  /** One for each booking of the customer's. */
  readonly effects: readonly { readonly eventId: string }[];
  readonly backers: Rows;
}

/** A webhook of the demo, and what its endpoint has seen. */
export interface DemoWebhook {
  readonly id: string;
  readonly requests: readonly SeenRequest[];
}

const PROBLEMS = `
  SELECT 'the ledgers from ' || from_ledger || ' on are missing' AS problem FROM fencepost.gaps
  UNION ALL SELECT token || ' came with two contents' FROM fencepost.conflicts
  UNION ALL SELECT token || ' was set aside: ' || reason FROM fencepost.quarantine
  UNION ALL SELECT name || ' stands still at ' || stopped_token FROM fencepost.projections
            WHERE stopped_token IS NOT NULL`;

const TABLES = [
  "SELECT 'tokens ' || contract AS key, supply, events, last_token FROM tokens.tokens",
  "SELECT 'accounts ' || address AS key, balance, last_token FROM tokens.accounts",
  `SELECT 'campaigns ' || id AS key, owner, goal, raised, status, events, last_token
   FROM campaigns.campaigns`,
  "SELECT 'pledges ' || campaign_id || ' ' || backer AS key, amount, last_token FROM campaigns.pledges",
  `SELECT 'streams ' || id AS key, recipient, total, withdrawn, status, events, last_token
   FROM streams.streams`,
];

const BACKERS = "SELECT 'backers ' || backer AS key, pledged FROM backers";

/** Reads everything that the audit looks at. */
export async function gatherEvidence(from: {
  readonly chain: Chain;
  readonly fencepost: pg.Pool;
  readonly customer: pg.Pool;
  readonly webhooks: { readonly plain: DemoWebhook; readonly receiver: DemoWebhook };
}): Promise<Evidence> {
  const { chain, fencepost, customer, webhooks } = from;
  return {
    chain: [...chain.events()]
      .filter(({ contractId }) => WATCHED.includes(contractId))
      .map(({ id, contractId, txHash, topic = [], value }) => ({
        token: tokenOnChain(id),
        content: [contractId, txHash, ...topic, value].join(" "),
      })),
    stored: await all(
      fencepost,
      `SELECT token, concat_ws(' ', contract_id, tx_hash, array_to_string(topics, ' '), value) AS content
       FROM fencepost.events`,
    ),
    problems: (await all<{ problem: string }>(fencepost, PROBLEMS)).map(({ problem }) => problem),
    tables: await rows(fencepost, TABLES),
    messages: await all(fencepost, 'SELECT event_id AS "eventId", type, token FROM fencepost.messages'),
    plain: await endpointEvidence(fencepost, webhooks.plain),
    receiver: await endpointEvidence(fencepost, webhooks.receiver),
    effects: await all(customer, 'SELECT event_id AS "eventId" FROM bookings'),
    backers: await rows(customer, [BACKERS]),
  };
}

async function endpointEvidence(
  fencepost: pg.Pool,
  { id, requests }: DemoWebhook,
): Promise<EndpointEvidence> {
  return {
    deliveries: await all(
      fencepost,
      'SELECT event_id AS "eventId", state FROM fencepost.deliveries WHERE webhook_id = $1',
      id,
    ),
    attempts: await all(
      fencepost,
      `SELECT d.event_id AS "eventId", a.number, a.outcome
       FROM fencepost.attempts a JOIN fencepost.deliveries d ON d.id = a.delivery_id
       WHERE d.webhook_id = $1`,
      id,
    ),
    requests,
  };
}

async function all<R extends pg.QueryResultRow>(
  pool: pg.Pool,
  sql: string,
  ...values: readonly string[]
): Promise<readonly R[]> {
  return (await pool.query<R>(sql, [...values])).rows;
}

async function rows(pool: pg.Pool, statements: readonly string[]): Promise<Rows> {
  const found = new Map<string, Row>();
  for (const statement of statements) {
    for (const { key = "", ...columns } of await all<Record<string, unknown>>(pool, statement)) {
      const texts = Object.entries(columns).map(([name, value]) => [name, String(value)]);
      found.set(String(key), Object.fromEntries(texts) as Row);
    }
  }
  return found;
}
