import type { FencingToken } from "@fencepost/token";
import type { DeliveryCounts, DeliveryStore } from "../deliveryStore.ts";
import type { Webhook } from "../webhook.ts";
import type { Queryable } from "./database.ts";

export interface StreamStatus {
  readonly stream: string;
  readonly epoch: string;
  /** The first ledger that is not stored yet; null for the stream of a producer, which has no ledgers. */
  readonly nextLedger: number | null;
  /** The newest ledger seen at the source; null before the first answer. */
  readonly latestLedger: number | null;
  /** Closed ledgers that are not stored yet. */
  readonly lag: number | null;
  readonly seq: bigint;
  readonly term: bigint;
  readonly leader: Leader | null;
  /** Why it stopped; null while it runs. */
  readonly halted: string | null;
  readonly gaps: readonly Gap[];
  readonly conflicts: number;
  /** Contracts added later that still read their own past. */
  readonly catchingUp: number;
}

/** The process that holds a lease: the backend of its database connection, and until when. */
export interface Leader {
  readonly pid: number;
  readonly leaseUntil: Date;
}

interface Gap {
  readonly fromLedger: number;
  readonly toLedger: number;
  /** The owner told the stream to go on beyond it. */
  readonly accepted: boolean;
}

export interface ProjectionStatus {
  readonly name: string;
  readonly version: number;
  readonly state: "live" | "building" | "retired";
  readonly stream: string;
  /** The last seq applied, and the last one of its stream. */
  readonly cursor: bigint;
  readonly seq: bigint;
  readonly term: bigint;
  readonly leader: Leader | null;
  /** The event whose handler throws; null while it runs. */
  readonly stopped: {
    readonly token: FencingToken;
    readonly event: string;
    readonly error: string;
    readonly at: Date;
  } | null;
  readonly quarantined: number;
  readonly skipped: number;
}

export interface WebhookStatus extends Pick<Webhook, "id" | "url" | "types" | "active" | "disabledReason"> {
  /** Deliveries that are not at their end. */
  readonly waiting: number;
  /** Deliveries that wait for a person, up to 100. */
  readonly needsPerson: number;
}

export interface Status {
  readonly streams: readonly StreamStatus[];
  readonly projections: readonly ProjectionStatus[];
  /** Events that could not be decoded when they were stored. */
  readonly undecodable: number;
  /** Messages that wait for their deliveries. */
  readonly outbox: number;
  readonly deliveries: DeliveryCounts;
  readonly webhooks: readonly WebhookStatus[];
}

/** Gaps, projections and webhooks that are listed, at the most. */
const LISTED = 200;
/** Deliveries that wait for a person are counted up to it. */
const COUNTED = 100;

/** A leader is shown while its lease runs and its backend lives: the same test as that of a take-over. */
const LEADER = `CASE WHEN t.holder IS NOT NULL AND t.lease_until > clock_timestamp() AND EXISTS (
    SELECT FROM pg_stat_activity a WHERE a.pid = t.holder_pid
      AND (a.backend_start IS NULL OR a.backend_start = t.holder_started))
  THEN t.holder_pid END AS "leaderPid", t.lease_until AS "leaseUntil"`;

/** Where webhooks and deliveries live. */
type StatusStore = Pick<
  DeliveryStore,
  "listWebhooks" | "listDeliveries" | "countDeliveries" | "countWaiting"
>;

/** Reads how every stage stands. Nothing is locked or changed; the parts are read one after the other. */
export async function readStatus(db: Queryable, store: StatusStore): Promise<Status> {
  return {
    streams: await readStreams(db),
    projections: await readProjections(db),
    undecodable: await count(db, "quarantine WHERE projection = ''"),
    outbox: await countOutbox(db),
    deliveries: await store.countDeliveries(),
    webhooks: await readWebhooks(store),
  };
}

interface Led {
  readonly leaderPid: number | null;
  readonly leaseUntil: Date | null;
}

function leaderOf({ leaderPid, leaseUntil }: Led): Leader | null {
  return leaderPid === null || leaseUntil === null ? null : { pid: leaderPid, leaseUntil };
}

/** How each stream stands, with its newest gaps. */
export async function readStreams(db: Queryable): Promise<readonly StreamStatus[]> {
  const { rows } = await db.query<Omit<StreamStatus, "leader" | "gaps"> & Led>(
    `SELECT stream, epoch, CASE WHEN passphrase <> '' THEN next_ledger::int END AS "nextLedger",
            latest_ledger::int AS "latestLedger",
            CASE WHEN latest_ledger IS NOT NULL THEN greatest(0, latest_ledger - next_ledger + 1)::int END AS lag,
            seq, term, halted, ${LEADER},
            (SELECT count(*)::int FROM fencepost.conflicts c WHERE starts_with(c.token, t.stream || '-')) AS conflicts,
            (SELECT count(*)::int FROM fencepost.watches w WHERE w.stream = t.stream AND w.next_ledger IS NOT NULL)
              AS "catchingUp"
     FROM fencepost.streams t ORDER BY stream`,
  );
  const { rows: gaps } = await db.query<Gap & { stream: string }>(
    `SELECT stream, from_ledger::int AS "fromLedger", to_ledger::int AS "toLedger", accepted_at IS NOT NULL AS accepted
     FROM fencepost.gaps WHERE healed_at IS NULL ORDER BY found_at DESC, from_ledger DESC LIMIT ${LISTED}`,
  );
  return rows.map(({ leaderPid, leaseUntil, ...row }) => ({
    ...row,
    leader: leaderOf({ leaderPid, leaseUntil }),
    gaps: gaps.filter((gap) => gap.stream === row.stream).map(({ stream: _, ...gap }) => gap),
  }));
}

/** How each version of each projection stands, the newest version first. */
export async function readProjections(db: Queryable): Promise<readonly ProjectionStatus[]> {
  type Stop = {
    stoppedToken: FencingToken | null;
    stoppedEvent: string | null;
    stoppedError: string | null;
    stoppedAt: Date | null;
  };
  const { rows } = await db.query<Omit<ProjectionStatus, "leader" | "stopped"> & Led & Stop>(
    `SELECT t.name, t.version, t.state, t.stream, t.cursor, coalesce(s.seq, 0) AS seq, t.term, ${LEADER},
            t.stopped_token AS "stoppedToken", t.stopped_event AS "stoppedEvent", t.stopped_error AS "stoppedError",
            t.stopped_at AS "stoppedAt",
            (SELECT count(*)::int FROM fencepost.quarantine q
             WHERE q.projection = t.name AND q.version = t.version) AS quarantined,
            (SELECT count(*)::int FROM fencepost.skips k WHERE k.projection = t.name) AS skipped
     FROM fencepost.projections t LEFT JOIN fencepost.streams s ON s.stream = t.stream
     ORDER BY t.name, t.version DESC LIMIT ${LISTED}`,
  );
  return rows.map(
    ({ leaderPid, leaseUntil, stoppedToken, stoppedEvent, stoppedError, stoppedAt, ...row }) => ({
      ...row,
      leader: leaderOf({ leaderPid, leaseUntil }),
      stopped:
        stoppedToken && stoppedAt
          ? { token: stoppedToken, event: stoppedEvent ?? "", error: stoppedError ?? "", at: stoppedAt }
          : null,
    }),
  );
}

async function readWebhooks(store: StatusStore): Promise<readonly WebhookStatus[]> {
  const webhooks = await store.listWebhooks({ limit: LISTED });
  const waiting = await store.countWaiting(webhooks.map(({ id }) => id));
  const shown: WebhookStatus[] = [];
  for (const { id, url, types, active, disabledReason } of webhooks) {
    const held = await store.listDeliveries(id, { needsPerson: true }, { limit: COUNTED });
    shown.push({
      id,
      url,
      types,
      active,
      disabledReason,
      waiting: waiting.get(id) ?? 0,
      needsPerson: held.length,
    });
  }
  return shown;
}

/** Messages that wait for their deliveries. */
export function countOutbox(db: Queryable): Promise<number> {
  return count(db, "outbox");
}

async function count(db: Queryable, from: "outbox" | "quarantine WHERE projection = ''"): Promise<number> {
  const { rows } = await db.query<{ n: number }>(`SELECT count(*)::int AS n FROM fencepost.${from}`);
  return rows[0]?.n ?? 0;
}
