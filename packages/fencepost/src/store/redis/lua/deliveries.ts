// What a delivery is to its readers, what a person may do about one, and what goes.
import { script } from "./script.ts";

/** Value: delivery. */
export const FIND_DELIVERY = script(`
local d = get(DELIVERIES, ARGV[1])
return d and show(ARGV[1], d)`);

/**
 * Deliveries of a webhook, the newest first, and where to go on while there may be more. Values: webhook, the delivery
 * after which they begin or "", the place to go on at or "", state or "", whether a person must see to it, limit,
 * deliveries to look at.
 */
export const LIST_DELIVERIES = script(`
local webhook_id, state, needs_person = ARGV[1], ARGV[4], ARGV[5] == "1"
local limit, look = tonumber(ARGV[6]), tonumber(ARGV[7])
local place = "(" .. webhook_id .. "}"
if ARGV[3] ~= "" then
  place = "(" .. ARGV[3]
elseif ARGV[2] ~= "" then
  local d = get(DELIVERIES, ARGV[2])
  if not d or d.webhook ~= webhook_id then return { {}, false } end
  place = "(" .. numbered_member(d, ARGV[2])
end
local list = (needs_person or state == "failed" or state == "in_doubt") and OPEN or OFWEBHOOK
local found = call("ZRANGE", list, place, "(" .. webhook_id .. "|", "BYLEX", "REV", "LIMIT", 0, look)
local rows = {}
for _, member in ipairs(found) do
  local id = last_part(member)
  local d = get(DELIVERIES, id)
  if (state == "" or d.state == state)
    and (not needs_person or d.blocking or (d.state == "in_doubt" and not d.next_at)) then
    rows[#rows + 1] = show(id, d)
    if #rows == limit then return { rows, false } end
  end
end
return { rows, #found == look and found[look] }`);

/** The first ones. Values: delivery, limit. */
export const LIST_ATTEMPTS = script(`
local d, rows = get(DELIVERIES, ARGV[1]), {}
for number = 1, math.min(d and d.attempts or 0, tonumber(ARGV[2])) do
  local a = number == d.attempts and d.attempt or get(ATTEMPTS, ARGV[1] .. "|" .. number)
  rows[number] = { number, a.url, a.timestamp, a.started_at, a.finished_at or false, a.outcome or false,
    a.status or false, a.error or false, a.response or false, a.late or false }
end
return rows`);

/** Value: delivery. */
export const REDELIVER = script(`
local id, d = ARGV[1], get(DELIVERIES, ARGV[1])
if not d then return end
if d.state == "success" or d.state == "failed" or d.state == "in_doubt" then send_again(id, d) end
conclude()
return show(id, d)`);

/** Values: delivery, resolution. */
export const RESOLVE = script(`
local id, d, resolution = ARGV[1], get(DELIVERIES, ARGV[1]), ARGV[2]
if not d then return end
if d.state == "failed" or d.state == "in_doubt" then
  if resolution == "resend" then
    send_again(id, d)
  else
    unblock(id, d)
    if resolution == "delivered" then d.error = nil end
    move(id, d, get(QUEUE, id), resolution == "delivered" and "success" or "failed")
    put(DELIVERIES, id, d)
  end
end
conclude()
return show(id, d)`);

/**
 * Removes deliveries that ended before a time, each with its attempts, what lists it, and its content where no other
 * has it; the horizon of its webhook moves with it. Returns how many. Values: before, limit.
 */
export const PRUNE_DELIVERIES = script(`
local before, limit = ARGV[1], tonumber(ARGV[2])
-- What waits for a person, or blocks others, waits in vain once its webhook is deleted.
for _, chore in ipairs(members(CHORES, "leaving", limit)) do
  local webhook_id = last_part(chore)
  local w = webhook(webhook_id)
  local open = members(OPEN, webhook_id, limit, w.left)
  for _, member in ipairs(open) do
    local id = last_part(member)
    local d = get(DELIVERIES, id)
    if not d.listed_as_ended and not d.next_at then
      unblock(id, d)
      call("ZADD", ENDED, now, id)
      d.listed_as_ended = true
      put(DELIVERIES, id, d)
    end
  end
  w.left = #open == limit and string.sub(open[limit], #webhook_id + 2) or nil
  if not w.left and not call("ZSCORE", CHORES, "ending|" .. webhook_id) then call("ZREM", CHORES, chore) end
  keep_webhook(webhook_id, w)
end

local FIELDS = 500 -- attempts that are removed at once
local ids = call("ZRANGE", ENDED, "-inf", "(" .. before, "BYSCORE", "LIMIT", 0, limit)
local moved = {}
for _, id in ipairs(ids) do
  local d = get(DELIVERIES, id)
  local w = webhook(d.webhook)
  if w and (w.pruned_until or 0) < d.created_at then
    w.pruned_until = d.created_at
    moved[d.webhook] = w
  end
  for first = 1, d.attempts, FIELDS do
    local fields = {}
    for number = first, math.min(first + FIELDS - 1, d.attempts) do fields[#fields + 1] = id .. "|" .. number end
    call("HDEL", ATTEMPTS, unpack(fields))
  end
  tally(d, -1)
  call("HDEL", DELIVERIES, id)
  call("ZREM", ENDED, id)
  call("ZREM", OPEN, numbered_member(d, id))
  call("ZREM", OFWEBHOOK, numbered_member(d, id))
  call("ZREM", OFEVENT, d.event .. "|" .. id)
  if #members(OFEVENT, d.event, 1) == 0 then call("HDEL", CONTENTS, d.event) end
end
for webhook_id, w in pairs(moved) do keep_webhook(webhook_id, w) end
conclude()
return #ids`);

/** Messages that callers dispatched and that were not used since a time. Values: before, limit. */
export const LIST_UNUSED = script(`
return call("ZRANGE", BYUSE, "-inf", "(" .. ARGV[1], "BYSCORE", "LIMIT", 0, ARGV[2])`);

/** For each event whether a delivery here is of it. Values: events. */
export const HAVE_DELIVERIES = script(`
local have = {}
for i, event in ipairs(ARGV) do have[i] = #members(OFEVENT, event, 1) end
return have`);

/**
 * Removes messages, unless they were used since; those that deliveries are still of are looked at again when as much
 * time has passed. Returns how many. Values: before, then event and whether deliveries are of it.
 */
export const DROP_MESSAGES = script(`
local before, dropped = tonumber(ARGV[1]), 0
for i = 2, #ARGV, 2 do
  local event = ARGV[i]
  local used = tonumber(call("ZSCORE", BYUSE, event) or before)
  if used < before then
    if ARGV[i + 1] == "1" then
      call("ZADD", BYUSE, math.max(now, before), event)
    else
      local m = get(MESSAGES, event)
      call("HDEL", MESSAGES, event)
      call("ZREM", BYUSE, event)
      call("ZREM", BYTIME, padded(math.max(0, m.at)) .. "|" .. event)
      dropped = dropped + 1
    end
  end
end
return dropped`);

/**
 * Fails what waits for deleted webhooks, and returns how many; an attempt that is under way is left to its worker
 * until its lease has ended. Values: limit, reason.
 */
export const END_DELETED = script(`
local limit, failed = tonumber(ARGV[1]), 0
local function fail(member)
  local id = last_part(member)
  local q, d = get(QUEUE, id), get(DELIVERIES, id)
  if q.attempted and q.due > now then return end
  d.error = ARGV[2]
  unblock(id, d)
  move(id, d, q, "failed")
  put(DELIVERIES, id, d)
  failed = failed + 1
end
for _, chore in ipairs(members(CHORES, "ending", limit)) do
  if failed == limit then break end
  local webhook_id = last_part(chore)
  for _, member in ipairs(members(WAITING, webhook_id, limit - failed)) do fail(member) end
  -- Those whose lease ends last are those that are under way.
  for _, member in ipairs(members(HELD, webhook_id, limit - failed)) do fail(member) end
  if #members(WAITING, webhook_id, 1) == 0 and #members(HELD, webhook_id, 1) == 0 then call("ZREM", CHORES, chore) end
end
conclude()
return failed`);

/** Webhooks that were disabled and nobody was told of: [webhook, reason, time]. Value: limit. */
export const LIST_UNTOLD = script(`
local found = {}
for i, chore in ipairs(members(CHORES, "untold", ARGV[1])) do
  local id = last_part(chore)
  local w = webhook(id)
  found[i] = { id, w.disabled_reason, w.disabled_at }
end
return found`);

/** Values: webhook, the time at which it was disabled. */
export const MARK_TOLD = script(`
local w = webhook(ARGV[1])
if w and w.disabled_at == tonumber(ARGV[2]) then call("ZREM", CHORES, "untold|" .. ARGV[1]) end`);
