import type { EventId } from "@fencepost/token";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { waitUntil } from "../../fencepost/src/__tests__/support/waitUntil.ts";
import { startHandlingProcess } from "./__tests__/handlingProcess.ts";
import { inboxConformance } from "./__tests__/inboxConformance.ts";
import { entry } from "./__tests__/inboxUnderTest.ts";
import { hasRedis, type RedisServer, startRedis } from "./__tests__/redisServer.ts";
import { ATTEMPT_TIME, NOW } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import { deferred } from "./deferred.ts";
import { type ClaimTransaction, type Inbox, InvalidOptionError, redisInbox } from "./index.ts";

const title = `a Redis inbox${hasRedis ? "" : " (skipped: install redis-server to run it)"}`;

describe.skipIf(!hasRedis)(title, () => {
  let server: RedisServer;
  let client: Redis;
  let prefixes = 0;
  /** The owners that found their event being handled. */
  let waiting: Set<string>;

  beforeAll(async () => {
    server = await startRedis();
    client = new Redis(server.path);
  });

  afterAll(async () => {
    client.disconnect();
    await server.stop();
  });

  /** The client, noting who waits. */
  function watched() {
    return {
      eval: async (script: string, keys: number, ...given: string[]) => {
        const answer = await client.eval(script, keys, ...given);
        if (Array.isArray(answer) && answer[0] === "running") waiting.add(given[1]!);
        return answer;
      },
    };
  }

  function newInbox(
    options: { waitMs?: number; leaseMs?: number; keepMs?: number; retryHorizonMs?: number } = {},
  ) {
    waiting = new Set();
    return redisInbox({ client: watched(), prefix: `test:${++prefixes}`, ...options });
  }

  inboxConformance({
    create: async (options) => newInbox(options),
    untilWaiting: (count) =>
      waitUntil(() => waiting.size === count, { what: `${count} transactions wait for another one` }),
    transactional: false,
    expires: true,
  });

  const handle = (inbox: Inbox<ClaimTransaction>, work: () => Promise<unknown> = async () => {}) =>
    inbox.transaction((tx) => inbox.record(tx, entry("evt_1"), ({ state }) => work().then(() => state)));
  const events = [{ eventId: "evt_1" as EventId, before: ATTEMPT_TIME }];
  const ask = async (inbox: Inbox<ClaimTransaction>, now = NOW) => {
    const answer = await inbox.ask({ consumer: "default", events, now, toleranceSeconds: 300 });
    return { status: answer.statuses.get(events[0]!.eventId), since: answer.retainedSince!.getTime() };
  };
  const keyNow = () => `test:${prefixes}:["default","evt_1"]`;

  test("keeps a fence for the tolerance and an hour, whatever is attempted meanwhile", async () => {
    const inbox = newInbox({ leaseMs: 60 });
    await ask(inbox);
    await thrown(() => handle(inbox, () => Promise.reject(new Error("no"))));
    const left = await client.pttl(keyNow());
    expect(left).toBeGreaterThan(3_800_000);
    expect(left).toBeLessThanOrEqual(3_900_000);
    await handle(inbox);
    expect(await client.hget(keyNow(), "fence")).toBe(String(ATTEMPT_TIME));
  });

  test("leaves nothing of an event whose handler failed", async () => {
    await thrown(() => handle(newInbox(), () => Promise.reject(new Error("no"))));
    expect(await client.exists(keyNow())).toBe(0);
  });

  test("forgets a handled event after its time, and says so", async () => {
    const inbox = newInbox({ keepMs: 100, retryHorizonMs: 100, leaseMs: 60 });
    await handle(inbox);
    await waitUntil(async () => (await client.exists(keyNow())) === 0, { what: "the event expires" });
    expect((await ask(inbox)).status).toBe("fenced");
    const from = millis(await client.time());
    const { since } = await ask(inbox);
    expect(since).toBeGreaterThanOrEqual(Math.floor(from) - 100 + 300_000);
    expect(since).toBeLessThanOrEqual(millis(await client.time()) - 100 + 300_000);
  });

  test("knows nothing from before it began, or from before Redis lost its data", async () => {
    const inbox = newInbox();
    await handle(inbox);
    const began = Number(await client.get(`test:${prefixes}:began`));
    expect((await ask(inbox)).since).toBe(began + 300_000);
    await waitUntil(async () => millis(await client.time()) > began, {
      what: "the clock of Redis goes on",
    });
    await client.flushall();
    expect((await ask(inbox)).since).toBeGreaterThan(began + 300_000);
  });

  test("holds an event for longer than a lease while its handler runs", async () => {
    const inbox = newInbox({ leaseMs: 1_500 });
    const lease = async () => Number(await client.hget(keyNow(), "lease"));
    await handle(inbox, async () => {
      const first = await lease();
      await waitUntil(async () => (await lease()) > first + 750, { what: "the lease is renewed twice" });
      expect((await ask(inbox)).status).toBe("in_progress");
    });
    expect((await ask(inbox)).status).toBe("received");
    expect(await client.hgetall(keyNow())).toEqual({ handled: expect.any(String) });
  });

  test("keeps an event whose handler ended after its lease, fenced off or not: it has happened", async () => {
    const inbox = redisInbox({ client: failing('lease", now'), prefix: `test:${++prefixes}`, leaseMs: 60 });
    await handle(inbox, async () => {
      await waitUntil(async () => (await ask(inbox)).status === "fenced", { what: "the lease lapses" });
    });
    expect((await ask(inbox)).status).toBe("received");
    expect(await handle(inbox)).toBe("present");
  });

  test("leaves the event to the one who claimed it when the lease of another had lapsed", async () => {
    const lapsing = redisInbox({ client: failing('lease", now'), prefix: `test:${++prefixes}`, leaseMs: 60 });
    const holding = redisInbox({ client, prefix: `test:${prefixes}` });
    const begun = deferred();
    const claimed = deferred();
    const first = handle(lapsing, async () => {
      begun.resolve();
      await claimed.promise;
      throw new Error("no");
    });
    await begun.promise;
    const found = await handle(holding, async () => {
      claimed.resolve();
      await thrown(() => first);
      expect((await ask(holding)).status).toBe("in_progress");
    });
    expect([found, (await ask(holding)).status]).toEqual(["absent", "received"]);
  });

  test("renews nothing when the handler has ended, however it ended", async () => {
    const begun = vi.spyOn(globalThis, "setInterval");
    const ended = vi.spyOn(globalThis, "clearInterval");
    try {
      await thrown(() => handle(newInbox(), () => Promise.reject(new Error("no"))));
      await handle(newInbox());
      const timers = begun.mock.results.map(({ value }) => value);
      expect(timers).toHaveLength(2);
      for (const timer of timers) expect(ended).toHaveBeenCalledWith(timer);
    } finally {
      vi.restoreAllMocks();
    }
  });

  test("fails an attempt that it cannot record after the effect, so that the sender comes again", async () => {
    const inbox = redisInbox({
      client: failing('"handled", now'),
      prefix: `test:${++prefixes}`,
      leaseMs: 60,
    });
    expect(await thrown(() => handle(inbox))).toMatchObject({ message: "The connection is lost." });
    await waitUntil(async () => (await client.exists(keyNow())) === 0, { what: "its claim lapses" });
    expect(await handle(newInbox())).toBe("absent");
  });

  test("begins when Redis is there, even if it was not at first", async () => {
    let down = true;
    const flaky = {
      eval: async (script: string, keys: number, ...given: string[]) => {
        if (down) throw new Error("Redis is not there.");
        return client.eval(script, keys, ...given);
      },
    };
    const inbox = redisInbox({ client: flaky, prefix: `test:${++prefixes}` });
    await thrown(() => handle(inbox));
    down = false;
    expect(await handle(inbox)).toBe("absent");
  });

  test("holds the event of a process that was killed for its lease, then fences it off", async () => {
    const inbox = redisInbox({ client, prefix: "killed" });
    const handling = await startHandlingProcess("redis", server.path);
    try {
      expect((await ask(inbox)).status).toBe("in_progress");
    } finally {
      await handling.kill();
    }
    await waitUntil(async () => (await ask(inbox)).status !== "in_progress", { what: "its lease lapses" });
    expect((await ask(inbox)).status).toBe("fenced");
    const found = await inbox.transaction((tx) => inbox.record(tx, entry("evt_1"), async (it) => it));
    expect(found).toEqual({ state: "absent", fencedBefore: ATTEMPT_TIME });
  });

  test.each([
    { keepMs: 0 },
    { keepMs: 7 * 86_400_000 - 1 },
    { keepMs: 99, retryHorizonMs: 100 },
    { retryHorizonMs: 0 },
    { leaseMs: -1 },
    { waitMs: 1.5 },
  ])("cannot be made with %j", (options) => {
    expect(() => newInbox(options)).toThrow(InvalidOptionError);
  });

  /** The client, with scripts that have this text, except the claim, failing as on a lost connection. */
  function failing(text: string) {
    return {
      eval: async (script: string, keys: number, ...given: string[]) => {
        if (script.includes(text) && !script.includes("return { found")) {
          throw new Error("The connection is lost.");
        }
        return client.eval(script, keys, ...given);
      },
    };
  }

  const millis = ([seconds, micros]: number[]) => Number(seconds) * 1_000 + Number(micros) / 1_000;
});
