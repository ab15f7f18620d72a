import fc from "fast-check";
import { describe, expect, it, test } from "vitest";
import {
  type DeliveryPolicy,
  decideClaimed,
  decideOutcome,
  holdsClaim,
  INTERRUPTED,
  MAX_RETRY_AFTER_MS,
  RETRY_SCHEDULE_MS,
} from "./decideDelivery.ts";
import type { AttemptOutcome } from "./deliveryStore.ts";

const RESEND: DeliveryPolicy = { onUnknown: "resend", retryScheduleMs: [1_000, 60_000] };
const HOLD: DeliveryPolicy = { ...RESEND, onUnknown: "hold" };

const rejected = (status: number, retryAfterMs: number | null = null) =>
  ({ outcome: "rejected", status, retryAfterMs }) as const;
const unanswered = (outcome: "not_sent" | "unknown") => ({ outcome, status: null, retryAfterMs: null });

const anyPolicy = fc.record({
  onUnknown: fc.constantFrom("resend" as const, "hold" as const),
  retryScheduleMs: fc.array(fc.integer({ min: 0, max: 7 * 24 * 3_600_000 }), { maxLength: 12 }),
});
const anyResult = fc.record({
  outcome: fc.constantFrom<AttemptOutcome>("delivered", "rejected", "not_sent", "unknown"),
  status: fc.option(fc.integer({ min: 200, max: 599 })),
  retryAfterMs: fc.option(fc.nat({ max: 2 * MAX_RETRY_AFTER_MS })),
});
const anyTries = fc.integer({ min: 1, max: 20 });
/** [0, 1), both ends included as far as they go. */
const anyRandom = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

test("the schedule is that of Standard Webhooks", () => {
  const minutes = RETRY_SCHEDULE_MS.map((ms) => ms / 60_000);
  expect(minutes).toEqual([5 / 60, 5, 30, 120, 300, 600, 840, 1_200, 1_440]);
});

describe("what follows from an attempt", () => {
  it("is success once it was delivered, whatever the policy and however often it was tried", () => {
    fc.assert(
      fc.property(anyResult, anyTries, anyPolicy, anyRandom, (result, tries, policy, random) => {
        expect(decideOutcome({ ...result, outcome: "delivered" }, tries, policy, random)).toEqual({
          state: "success",
        });
      }),
    );
  });

  const repeated = [408, 425, 429, 500, 501, 502, 503, 504, 507, 511, 599];
  const final = [300, 301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 431, 451];

  test.each(repeated)("is another attempt after a %d", (status) => {
    expect(decideOutcome(rejected(status), 1, RESEND, 0)).toEqual({ state: "pending", delayMs: 500 });
  });

  test.each(final)("is failure at once after a %d", (status) => {
    expect(decideOutcome(rejected(status), 1, RESEND, 0)).toEqual({
      state: "failed",
      disableWebhook: status === 410,
    });
  });

  it("is another attempt where no byte left, under either policy", () => {
    for (const policy of [RESEND, HOLD]) {
      expect(decideOutcome(unanswered("not_sent"), 1, policy, 0)).toMatchObject({ state: "pending" });
    }
  });

  it("is another attempt under resend and a person's decision under hold where nobody knows", () => {
    expect(decideOutcome(unanswered("unknown"), 1, RESEND, 0)).toMatchObject({ state: "pending" });
    expect(decideOutcome(unanswered("unknown"), 1, HOLD, 0)).toEqual({ state: "in_doubt" });
    expect(decideOutcome(INTERRUPTED, 1, HOLD, 0)).toEqual({ state: "in_doubt" });
    expect(decideOutcome(unanswered("unknown"), 99, HOLD, 0)).toEqual({ state: "in_doubt" });
  });

  test.each([...repeated, ...final])(
    "is final under hold after a %d: the endpoint had the bytes",
    (status) => {
      expect(decideOutcome(rejected(status, 1_000), 1, HOLD, 0)).toEqual({
        state: "failed",
        disableWebhook: status === 410,
      });
    },
  );

  it("is failure once the schedule is used up, and each entry of it is used before", () => {
    fc.assert(
      fc.property(anyTries, anyPolicy, anyRandom, (tries, policy, random) => {
        const next = decideOutcome(unanswered("not_sent"), tries, policy, random);
        expect(next.state).toBe(tries <= policy.retryScheduleMs.length ? "pending" : "failed");
      }),
    );
  });

  it("waits at least half and less than the whole of the scheduled delay, in whole milliseconds", () => {
    fc.assert(
      fc.property(anyTries, anyPolicy, anyRandom, (tries, policy, random) => {
        const next = decideOutcome(unanswered("not_sent"), tries, policy, random);
        const delay = policy.retryScheduleMs[tries - 1] ?? 0;
        if (next.state !== "pending" || delay < 2) return;
        expect(next.delayMs).toBeGreaterThanOrEqual(delay / 2);
        expect(next.delayMs).toBeLessThan(delay);
        expect(Number.isInteger(next.delayMs)).toBe(true);
      }),
    );
  });

  it("reaches both ends of that range", () => {
    const delayMs = (random: number) => decideOutcome(unanswered("not_sent"), 1, RESEND, random);
    expect(delayMs(0)).toEqual({ state: "pending", delayMs: 500 });
    expect(delayMs(1 - 2 ** -32)).toEqual({ state: "pending", delayMs: 999 });
  });

  it("waits as long as the endpoint asks, up to a day, and never less than the schedule", () => {
    const after = (retryAfterMs: number) => decideOutcome(rejected(503, retryAfterMs), 1, RESEND, 0.5);
    expect(after(0)).toEqual({ state: "pending", delayMs: 750 });
    expect(after(749)).toEqual({ state: "pending", delayMs: 750 });
    expect(after(90_000)).toEqual({ state: "pending", delayMs: 90_000 });
    expect(after(MAX_RETRY_AFTER_MS + 1)).toEqual({ state: "pending", delayMs: MAX_RETRY_AFTER_MS });
    fc.assert(
      fc.property(anyResult, anyTries, anyPolicy, anyRandom, (result, tries, policy, random) => {
        const next = decideOutcome(result, tries, policy, random);
        const bare = decideOutcome({ ...result, retryAfterMs: null }, tries, policy, random);
        expect(next.state).toBe(bare.state);
        if (next.state !== "pending" || bare.state !== "pending") return;
        const wish = Math.min(result.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
        expect(next.delayMs).toBe(Math.max(bare.delayMs, wish));
      }),
    );
  });

  it("says nothing of the webhook where a 410 comes with bytes that never left", () => {
    const result = { outcome: "not_sent", status: 410, retryAfterMs: null } as const;
    expect(decideOutcome(result, 99, RESEND, 0)).toEqual({ state: "failed", disableWebhook: false });
  });

  it("disables the webhook after 410 Gone and after nothing else", () => {
    fc.assert(
      fc.property(anyResult, anyTries, anyPolicy, anyRandom, (result, tries, policy, random) => {
        const next = decideOutcome(result, tries, policy, random);
        const gone = result.outcome === "rejected" && result.status === 410;
        expect(next.state === "failed" && next.disableWebhook).toBe(gone);
      }),
    );
  });

  it("never sends again under hold what may have arrived", () => {
    fc.assert(
      fc.property(anyResult, anyTries, anyPolicy, anyRandom, (result, tries, policy, random) => {
        const next = decideOutcome(result, tries, { ...policy, onUnknown: "hold" }, random);
        if (result.outcome !== "not_sent") expect(next.state).not.toBe("pending");
      }),
    );
  });
});

it("counts a write of a claim only under the very fence that is stored", () => {
  expect(holdsClaim(7n, 7n)).toBe(true);
  for (const stored of [6n, 8n, null, undefined]) expect(holdsClaim(stored, 7n)).toBe(false);
});

it("settles a claim whose last attempt has no outcome, and attempts any other", () => {
  expect(decideClaimed({ interrupted: true })).toBe("settle_unknown");
  expect(decideClaimed({ interrupted: false })).toBe("attempt");
});
