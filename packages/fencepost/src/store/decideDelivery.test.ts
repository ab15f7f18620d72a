import fc from "fast-check";
import { describe, expect, it, test } from "vitest";
import {
  decideAnswer,
  decideClaimed,
  decideOutcome,
  INTERRUPTED,
  MAX_RETRY_AFTER_MS,
  RETRY_SCHEDULE_MS,
  waitsForPerson,
} from "./decideDelivery.ts";
import type { AttemptOutcome, DeliveryPolicy } from "./deliveryStore.ts";

const RESEND: DeliveryPolicy = {
  onUnknown: "resend",
  retryOn: "default",
  jitter: 0.5,
  retryScheduleMs: [1_000, 60_000],
};
const HOLD: DeliveryPolicy = { ...RESEND, onUnknown: "hold" };
const ASK: DeliveryPolicy = { ...RESEND, onUnknown: "ask" };

const rejected = (status: number, retryAfterMs: number | null = null) =>
  ({ outcome: "rejected", status, retryAfterMs }) as const;
const unanswered = (outcome: "not_sent" | "unknown") => ({ outcome, status: null, retryAfterMs: null });

const anyPolicy = fc.record({
  onUnknown: fc.constantFrom("resend" as const, "hold" as const, "ask" as const),
  retryOn: fc.constantFrom("default" as const, "all" as const),
  jitter: fc.constantFrom(0, 0.25, 0.5, 1),
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
    const forPerson = { state: "in_doubt", askInMs: null } as const;
    expect(decideOutcome(unanswered("unknown"), 1, HOLD, 0)).toEqual(forPerson);
    expect(decideOutcome(INTERRUPTED, 1, HOLD, 0)).toEqual(forPerson);
    expect(decideOutcome(unanswered("unknown"), 99, HOLD, 0)).toEqual(forPerson);
    expect(waitsForPerson(forPerson)).toBe(true);
  });

  it("is a question at once under ask where nobody knows, however often it was tried", () => {
    for (const tries of [1, 99]) {
      const next = decideOutcome(unanswered("unknown"), tries, ASK, 0);
      expect(next).toEqual({ state: "in_doubt", askInMs: 0 });
      expect(waitsForPerson(next)).toBe(false);
    }
  });

  test.each([...repeated, ...final])(
    "is another attempt after a %d where all are retried, but for 410",
    (status) => {
      const next = decideOutcome(rejected(status), 1, { ...RESEND, retryOn: "all" }, 0);
      expect(next.state).toBe(status === 410 ? "failed" : "pending");
    },
  );

  it("is another attempt after the receiver's own 409, under ask and resend, until the schedule is used up", () => {
    const fenced = { ...rejected(409), fenced: true };
    for (const policy of [RESEND, ASK]) {
      expect(decideOutcome(fenced, 1, policy, 0)).toEqual({ state: "pending", delayMs: 500 });
      expect(decideOutcome(fenced, 3, policy, 0)).toEqual({ state: "failed", disableWebhook: false });
    }
    expect(decideOutcome(fenced, 1, HOLD, 0).state).toBe("failed");
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

  it("waits for the scheduled delay, less the share of it that is drawn, in whole milliseconds", () => {
    fc.assert(
      fc.property(anyTries, anyPolicy, anyRandom, (tries, policy, random) => {
        const next = decideOutcome(unanswered("not_sent"), tries, policy, random);
        const delay = policy.retryScheduleMs[tries - 1] ?? 0;
        if (next.state !== "pending" || delay < 4) return;
        expect(next.delayMs).toBeGreaterThanOrEqual(delay * (1 - policy.jitter));
        if (policy.jitter === 0) expect(next.delayMs).toBe(delay);
        else expect(next.delayMs).toBeLessThan(delay);
        expect(Number.isInteger(next.delayMs)).toBe(true);
      }),
    );
  });

  it("grows by its factor with the schedule, spread over [d/2, d) by default", () => {
    const schedule = [1_000, 3_000, 9_000, 27_000];
    const policy = { ...RESEND, retryScheduleMs: schedule };
    for (const [i, delay] of schedule.entries()) {
      const ends = [0, 0.999_999].map((random) =>
        decideOutcome(unanswered("not_sent"), i + 1, policy, random),
      );
      expect(ends).toEqual([delay / 2, delay - 1].map((delayMs) => ({ state: "pending", delayMs })));
    }
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

describe("what follows from an answer of an endpoint that was asked", () => {
  const counts = { tries: 1, asks: 1, remembered: true };
  const FOR_PERSON = { state: "in_doubt", askInMs: null };

  it("is success where it has the event, whatever else", () => {
    for (const remembered of [true, false]) {
      for (const tries of [1, 99]) {
        expect(decideAnswer("received", { ...counts, tries, remembered }, ASK, 0)).toEqual({
          state: "success",
        });
      }
    }
  });

  it("is another attempt at once where it has fenced the last one off, and the schedule has one left", () => {
    expect(decideAnswer("fenced", counts, ASK, 0)).toEqual({ state: "pending", delayMs: 0 });
    const last = decideAnswer("fenced", { ...counts, tries: 3 }, ASK, 0);
    expect(last).toEqual({ state: "failed", disableWebhook: false });
  });

  it("is a person's decision where it may have forgotten the event", () => {
    for (const tries of [1, 3]) {
      expect(decideAnswer("fenced", { ...counts, tries, remembered: false }, ASK, 0)).toEqual(FOR_PERSON);
    }
  });

  test.each(["in_progress", "none"] as const)("is another question by the schedule after %s", (answer) => {
    const next = (asks: number) => decideAnswer(answer, { ...counts, asks, remembered: false }, ASK, 0);
    expect(next(1)).toEqual({ state: "in_doubt", askInMs: 500 });
    expect(next(2)).toEqual({ state: "in_doubt", askInMs: 30_000 });
    expect(next(3)).toEqual(FOR_PERSON);
  });
});

it("settles a claim whose last attempt has no outcome, asks about what is in doubt, and attempts any other", () => {
  expect(decideClaimed({ interrupted: true, asking: false })).toBe("settle_unknown");
  expect(decideClaimed({ interrupted: false, asking: true })).toBe("ask");
  expect(decideClaimed({ interrupted: false, asking: false })).toBe("attempt");
});
