import { asCallerEventId, deriveEventId, type EventId, ledgerToken } from "@fencepost/token";
import { buildMessage, type Message } from "../../message/payload.ts";
import type { AttemptOutcome, Delivery, DeliveryId, DeliveryStore } from "../deliveryStore.ts";

/** A store, and what its own test must be able to do beside its interface. */
export interface ConformingStore {
  readonly store: DeliveryStore;
  /** The same deliveries through connections of their own, as another process has them. */
  open(): Promise<DeliveryStore>;
  /** Stores messages as a projection does: for the outbox, or kept silent by a rebuild. */
  emit(messages: readonly Message[], origin?: "emitted" | "suppressed"): Promise<void>;
  /** Ends a wait now: for a retry, or for the lease of a claim. */
  makeDue(id: DeliveryId): Promise<void>;
  /** Every delivery on record. */
  deliveries(): Promise<readonly Pick<Delivery, "id" | "eventId" | "webhookId" | "state" | "attempts">[]>;
  /** In the order of their numbers. */
  attempts(id: DeliveryId): Promise<readonly StoredAttempt[]>;
}

export interface StoredAttempt {
  readonly number: number;
  readonly fence: bigint;
  readonly timestamp: bigint;
  /** Null while it is under way, or when its worker died. */
  readonly outcome: AttemptOutcome | null;
  readonly status: number | null;
  readonly lateOutcome: string | null;
}

/** Empties the store that a test file has, for deliveries that are retried by this schedule. */
export type CreateStore = (options: {
  readonly retryScheduleMs: readonly number[];
}) => Promise<ConformingStore>;

export interface MessageParts {
  readonly type?: string;
  readonly data?: unknown;
  readonly occurredAt?: string;
  readonly token?: Message["token"];
}

/** A message under this event id, of a time after every webhook was made. */
export function messageOf(eventId: string, parts: MessageParts = {}): Message {
  const {
    type = "order.paid",
    data = { order: 1 },
    occurredAt = "2100-01-01T00:00:00Z",
    token = null,
  } = parts;
  const id = /^(?:evt|test)_/.test(eventId) ? (eventId as EventId) : asCallerEventId(eventId);
  return buildMessage({ eventId: id, type, data, occurredAt, token });
}

/** The message of the n-th event of a chain. */
export function emittedMessage(n: number, parts: MessageParts = {}): Message {
  const token = ledgerToken({
    stream: "testnet",
    epoch: "20251217",
    ledger: 1_000 + n,
    tx: 1,
    op: 0,
    event: 0,
  });
  return messageOf(deriveEventId(token, parts.type ?? "order.paid"), { token, data: { n }, ...parts });
}
