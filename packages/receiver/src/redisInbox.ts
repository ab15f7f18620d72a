import { type ClaimStore, type ClaimTransaction, claimingInbox } from "./claimingInbox.ts";
import { decideQuery, type InboxState } from "./decide.ts";
import { InvalidOptionError } from "./errors.ts";
import { fencedUntil, type Inbox, type InboxEntry, keyOf } from "./inbox.ts";
import { positiveInteger, retryHorizon } from "./options.ts";

/** What this package needs of a Redis client; `Redis` and `Cluster` of `ioredis` have it. */
export interface RedisClient {
  eval(script: string, numberOfKeys: number, ...keysAndValues: string[]): Promise<unknown>;
}

/** Time between two looks at an event that another process is handling. */
const POLL_MS = 25;

/**
 * An inbox in Redis 7 or Valkey, for effects that are not in PostgreSQL or SQLite.
 *
 * It is not transactional: a process that dies after the effect and before the record lets the event be handled
 * again, and so does a Redis that forgets (a failover, an eviction policy other than `noeviction`, no append-only
 * file). It narrows the window, it does not close it.
 *
 * An event is known for `keepMs` after it was handled (30 days unless given), then it expires. That must not be less
 * than 7 days, or than `retryHorizonMs`, the time in which the sender may still send an event, if given.
 *
 * A process that handles an event holds it by a lease of `leaseMs` (30 000 unless given), renewed while the handler
 * runs: when the process dies, the event waits that long. A duplicate of an event that is being handled waits `waitMs`
 * (10 000 unless given) for it, then throws InboxBusyError. Keys begin with `prefix` (`fencepost:inbox` unless given);
 * each script uses one, so a cluster serves as well. How long Redis itself is waited for is up to the client.
 */
export function redisInbox(options: {
  readonly client: RedisClient;
  readonly prefix?: string;
  readonly keepMs?: number;
  readonly retryHorizonMs?: number;
  readonly leaseMs?: number;
  readonly waitMs?: number;
}): Inbox<ClaimTransaction> {
  const { client, prefix = "fencepost:inbox" } = options;
  const keepMs = positiveInteger("keepMs", options.keepMs ?? 30 * 86_400_000);
  const horizonMs = retryHorizon(options.retryHorizonMs);
  if (keepMs < horizonMs) {
    throw new InvalidOptionError(
      "keepMs",
      `${horizonMs} or more: for so long an event may be sent again`,
      keepMs,
    );
  }
  const leaseMs = positiveInteger("leaseMs", options.leaseMs ?? 30_000);
  const waitMs = positiveInteger("waitMs", options.waitMs ?? 10_000);
  const renewals = new Map<string, ReturnType<typeof setInterval>>();

  async function run(script: string, entry: Pick<InboxEntry, "consumer" | "eventId">, ...values: unknown[]) {
    return client.eval(script, 1, `${prefix}:${keyOf(entry)}`, ...values.map(String));
  }

  /** When this inbox began, and the time now, in milliseconds of the server's clock. */
  async function readTimes(): Promise<{ readonly began: number; readonly now: number }> {
    const [began, now] = (await client.eval(TIMES, 1, `${prefix}:began`)) as [string, string];
    return { began: Number(began), now: Number(now) };
  }

  let begun: Promise<unknown> | undefined;
  /** Has the inbox begun before its first entry, once for this process. */
  async function begin(): Promise<void> {
    try {
      begun ??= readTimes();
      await begun;
    } catch (error) {
      begun = undefined;
      throw error;
    }
  }

  const store: ClaimStore = {
    async claim(entry, owner) {
      await begin();
      const [state, fence] = (await run(CLAIM, entry, owner, leaseMs)) as [InboxState | "running", string];
      if (state === "running") return { again: sleep(POLL_MS) };
      const fenced = fence !== "" && { fencedBefore: Number(fence) };
      if (state === "present") return { state, ...fenced };
      const renew = () => run(RENEW, entry, owner, leaseMs).catch(() => {}); // it is tried again, or lapses
      renewals.set(`${owner} ${keyOf(entry)}`, setInterval(renew, leaseMs / 3));
      return { state, ...fenced };
    },

    async settle(entry, owner, handled) {
      const renewal = `${owner} ${keyOf(entry)}`;
      clearInterval(renewals.get(renewal));
      renewals.delete(renewal);
      await run(handled ? KEEP : RELEASE, entry, owner, keepMs);
    },

    async ask(query) {
      const { consumer, events, now, toleranceSeconds } = query;
      const statuses = events.map(async (event) => {
        const ms = fencedUntil(event.before, query) * 1_000 - now.getTime();
        const found = (await run(ASK, { consumer, ...event }, event.before, ms)) as InboxState | "running";
        return [event.eventId, decideQuery(found)] as const;
      });
      const found = new Map(await Promise.all(statuses));
      const times = await readTimes(); // after the entries: they may have expired
      const since = Math.max(times.began, times.now - keepMs) + toleranceSeconds * 1_000;
      return { statuses: found, retainedSince: new Date(since) };
    },
  };

  return claimingInbox(store, waitMs);
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// An event is one hash: `handled` once it is, `owner` and `lease` (its end) while a handler runs, `fence` (the last
// time that is refused). The key lives as long as the longest of the three.
const PRELUDE = `
local key = KEYS[1]
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function liveFor(ms)
  if redis.call("PTTL", key) < tonumber(ms) then redis.call("PEXPIRE", key, ms) end
end
local function state()
  if redis.call("HEXISTS", key, "handled") == 1 then return "present" end
  if tonumber(redis.call("HGET", key, "lease") or 0) > now then return "running" end
  return "absent"
end
`;

/** Values: owner, lease. */
const CLAIM = `${PRELUDE}
local found = state()
if found == "absent" then
  redis.call("HSET", key, "owner", ARGV[1], "lease", now + ARGV[2])
  liveFor(ARGV[2])
end
return { found, redis.call("HGET", key, "fence") or "" }`;

/** Values: owner, lease. */
const RENEW = `${PRELUDE}
if redis.call("HGET", key, "owner") == ARGV[1] then
  redis.call("HSET", key, "lease", now + ARGV[2])
  liveFor(ARGV[2])
end`;

/** Values: owner, time to keep. Kept even where the lease has lapsed: the effects have happened. */
const KEEP = `${PRELUDE}
redis.call("HSET", key, "handled", now)
if redis.call("HGET", key, "owner") == ARGV[1] then redis.call("HDEL", key, "owner", "lease") end
liveFor(ARGV[2])`;

/** Value: owner. */
const RELEASE = `${PRELUDE}
if redis.call("HGET", key, "owner") == ARGV[1] then redis.call("HDEL", key, "owner", "lease") end`;

/** Values: before, time to keep the fence. Stores the fence where it finds the event absent. */
const ASK = `${PRELUDE}
local found = state()
if found == "absent" then
  local fence = tonumber(redis.call("HGET", key, "fence") or 0)
  redis.call("HSET", key, "fence", math.max(fence, tonumber(ARGV[1])))
  redis.call("HDEL", key, "owner", "lease")
  liveFor(ARGV[2])
end
return found`;

/** When the inbox began; now, if Redis has forgotten it. */
const TIMES = `${PRELUDE}
redis.call("SET", key, now, "NX")
return { redis.call("GET", key), string.format("%.0f", now) }`;
