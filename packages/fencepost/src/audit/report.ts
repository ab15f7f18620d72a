import type { FencingToken } from "@fencepost/token";
import type { DeliveryState } from "../store/deliveryStore.ts";
import type { NamedMessage, ProjectionPlace } from "../store/postgres/audit.ts";
import type { LedgerRange } from "../store/postgres/gaps.ts";
import type { WebhookId } from "../store/webhook.ts";

export type { NamedMessage } from "../store/postgres/audit.ts";

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

interface MessagesAudit {
  readonly count: number;
  /** A delivery of it is on record, and the message is not. */
  readonly missing: Findings<NamedMessage>;
  /** The event that it is of is not stored. */
  readonly withoutEvent: Findings<NamedMessage>;
  /**
   * Events without a message of a type that others of their contract and name have. No difference: handlers may choose
   * what they emit. Those of projections whose handlers were run again are proven, and not here.
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

/** What handlers emit when they run again, against the messages on record. */
export interface ProjectionRerun {
  readonly name: string;
  readonly version: number;
  /** Why it proves nothing; null: they ran over every event, and all was compared. */
  readonly unproven: string | null;
  /** Messages that they emit for events of the range, and those of them that are on record as they are. */
  readonly emitted: number;
  readonly agreed: number;
  /** They emit it, and it is not on record. */
  readonly missing: Findings<NamedMessage>;
  /** It is on record with other content. */
  readonly different: Findings<NamedMessage>;
  /** It is on record, and they do not emit it. */
  readonly unexplained: Findings<NamedMessage>;
  /**
   * No difference: it is on record otherwise than they emit it, or they do not emit it, but another version, which
   * handled its event before this one was live, may have.
   */
  readonly earlier: Findings<NamedMessage>;
}

export interface RerunAudit {
  /** The live projections of the stream. */
  readonly projections: readonly ProjectionRerun[];
  /** On record as made by a projection, and there never was one of that name. */
  readonly unclaimed: Findings<NamedMessage>;
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
  /** Null: handlers were not run again. */
  readonly rerun: RerunAudit | null;
  readonly webhooks: readonly WebhookAudit[];
  /** 0: whatever was looked at is as it must be. It is proof only where {@link isProven}. */
  readonly differences: number;
}

/** Whether everything that was asked for could be looked at. */
export function isProven({ unreadFrom, rerun }: AuditReport): boolean {
  return unreadFrom === null && (rerun?.projections ?? []).every(({ unproven }) => unproven === null);
}

export const MAX_LISTED = 10_000;

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
  rerun,
  webhooks,
}: Pick<AuditReport, "events" | "projections" | "messages" | "rerun" | "webhooks">): number {
  const findings = [
    events.missing,
    events.extra,
    events.different,
    events.doubled,
    messages.missing,
    messages.withoutEvent,
    ...(rerun ? [rerun.unclaimed] : []),
    ...(rerun?.projections ?? []).flatMap(({ missing, different, unexplained }) => [
      missing,
      different,
      unexplained,
    ]),
    ...webhooks.flatMap(({ missing, doubled }) => [missing, doubled]),
  ];
  const behind = projections.reduce((sum, projection) => sum + projection.behind, 0);
  return findings.reduce((sum, { count }) => sum + count, behind);
}
