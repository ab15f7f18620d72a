// How many there are, and how long they wait. Nothing is changed.
import { script } from "./script.ts";

/** What scripts keep count of. Values: names. */
export const READ_SUMS = script(`return call("HMGET", NUMBERS, unpack(ARGV))`);

/** How many deliveries of each webhook are not at their end. Values: webhooks. */
export const COUNT_WAITING = script(`
local waiting = {}
for i, id in ipairs(ARGV) do
  local first, last = "(" .. id .. "|", "(" .. id .. "}"
  waiting[i] = call("ZLEXCOUNT", WAITING, first, last) + call("ZLEXCOUNT", HELD, first, last)
end
return waiting`);

/**
 * For how long, in milliseconds, something has been due that no order holds back, of the webhooks whose lanes come
 * first. Value: lanes to look at.
 */
export const READ_LAG = script(`
local oldest = now
for _, webhook_id in ipairs(call("ZRANGE", LANES, 0, ARGV[1] - 1)) do
  local w = webhook(webhook_id)
  if is_active(w) and w.ordering ~= "strict" then
    oldest = math.min(oldest, first_time(WAITING, webhook_id) or now, first_time(HELD, webhook_id) or now)
  end
end
return now - oldest`);
