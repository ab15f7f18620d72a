// What is on record, as the HTTP interface shows it.
import type { z } from "@hono/zod-openapi";
import type { Attempt, Delivery } from "../store/deliveryStore.ts";
import type { ProjectionStatus, StreamStatus } from "../store/postgres/status.ts";
import type { Trace } from "../store/postgres/trace.ts";
import type { Webhook } from "../store/webhook.ts";
import type * as schemas from "./schemas.ts";

type Shown<Schema extends z.ZodType> = z.infer<Schema>;

const iso = (time: Date): string => time.toISOString();
const isoOrNull = (time: Date | null): string | null => time?.toISOString() ?? null;

/** Never with its secrets, nor with the values of its headers, which may be some. */
export function showWebhook(webhook: Webhook): Shown<typeof schemas.Webhook> {
  return {
    id: webhook.id,
    url: webhook.url,
    types: [...webhook.types],
    filter: webhook.filter && { ...webhook.filter },
    header_names: Object.keys(webhook.headers),
    description: webhook.description,
    on_unknown: webhook.onUnknown,
    retry_on: webhook.retryOn,
    retry_schedule_ms: webhook.retryScheduleMs && [...webhook.retryScheduleMs],
    jitter: webhook.jitter,
    ordering: webhook.ordering,
    rate_per_second: webhook.ratePerSecond,
    max_in_flight: webhook.maxInFlight,
    disable_after_ms: webhook.disableAfterMs,
    active: webhook.active,
    disabled_reason: webhook.disabledReason,
    disabled_at: isoOrNull(webhook.disabledAt),
    failing_since: isoOrNull(webhook.failingSince),
    deliver_from: iso(webhook.deliverFrom),
    pruned_until: isoOrNull(webhook.prunedUntil),
    created_at: iso(webhook.createdAt),
  };
}

export function showDelivery(delivery: Delivery): Shown<typeof schemas.Delivery> {
  return {
    id: delivery.id,
    event_id: delivery.eventId,
    webhook_id: delivery.webhookId,
    state: delivery.state,
    attempts: delivery.attempts,
    last_status: delivery.lastStatus,
    last_error: delivery.lastError,
    next_at: isoOrNull(delivery.nextAt),
    blocked_by: delivery.blockedBy,
    created_at: iso(delivery.createdAt),
    finished_at: isoOrNull(delivery.finishedAt),
  };
}

function showAttempt(attempt: Attempt): Shown<typeof schemas.Attempt> {
  return {
    number: attempt.number,
    url: attempt.url,
    timestamp: String(attempt.timestamp),
    started_at: iso(attempt.startedAt),
    finished_at: isoOrNull(attempt.finishedAt),
    outcome: attempt.outcome,
    status: attempt.status,
    error: attempt.error,
    response: attempt.response,
    late_outcome: attempt.lateOutcome,
  };
}

export function showDeliveryWithAttempts(
  delivery: Delivery,
  attempts: readonly Attempt[],
): Shown<typeof schemas.DeliveryWithAttempts> {
  return { ...showDelivery(delivery), attempt_list: attempts.map(showAttempt) };
}

export function showStream(stream: StreamStatus): Shown<typeof schemas.Streams>["items"][number] {
  return {
    stream: stream.stream,
    epoch: stream.epoch,
    next_ledger: stream.nextLedger,
    latest_ledger: stream.latestLedger,
    lag: stream.lag,
    seq: String(stream.seq),
    term: String(stream.term),
    leader: showLeader(stream.leader),
    halted: stream.halted,
    gaps: stream.gaps.map(({ fromLedger, toLedger, accepted }) => ({
      from_ledger: fromLedger,
      to_ledger: toLedger,
      accepted,
    })),
    conflicts: stream.conflicts,
    catching_up: stream.catchingUp,
  };
}

export function showProjection(
  projection: ProjectionStatus,
): Shown<typeof schemas.Projections>["items"][number] {
  const { stopped } = projection;
  return {
    name: projection.name,
    version: projection.version,
    state: projection.state,
    stream: projection.stream,
    cursor: String(projection.cursor),
    seq: String(projection.seq),
    term: String(projection.term),
    leader: showLeader(projection.leader),
    stopped: stopped && { ...stopped, at: iso(stopped.at) },
    quarantined: projection.quarantined,
    skipped: projection.skipped,
  };
}

function showLeader(leader: StreamStatus["leader"]): { pid: number; lease_until: string } | null {
  return leader && { pid: leader.pid, lease_until: iso(leader.leaseUntil) };
}

export function showTrace({
  token,
  event,
  projections,
  messages,
  truncated,
}: Trace): Shown<typeof schemas.Trace> {
  return {
    token,
    event: event && {
      token: event.token,
      stream: event.stream,
      seq: String(event.seq),
      type: event.type,
      contract_id: event.contractId,
      tx_hash: event.txHash,
      ledger: event.ledger,
      closed_at: iso(event.closedAt),
      stored_at: iso(event.storedAt),
      late: event.late,
      topics: [...event.topics],
      value: event.value,
      undecodable: event.undecodable,
      conflicts: event.conflicts,
    },
    projections: projections.map((projection) => ({ ...projection })),
    messages: messages.map((message) => ({
      event_id: message.eventId,
      type: message.type,
      projection: message.projection,
      state: message.state,
      occurred_at: isoOrNull(message.occurredAt),
      created_at: isoOrNull(message.createdAt),
      in_outbox: message.inOutbox,
      deliveries: message.deliveries.map(({ attempts, ...delivery }) =>
        showDeliveryWithAttempts({ ...delivery, attempts: attempts.length }, attempts),
      ),
    })),
    truncated,
  };
}
