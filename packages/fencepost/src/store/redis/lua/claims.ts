// Claim, attempt, outcome, doubt. Each write after a claim names its fence, which is compared as text.
import { script } from "./script.ts";

/**
 * Webhooks with something due, from a place among them that the caller draws: [webhook, origin, how many, and of a
 * strict one its next delivery and the position], and no more of each than `most`. Values: most, lanes to find, lanes
 * to look at, place in [0, 1), origins to skip.
 */
export const FIND_DUE = script(`
local most, wanted, look = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local skipped = {}
for i = 5, #ARGV do skipped[ARGV[i]] = true end
-- When something of a webhook may be claimed.
local function due_at(webhook_id, w)
  if not is_active(w) then return end
  local at
  if w.ordering == "strict" then
    local _, turn = strict_turn(webhook_id, w)
    at = turn
  else
    local waiting, held = first_time(WAITING, webhook_id), first_time(HELD, webhook_id)
    at = waiting and held and math.min(waiting, held) or waiting or held
  end
  local allowed, free_at = allowance(webhook_id, w)
  return at and (allowed < 1 and math.max(at, free_at) or at)
end
local found, passed = {}, {}
local function see(first, last)
  if last < first then return end
  for _, webhook_id in ipairs(call("ZRANGE", LANES, first, last)) do
    if #found == wanted then return end
    local w = webhook(webhook_id)
    if not is_active(w) then
      passed[#passed + 1] = webhook_id
    elseif not skipped[origin_of(w)] then
      local count, head, turn, position
      if w.ordering == "strict" then
        head, turn, position = strict_turn(webhook_id, w)
        count = turn and turn <= now and 1 or 0
      else
        count = count_due(WAITING, webhook_id) + count_due(HELD, webhook_id)
      end
      count = math.min(count, most, (allowance(webhook_id, w)))
      if count >= 1 then
        found[#found + 1] = { webhook_id, origin_of(w), count, head or "", position or "" }
      else
        passed[#passed + 1] = webhook_id
      end
    end
  end
end
local due = call("ZCOUNT", LANES, "-inf", now)
local place = math.floor(ARGV[4] * due)
see(place, math.min(place + look, due) - 1)
see(0, math.min(place + look - due, place) - 1)
for _, webhook_id in ipairs(passed) do
  local at = due_at(webhook_id, webhook(webhook_id))
  if at then call("ZADD", LANES, at, webhook_id) else call("ZREM", LANES, webhook_id) end
end
return found`);

/** The position of a delivery in strict order; nothing for one that waits for no other. Value: delivery. */
export const FIND_POSITION = script(`
local d = get(DELIVERIES, ARGV[1])
return d and d.blocking and d.position`);

/**
 * Claims: [delivery, webhook, origin, interrupted, asking]. Values: fence, lease, then one delivery, or "" and
 * webhooks, each with how many of its due deliveries at the most, and of a strict one which.
 */
export const CLAIM = script(`
local fence, lease, only = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local claims = {}
local function take(webhook_id, w, id, q)
  unqueue(webhook_id, id, q)
  q.fence = fence
  q.due = now + lease
  enqueue(webhook_id, id, q)
  if w.rate then
    w.free_at = math.max(w.free_at or 0, now) + 1000 / w.rate
    keep_webhook(webhook_id, w)
  end
  claims[#claims + 1] = { id, webhook_id, origin_of(w), q.attempted and 1 or 0, q.asking and 1 or 0 }
end

if only ~= "" then
  local d, q = get(DELIVERIES, only), get(QUEUE, only)
  local w = d and webhook(d.webhook)
  if q and is_active(w) and (not q.fence or q.due <= now) and allowance(d.webhook, w) >= 1 then
    if w.ordering ~= "strict" or (strict_turn(d.webhook, w) == only and not live_till(d.webhook)) then
      take(d.webhook, w, only, q)
    end
  end
end
for i = 4, #ARGV, 3 do
  local webhook_id = ARGV[i]
  local w = webhook(webhook_id)
  if is_active(w) then
    local count = math.min(tonumber(ARGV[i + 1]), (allowance(webhook_id, w)))
    if w.ordering == "strict" then
      local head, turn = strict_turn(webhook_id, w)
      if head == ARGV[i + 2] and turn <= now and count >= 1 then take(webhook_id, w, head, get(QUEUE, head)) end
    elseif count >= 1 then
      -- Leases that have ended first: they are the older ones.
      local ids = due_members(HELD, webhook_id, count)
      if #ids < count then
        for _, member in ipairs(due_members(WAITING, webhook_id, count - #ids)) do ids[#ids + 1] = member end
      end
      for _, member in ipairs(ids) do
        local id = last_part(member)
        take(webhook_id, w, id, get(QUEUE, id))
      end
    end
  end
end
conclude()
return claims`);

/**
 * Puts attempts on record: their rows, the targets of their webhooks, and contents by event. Values: fence, lease,
 * how far in seconds a timestamp may run ahead of the clock, deliveries.
 */
export const RECORD = script(
  `
local fence, lease, lead, second = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), math.floor(now / 1000)
local rows, contents, has_content = {}, {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local q = get(QUEUE, id)
  local d = q and q.fence == fence and not q.attempted and not q.asking and get(DELIVERIES, id)
  local w = d and webhook(d.webhook)
  local content = d and (has_content[d.event] or call("HGET", CONTENTS, d.event))
  if content and is_active(w) and d.state == "pending" and d.timestamp < now / 1000 + lead then
    q.attempted = true
    -- A lease as long that was taken just now is as good as a new one.
    if math.abs(now + lease - q.due) > lease / 100 then
      unqueue(d.webhook, id, q)
      q.due = now + lease
      enqueue(d.webhook, id, q)
    else
      put(QUEUE, id, q)
    end
    tally(d, -1)
    d.state = "sending"
    tally(d, 1)
    d.attempts = d.attempts + 1
    d.tries = d.tries + 1
    d.asks = 0
    d.first_at = d.first_at or second
    d.timestamp = math.max(d.timestamp + 1, second)
    d.attempt = { fence = fence, url = w.url, timestamp = d.timestamp, started_at = now }
    put(DELIVERIES, id, d)
    add_target(d.webhook, w)
    if not has_content[d.event] then
      has_content[d.event] = content
      contents[#contents + 1] = { d.event, content }
    end
    rows[#rows + 1] = { id, d.webhook, d.event, d.attempts, d.tries, d.timestamp }
  end
end
conclude()
return { rows, targets, contents }`,
  { binary: true },
);

/** What is held, and the targets of its webhooks. Values: fence, deliveries. */
export const REVIEW = script(`
local rows = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local q = get(QUEUE, id)
  local d = q and q.fence == ARGV[1] and get(DELIVERIES, id)
  local w = d and webhook(d.webhook)
  if w and (q.attempted or (q.asking and is_active(w))) then
    add_target(d.webhook, w)
    rows[#rows + 1] = { id, d.webhook, d.event, d.tries, d.asks, d.timestamp, d.first_at }
  end
end
return { rows, targets }`);

/**
 * Records outcomes: for each attempt its state, or "" where somebody else holds the claim. Values: fence, lead, then
 * for each delivery, outcome, status, error, response, state, delay, whether its webhook is gone.
 */
export const FINISH = script(`
-- Attempts of one delivery among which that of a lost claim is looked for.
local MAX_ATTEMPTS = 1000
local function is_news(attempt, outcome, status)
  if attempt.late or (attempt.outcome == outcome and attempt.status == status) then return false end
  attempt.late = outcome .. (status and " " .. status or "")
  return true
end
local function note_late(id, outcome, status)
  local d = get(DELIVERIES, id)
  if d and d.attempt and d.attempt.fence == ARGV[1] then
    if is_news(d.attempt, outcome, status) then put(DELIVERIES, id, d) end
    return
  end
  for number = d and d.attempts or 0, math.max(1, (d and d.attempts or 0) - MAX_ATTEMPTS + 1), -1 do
    local field = id .. "|" .. number
    local attempt = get(ATTEMPTS, field)
    if attempt and attempt.fence == ARGV[1] then
      if is_news(attempt, outcome, status) then put(ATTEMPTS, field, attempt) end
      return
    end
  end
end

local states, seen = {}, {}
for i = 3, #ARGV, 8 do
  local id, outcome, status = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local q = get(QUEUE, id)
  local d = q and q.fence == ARGV[1] and q.attempted and get(DELIVERIES, id)
  if d then
    local state, failure = ARGV[i + 5], given(ARGV[i + 3])
    d.status = status
    d.error = failure
    if state == "success" then unblock(id, d) end
    move(id, d, q, state, tonumber(ARGV[i + 6]))
    local attempt = d.attempt
    attempt.outcome = outcome
    attempt.status = status
    attempt.error = failure
    attempt.response = given(ARGV[i + 4])
    attempt.finished_at = now
    put(ATTEMPTS, id .. "|" .. d.attempts, attempt)
    d.attempt = nil
    put(DELIVERIES, id, d)
    local health = seen[d.webhook] or {}
    seen[d.webhook] = health
    health.well = health.well or outcome == "delivered"
    health.gone = health.gone or ARGV[i + 7] == "1"
    states[#states + 1] = state
  else
    note_late(id, outcome, status)
    if q and q.fence == ARGV[1] and not q.attempted then give_back(id, q, tonumber(ARGV[2])) end
    states[#states + 1] = ""
  end
end

local function iso(ms)
  local days, seconds = math.floor(ms / 86400000), math.floor(ms / 1000) % 86400
  -- Days since 0000-03-01, in cycles of 400 years: the leap day is the last of a year.
  local z = days + 719468
  local cycle = math.floor(z / 146097)
  local day = z - cycle * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  local of_year = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)
  local of_month = of_year - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  if month <= 2 then year = year + 1 end
  return string.format("%04d-%02d-%02dT%02d:%02d:%02dZ", year + cycle * 400, month, of_month,
    math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60)
end
for webhook_id, health in pairs(seen) do
  local w = webhook(webhook_id)
  if w then
    local since, reason = w.failing_since, nil
    if health.gone then
      reason = "The endpoint answered 410 Gone."
    elseif not health.well and since and w.disable_after and since <= now - w.disable_after then
      reason = "Every attempt has failed since " .. iso(since) .. "."
    end
    if health.well then w.failing_since = nil else w.failing_since = since or now end
    if w.active and reason then
      disable(webhook_id, w, reason)
      call("ZADD", CHORES, 0, "untold|" .. webhook_id)
      keep_webhook(webhook_id, w)
    elseif since ~= w.failing_since then
      keep_webhook(webhook_id, w)
    end
  end
end
conclude()
return states`);

/** Records answers: for each its state, or "". Values: fence, then for each delivery, state, error, delay. */
export const SETTLE = script(`
local states = {}
for i = 2, #ARGV, 4 do
  local id, state = ARGV[i], ARGV[i + 1]
  local q = get(QUEUE, id)
  local d = q and q.fence == ARGV[1] and q.asking and get(DELIVERIES, id)
  if d then
    d.error = state ~= "success" and (given(ARGV[i + 2]) or d.error) or nil
    d.asks = d.asks + 1
    if state == "success" then unblock(id, d) end
    move(id, d, q, state, tonumber(ARGV[i + 3]))
    put(DELIVERIES, id, d)
  end
  states[#states + 1] = d and state or ""
end
conclude()
return states`);

/** Lengthens leases; returns what is held. Values: fence, lease, deliveries. */
export const EXTEND = script(`
local held = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local q = get(QUEUE, id)
  local d = q and q.fence == ARGV[1] and get(DELIVERIES, id)
  if d then
    unqueue(d.webhook, id, q)
    q.due = now + ARGV[2]
    enqueue(d.webhook, id, q)
    held[#held + 1] = id
  end
end
conclude()
return held`);

/** Values: fence, lead, deliveries. */
export const RELEASE = script(`
for i = 3, #ARGV do
  local q = get(QUEUE, ARGV[i])
  if q and q.fence == ARGV[1] and not q.attempted then give_back(ARGV[i], q, tonumber(ARGV[2])) end
end
conclude()`);
