// What an endpoint is asked about events whose attempts had no answer, and what it says. docs/receiver.md has the
// format.
import { z } from "zod";
import type { ReceiptAnswer } from "../store/decideDelivery.ts";
import type { Review } from "../store/deliveryStore.ts";

/** Events in one question, at the most. */
export const MAX_ASKED = 500;

interface ReceiptQuery {
  readonly eventId: string;
  readonly timestamp: bigint;
  readonly body: Buffer;
}

/**
 * A question about 1 to {@link MAX_ASKED} deliveries of one webhook; `random` is 13 bytes. Its signed time is not before that of any attempt
 * it names, wherever the clocks stand: a receiver refuses what lies in its future.
 */
export function buildReceiptQuery(
  reviews: readonly Pick<Review, "eventId" | "lastTimestamp">[],
  { random, now }: { readonly random: Uint8Array; readonly now: Date },
): ReceiptQuery {
  const events = reviews.map(({ eventId, lastTimestamp }) => ({
    event_id: eventId,
    before: Number(lastTimestamp),
  }));
  const timestamp = Math.max(Math.floor(now.getTime() / 1_000), ...events.map(({ before }) => before));
  return {
    eventId: `query_${Buffer.from(random).toString("hex")}`,
    timestamp: BigInt(timestamp),
    body: Buffer.from(JSON.stringify({ type: "webhook.receipt_query", events })),
  };
}

export interface Receipts {
  /** By event id. */
  readonly answers: ReadonlyMap<string, ReceiptAnswer>;
  /** What was first attempted earlier may have been received and forgotten; null: nothing was forgotten. */
  readonly retainedSince: Date | null;
}

const RECEIPTS = z.object({
  retained_since: z.nullable(z.iso.datetime({ offset: true })),
  events: z
    .array(z.object({ event_id: z.string(), status: z.enum(["received", "in_progress", "fenced"]) }))
    .max(MAX_ASKED),
});

/** Reads the body of an answer; undefined where it is none. */
export function readReceipts(body: Buffer): Receipts | undefined {
  const parsed = RECEIPTS.safeParse(parseJson(body));
  if (!parsed.success) return undefined;
  const { retained_since, events } = parsed.data;
  const answers = new Map(events.map(({ event_id, status }) => [event_id, status]));
  if (answers.size < events.length) return undefined; // it says two things about one event
  return {
    answers,
    retainedSince: retained_since === null ? null : new Date(retained_since),
  };
}

function parseJson(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return undefined;
  }
}
