import { randomBytes } from "node:crypto";
import type { Log } from "../observe/log.ts";
import { decideAnswer, decideOutcome, INTERRUPTED, waitsForPerson } from "../store/decideDelivery.ts";
import type { DeliveryId, DeliveryStore, Review, SettledDoubt } from "../store/deliveryStore.ts";
import type { Sender } from "./httpSender.ts";
import { WAITS_FOR_PERSON } from "./outcomeRecorder.ts";
import { buildReceiptQuery, type Receipts, readReceipts } from "./receiptQuery.ts";
import { signedHeaders } from "./sign.ts";

export interface DoubtOptions {
  readonly store: Pick<DeliveryStore, "review" | "settle" | "release">;
  readonly sender: Sender;
  readonly log: Log;
  /** In [0, 1): spreads the time to the next question. */
  readonly random: () => number;
}

/**
 * Asks one endpoint, with one request, about up to {@link MAX_ASKED} deliveries of one webhook that are held as
 * asking under this fence, and settles what it says. Returns what is settled; never rejects: what could not be settled
 * is asked again when its lease has ended.
 */
export async function settleDoubts(
  { store, sender, log, random }: DoubtOptions,
  fence: bigint,
  ids: readonly DeliveryId[],
): Promise<ReadonlySet<DeliveryId>> {
  try {
    const reviews = await store.review(fence, ids);
    const known = new Set(reviews.map(({ id }) => id));
    if (known.size < ids.length) {
      await store.release(
        fence,
        ids.filter((id) => !known.has(id)),
      );
    }
    if (reviews.length === 0) return known;
    const doubts = await decideDoubts(reviews, sender, random);
    const { recorded } = await store.settle(fence, doubts);
    const settled = new Set(recorded.map(({ id }) => id));
    for (const { id, next, error } of doubts) {
      if (settled.has(id) && waitsForPerson(next))
        log.warn({ delivery: id, reason: error }, WAITS_FOR_PERSON);
    }
    return settled;
  } catch (error) {
    log.warn({ err: error, deliveries: ids.length }, "doubts could not be settled");
    return new Set();
  }
}

async function decideDoubts(
  reviews: readonly Review[],
  sender: Sender,
  random: () => number,
): Promise<readonly SettledDoubt[]> {
  // Its owner may have changed the policy since: then it is what any other unknown outcome is.
  const asked = reviews.filter(({ policy }) => policy.onUnknown === "ask");
  const others = reviews.filter(({ policy }) => policy.onUnknown !== "ask");
  const answer = await ask(asked, sender);
  return [
    ...others.map(({ id, tries, policy }) => ({
      id,
      next: decideOutcome(INTERRUPTED, tries, policy, random()),
      error: null,
    })),
    ...asked.map((review) => decideDoubt(review, answer, random())),
  ];
}

function decideDoubt(review: Review, answer: Receipts | string, random: number): SettledDoubt {
  const { id, eventId, tries, asks, policy, firstAttemptAt } = review;
  const said = typeof answer === "string" ? "none" : (answer.answers.get(eventId) ?? "none");
  const retainedSince = typeof answer === "string" ? null : answer.retainedSince;
  const remembered = retainedSince === null || firstAttemptAt >= retainedSince;
  const next = decideAnswer(said, { tries, asks: asks + 1, remembered }, policy, random);
  switch (said) {
    case "received":
      return { id, next, error: null };
    case "in_progress":
      return { id, next, error: "The endpoint was asked: it is still handling this event." };
    case "fenced":
      return {
        id,
        next,
        error: remembered
          ? "The endpoint was asked: it has not got this event."
          : `The endpoint was asked: what it got before ${retainedSince?.toISOString()} it may have forgotten.`,
      };
    case "none": {
      const reason = typeof answer === "string" ? answer : "Its answer leaves this event out.";
      return { id, next, error: `The endpoint was asked, in vain: ${reason}` };
    }
  }
}

/** What the endpoint says about all of them, or why it says nothing. */
async function ask(reviews: readonly Review[], sender: Sender): Promise<Receipts | string> {
  const [first] = reviews;
  if (!first) return "Nothing was asked.";
  const query = buildReceiptQuery(reviews, { random: randomBytes(13), now: new Date() });
  const { url, headers, secrets } = first;
  const result = await sender.query({
    url,
    headers: signedHeaders({ ...query, headers, secrets }),
    body: query.body,
  });
  if ("error" in result) return result.error;
  return readReceipts(result.body) ?? "What it answered is no list of receipts.";
}
