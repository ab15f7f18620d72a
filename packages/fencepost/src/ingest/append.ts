import { createHash } from "node:crypto";
import {
  deriveEventId,
  type EventId,
  type FencingToken,
  type StreamEpoch,
  sequenceToken,
} from "@fencepost/token";
import { buildMessage, InvalidMessageError, type Message } from "../message/payload.ts";
import type { Database } from "../store/postgres/database.ts";
import { insertMessages, refuseMismatch } from "../store/postgres/messages.ts";
import { insertProduced, lockProducer, readTime } from "../store/postgres/producers.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import { readContentHashes } from "../store/postgres/streams.ts";
import { decideBatch } from "./decideStored.ts";
import { ProducedConflictError, ProducerStreamError } from "./errors.ts";

/** An event of a producer that counts its own. */
export interface ProducedEvent {
  /** Its place in the producer's own count, 0 to 10^20 - 1: with the stream and epoch it is the fencing token. */
  readonly n: bigint;
  /** Also the type of its message. Not one of the system's own, `webhook.…`. */
  readonly type: string;
  /** Anything that has a JSON form. */
  readonly data: unknown;
  /** When it happened; the database's time when it is stored, unless given. */
  readonly occurredAt?: Date;
}

export interface Appended {
  readonly token: FencingToken;
  readonly eventId: EventId;
  /** False: it was stored before, and nothing was done. */
  readonly isNew: boolean;
}

/** A stream of one's own, beside that of the chain. */
export interface Producer {
  /**
   * Stores events, up to 1,000, and the message of each in the outbox: all of it, or nothing. What is stored already
   * with the same content is left as it is. Numbers may have holes, and come in any order: one below a stored one is
   * late. Throws {@link ProducedConflictError} for a number that is stored with other content,
   * {@link ProducerStreamError}, `InvalidTokenError` and `InvalidMessageError`.
   */
  append(events: readonly ProducedEvent[]): Promise<readonly Appended[]>;
}

const MAX_EVENTS = 1_000;
/** A process that is paused inside an append, and so holds the others up, is cut off after half of it, in ms. */
const APPEND_LEASE_MS = 10_000;
/** Names under which chains are known. */
const CHAINS = new Set(["pubnet", "testnet", "futurenet", "standalone"]);

/**
 * Opens the stream of a producer that is no chain. It is made with its first event. `epoch` is a day (yyyymmdd) of the
 * producer's own choice, for good: its count never begins anew under it. Throws `InvalidTokenError` and
 * {@link ProducerStreamError}.
 */
export function openProducer(database: Database, { stream, epoch }: StreamEpoch): Producer {
  sequenceToken({ stream, epoch, n: 0n });
  if (CHAINS.has(stream)) throw new ProducerStreamError(stream, "is the name of a chain");
  return { append: (events) => appendEvents(database, { stream, epoch }, events) };
}

async function appendEvents(
  database: Database,
  chain: StreamEpoch,
  events: readonly ProducedEvent[],
): Promise<readonly Appended[]> {
  if (events.length > MAX_EVENTS) {
    throw new RangeError(`append() takes up to ${MAX_EVENTS} events at once, and got ${events.length}.`);
  }
  return stageTransaction(database, APPEND_LEASE_MS, async (client) => {
    const row = await lockProducer(client, chain);
    if (!row) throw new ProducerStreamError(chain.stream, "is that of a chain in this database");
    if (row.epoch !== chain.epoch) throw new ProducerStreamError(chain.stream, `has the epoch ${row.epoch}`);
    const now = await readTime(client);
    const built = events.map((event) => build(chain, event, now));
    const tokens = built.map(({ token }) => token);
    const { fresh, conflict } = decideBatch(built, await readContentHashes(client, tokens));
    if (conflict) throw new ProducedConflictError(conflict.event.token);
    await insertProduced(client, row, fresh);
    const messages = fresh.map(({ message }) => message);
    refuseMismatch((await insertMessages(client, messages, "emitted", null)).mismatched);
    const isNew = new Set(fresh);
    return built.map((event) => ({
      token: event.token,
      eventId: event.message.eventId,
      isNew: isNew.has(event),
    }));
  });
}

interface Built {
  readonly token: FencingToken;
  readonly type: string;
  readonly data: string;
  readonly occurredAt: Date;
  readonly contentHash: Buffer;
  readonly message: Message;
}

function build(chain: StreamEpoch, { n, type, data, occurredAt }: ProducedEvent, now: Date): Built {
  const token = sequenceToken({ ...chain, n });
  const eventId = deriveEventId(token, type);
  if (type.startsWith("webhook.")) {
    throw new InvalidMessageError(eventId, `types that begin with "webhook." are the system's own.`);
  }
  const at = occurredAt ?? now;
  if (Number.isNaN(at.getTime())) throw new InvalidMessageError(eventId, "occurredAt is an invalid date.");
  const time = at.toISOString().replace(".000Z", "Z");
  const message = buildMessage({ eventId, type, token, occurredAt: time, data });
  const body = JSON.parse(message.body.toString()) as { readonly data?: unknown };
  return {
    token,
    type,
    data: JSON.stringify(body.data ?? null),
    occurredAt: at,
    contentHash: hashOf(message, occurredAt),
    message,
  };
}

/** Over type and canonical data, and the time that the producer gave: never one of ours. */
function hashOf({ contentHash }: Message, occurredAt: Date | undefined): Buffer {
  return createHash("sha256")
    .update(contentHash)
    .update(occurredAt?.toISOString() ?? "")
    .digest();
}
