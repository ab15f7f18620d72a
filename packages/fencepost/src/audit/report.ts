import type { EventId, FencingToken } from "@fencepost/token";
import type { DeliveryState } from "../store/deliveryStore.ts";
import type { ProjectionPlace } from "../store/postgres/audit.ts";
import type { LedgerRange } from "../store/postgres/gaps.ts";
import type { WebhookId } from "../store/webhook.ts";

/** How many there are, and the first of them. */
export interface Findings<Item> {
  readonly count: number;
  /** Up to 10,000. */
  readonly listed: readonly Item[];
}

export interface EventsAudit {
  /** Stored once, with the content that the source gives. */
  readonly agreed: number;
  /** The source has them, and they are not stored. */
  readonly missing: Findings<FencingToken>;
  /** They are stored, and the source does not have them. */
  readonly extra: Findings<FencingToken>;
  /** What is stored, or its hash, is not what the source gives. */
  readonly different: Findings<FencingToken>;
  /** Stored more than once. */
  readonly doubled: Findings<FencingToken>;
}

export interface NamedMessage {
  readonly token: FencingToken;
  readonly eventId: EventId;
  readonly type: string;
}

interface MessagesAudit {
  readonly count: number;
  /** A delivery of it is on record, and the message is not. */
  readonly missing: Findings<NamedMessage>;
  /** The event that it is of is not stored. */
  readonly withoutEvent: Findings<NamedMessage>;
  /**
   * Events without a message of a type that others of their contract and name have. No difference: handlers may choose
   * what they emit, and are not run again here. A rebuild of the projection stores what is missing.
   */
  readonly silent: Findings<Omit<NamedMessage, "eventId">>;
}

export interface WebhookAudit {
  readonly id: WebhookId;
  readonly active: boolean;
  /** Messages that it was due. */
  readonly due: number;
  /** Their deliveries. */
  readonly states: Readonly<Record<DeliveryState, number>>;
  /** Due, and its delivery is still to be made. */
  readonly waiting: number;
  /** Nobody can tell: records were pruned, or it was not active. */
  readonly unknown: number;
  readonly missing: Findings<NamedMessage>;
  /** It has more than one delivery of them. */
  readonly doubled: Findings<NamedMessage>;
}

export interface AuditReport extends LedgerRange {
  readonly stream: string;
  /** What was read again. */
  readonly source: string;
  /** The first ledger that the source could not be asked about; null where it told everything. */
  readonly unreadFrom: number | null;
  readonly events: EventsAudit;
  readonly projections: readonly ProjectionPlace[];
  readonly messages: MessagesAudit;
  readonly webhooks: readonly WebhookAudit[];
  /** 0: whatever was looked at is as it must be. It is proof only where `unreadFrom` is null. */
  readonly differences: number;
}

const MAX_LISTED = 10_000;

/** Collects what is found: all of it is counted, and the first listed. */
export class Finding<Item> implements Findings<Item> {
  count = 0;
  readonly listed: Item[] = [];

  add(item: Item): void {
    this.count++;
    if (this.listed.length < MAX_LISTED) this.listed.push(item);
  }
}

/** Everything that is not as it must be. */
export function countDifferences({
  events,
  projections,
  messages,
  webhooks,
}: Pick<AuditReport, "events" | "projections" | "messages" | "webhooks">): number {
  const findings = [
    events.missing,
    events.extra,
    events.different,
    events.doubled,
    messages.missing,
    messages.withoutEvent,
    ...webhooks.flatMap(({ missing, doubled }) => [missing, doubled]),
  ];
  const behind = projections.reduce((sum, projection) => sum + projection.behind, 0);
  return findings.reduce((sum, { count }) => sum + count, behind);
}
