// What must follow from the events on the chain, worked out without Fencepost: by hand, in memory, from the
// activity itself. The audit holds the databases and the endpoints against it.
import { deriveEventId, type EventId, type FencingToken } from "@fencepost/token";
import { launchToken } from "../contracts.ts";
import type { ChainEvent, LaunchpadEvent } from "./activity.ts";

/** A row as text, by column. `events`, where a table has it, counts the events that wrote the row. */
export type Row = Readonly<Record<string, string>>;
/** Rows by the name of their table and their key: `campaigns 7`. */
export type Rows = ReadonlyMap<string, Row>;

export interface ExpectedMessage {
  readonly eventId: EventId;
  readonly type: string;
  readonly token: FencingToken;
}

const MESSAGE_TYPES: Partial<Record<LaunchpadEvent["kind"], string>> = {
  "token:transfer": "token.transferred",
  "campaign:pledged": "campaign.pledged",
  "campaign:funded": "campaign.funded",
  "campaign:refunded": "campaign.refunded",
  "stream:withdrawn": "stream.withdrawn",
  "stream:cancelled": "stream.cancelled",
};

/** The messages that these events make. */
export function expectedMessages(events: readonly ChainEvent[]): readonly ExpectedMessage[] {
  return events.flatMap(({ kind, token }) => {
    const type = MESSAGE_TYPES[kind];
    return type ? [{ eventId: deriveEventId(token, type), type, token }] : [];
  });
}

/** The rows of the projections' tables after these events. */
export function expectedTables(events: readonly ChainEvent[]): Rows {
  const rows = new Map<string, Record<string, string>>();

  /** Writes a row: numbers are added to what is there, texts replace it. */
  function write(key: string, token: FencingToken, columns: Readonly<Record<string, bigint | string>>): void {
    const row = rows.get(key) ?? {};
    rows.set(key, row);
    for (const [column, value] of Object.entries(columns)) {
      row[column] = typeof value === "string" ? value : String(BigInt(row[column] ?? 0) + value);
    }
    row["last_token"] = token;
  }

  for (const event of events) {
    const { token } = event;
    switch (event.kind) {
      case "token:mint":
        write(`tokens ${launchToken.id}`, token, { supply: event.amount, events: 1n });
        write(`accounts ${event.to}`, token, { balance: event.amount });
        break;
      case "token:transfer":
        write(`tokens ${launchToken.id}`, token, { supply: 0n, events: 1n });
        write(`accounts ${event.from}`, token, { balance: -event.amount });
        write(`accounts ${event.to}`, token, { balance: event.amount });
        break;
      case "campaign:created": {
        const { owner, goal } = event;
        write(`campaigns ${event.id}`, token, { owner, goal, raised: 0n, status: "open", events: 1n });
        break;
      }
      case "campaign:pledged":
        write(`campaigns ${event.id}`, token, { raised: event.amount, events: 1n });
        write(`pledges ${event.id} ${event.backer}`, token, { amount: event.amount });
        break;
      case "campaign:funded":
        write(`campaigns ${event.id}`, token, { status: "funded", events: 1n });
        break;
      case "campaign:refunded":
        write(`campaigns ${event.id}`, token, { raised: -event.amount, status: "refunding", events: 1n });
        write(`pledges ${event.id} ${event.backer}`, token, { amount: -event.amount });
        break;
      case "stream:created": {
        const { recipient, total } = event;
        const row = { recipient, total, withdrawn: 0n, status: "running", events: 1n };
        write(`streams ${event.id}`, token, row);
        break;
      }
      case "stream:withdrawn":
        write(`streams ${event.id}`, token, { withdrawn: event.amount, events: 1n });
        break;
      case "stream:cancelled":
        write(`streams ${event.id}`, token, { status: "cancelled", events: 1n });
    }
  }
  return rows;
}

/** What the customer's own table of backers must say: how much each has pledged, in all campaigns. */
export function expectedBackers(events: readonly ChainEvent[]): Rows {
  const sums = new Map<string, bigint>();
  for (const event of events) {
    if (event.kind !== "campaign:pledged") continue;
    sums.set(event.backer, (sums.get(event.backer) ?? 0n) + event.amount);
  }
  return new Map([...sums].map(([backer, pledged]) => [`backers ${backer}`, { pledged: String(pledged) }]));
}
