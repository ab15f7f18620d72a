// What the scripts share. A script is its own lines after those that it asks for; each uses its declared keys alone.
import { SHARD_KEYS } from "../shards.ts";

/** The declared keys by their names, the server's clock, and records. */
const RECORDS = `
local ${SHARD_KEYS.map((name) => name.toUpperCase()).join(", ")} = unpack(KEYS)
local call = redis.call
local clock = call("TIME")
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) -- in milliseconds

local function padded(n) return string.format("%016.0f", n) end

-- A text that may be missing: none is empty, any other begins with a sign.
local function given(arg)
  if arg ~= "" then return string.sub(arg, 2) end
end

local function get(key, field)
  local packed = call("HGET", key, field)
  return packed and cmsgpack.unpack(packed) or nil
end
local function put(key, field, record) call("HSET", key, field, cmsgpack.pack(record)) end

-- Each webhook is read once a script.
local known = {}
local function webhook(id)
  if known[id] == nil then known[id] = get(WEBHOOKS, id) or false end
  return known[id]
end
local function keep_webhook(id, w)
  known[id] = w
  put(WEBHOOKS, id, w)
end
local function is_active(w) return w and w.active end

-- Members of a list that begin with a text, from a place in it on.
local function members(key, prefix, limit, after)
  return call("ZRANGE", key, "(" .. prefix .. "|" .. (after or ""), "(" .. prefix .. "}", "BYLEX", "LIMIT", 0, limit)
end
-- The last part of a member.
local function last_part(member) return string.match(member, "([^|]*)$") end
`;

/** The queue, and the lanes in which a claim looks for something due. */
const QUEUE = `
local function queue_member(webhook_id, due, id) return webhook_id .. "|" .. padded(due) .. "|" .. id end

-- Webhooks whose lane is to be set when the script has done the rest.
local touched = {}

local function unqueue(webhook_id, id, q)
  call("ZREM", q.fence and HELD or WAITING, queue_member(webhook_id, q.due, id))
  touched[webhook_id] = true
end
local function enqueue(webhook_id, id, q)
  call("ZADD", q.fence and HELD or WAITING, 0, queue_member(webhook_id, q.due, id))
  put(QUEUE, id, q)
  touched[webhook_id] = true
end
local function leave_queue(webhook_id, id, q)
  unqueue(webhook_id, id, q)
  call("HDEL", QUEUE, id)
end

-- Members that are due, or whose lease has ended, the first of them first.
local function due_members(key, webhook_id, limit)
  return call("ZRANGE", key, "(" .. webhook_id .. "|", "(" .. webhook_id .. "|" .. padded(now + 1), "BYLEX", "LIMIT", 0, limit)
end
local function count_due(key, webhook_id)
  return call("ZLEXCOUNT", key, "(" .. webhook_id .. "|", "(" .. webhook_id .. "|" .. padded(now + 1))
end
local function first_time(key, webhook_id)
  local member = members(key, webhook_id, 1)[1]
  return member and tonumber(string.match(member, "|(%d+)|"))
end

-- The delivery that a strict webhook gets next: the lowest one that has not succeeded.
local function strict_head(webhook_id)
  local member = members(STRICT, webhook_id, 1)[1]
  if member then return last_part(member), string.match(member, "|(%d+)|") end
end
-- When the first lease ends that has not ended yet.
local function live_till(webhook_id)
  local after = "(" .. webhook_id .. "|" .. padded(now + 1)
  local member = call("ZRANGE", HELD, after, "(" .. webhook_id .. "}", "BYLEX", "LIMIT", 0, 1)[1]
  return member and tonumber(string.match(member, "|(%d+)|"))
end
-- It, when it may be claimed, and its position: not while it waits for a person, or the webhook for its
-- catch-up; nor while one that was behind it when it was redelivered is under way.
local function strict_turn(webhook_id, w)
  if w.catch_up then return end
  local head, position = strict_head(webhook_id)
  local q = head and get(QUEUE, head)
  if q then return head, math.max(q.due, live_till(webhook_id) or 0), position end
end

-- In milliseconds, how far claims of a webhook with a rate may run ahead of it, less one.
local function burst(rate) return math.max(0, 1000 - 1000 / rate) end
-- How many may be claimed from a webhook now by its own limits, and when the next may be if none.
local function allowance(webhook_id, w)
  local allowed, free_at = math.huge, 0
  if w.rate then
    local ahead = math.max(w.free_at or 0, now) - now
    allowed = math.floor((burst(w.rate) - ahead) * w.rate / 1000 + 1e-6) + 1
    free_at = math.ceil((w.free_at or 0) - burst(w.rate))
  end
  if w.in_flight then
    local live = call("ZLEXCOUNT", HELD, "(" .. webhook_id .. "|" .. padded(now + 1), "(" .. webhook_id .. "}")
    if live >= w.in_flight then
      allowed = 0
      free_at = math.max(free_at, live_till(webhook_id) or 0)
    else
      allowed = math.min(allowed, w.in_flight - live)
    end
  end
  return allowed, free_at
end

-- When something of a webhook may be claimed.
local function lane_time(webhook_id)
  local w = webhook(webhook_id)
  if not is_active(w) then return end
  local at
  if w.ordering == "strict" then
    local _, turn = strict_turn(webhook_id, w)
    at = turn
  else
    local waiting, held = first_time(WAITING, webhook_id), first_time(HELD, webhook_id)
    at = waiting and held and math.min(waiting, held) or waiting or held
  end
  if at and (w.rate or w.in_flight) then
    local allowed, free_at = allowance(webhook_id, w)
    if allowed < 1 then at = math.max(at, free_at) end
  end
  return at
end
local function set_lanes()
  for webhook_id in pairs(touched) do
    local at = lane_time(webhook_id)
    if at then call("ZADD", LANES, at, webhook_id) else call("ZREM", LANES, webhook_id) end
  end
end
`;

/** Deliveries: how they are shown, and what becomes of them. */
const DELIVERIES = `
local function strict_member(d, id) return d.webhook .. "|" .. d.position .. "|" .. id end
local function numbered_member(d, id) return d.webhook .. "|" .. padded(d.n) .. "|" .. id end

local function show(id, d)
  local blocked_by
  if d.blocking then
    local head = strict_head(d.webhook)
    if head ~= id then blocked_by = head end
  end
  return { id, d.event, d.webhook, d.state, d.attempts, d.status or false, d.error or false, d.next_at or false,
    blocked_by or false, d.created_at, d.finished_at or false }
end

-- Moves a delivery into a state, and what lists it along; delay: after it, it is sent again, or asked about.
local function move(id, d, state, delay)
  local q = get(QUEUE, id)
  if q then unqueue(d.webhook, id, q) end
  if delay then
    d.next_at = now + math.floor(delay)
    enqueue(d.webhook, id, { due = d.next_at, asking = state == "in_doubt" or nil })
  else
    d.next_at = nil
    if q then call("HDEL", QUEUE, id) end
  end
  local was_open = d.state == "failed" or d.state == "in_doubt"
  local is_open = state == "failed" or state == "in_doubt"
  if is_open and not was_open then call("ZADD", OPEN, 0, numbered_member(d, id)) end
  if was_open and not is_open then call("ZREM", OPEN, numbered_member(d, id)) end
  if d.listed_as_ended then call("ZREM", ENDED, id) end
  d.state = state
  d.finished_at = nil
  d.listed_as_ended = nil
  if state == "success" or state == "failed" then
    d.finished_at = now
    -- What blocks a strict webhook stays, however old it is.
    if not d.blocking then
      call("ZADD", ENDED, now, id)
      d.listed_as_ended = true
    end
  end
  touched[d.webhook] = true
end
-- It blocks nothing any more. Before it is moved.
local function unblock(id, d)
  if d.blocking then
    call("ZREM", STRICT, strict_member(d, id))
    d.blocking = nil
    touched[d.webhook] = true
  end
end

local function disable(webhook_id, w, reason)
  for _, kind in ipairs(w.types) do call("ZREM", TAKERS, kind .. "|" .. webhook_id) end
  w.active = nil
  w.disabled_reason = reason
  w.disabled_at = now
  touched[webhook_id] = true
end
`;

/** Which webhooks take a message, and the deliveries that are made of it. */
const OFFERS = String.raw`
-- How many values of a message are compared with a filter before it counts as not contained.
local MAX_COMPARISONS = 100000

-- A message is eight arguments from one on.
local MESSAGE_ARGS = 8
local function message_at(i)
  return { event = ARGV[i], type = ARGV[i + 1], at = tonumber(ARGV[i + 2]), made = tonumber(ARGV[i + 3]),
    position = ARGV[i + 4], flag = ARGV[i + 5], content = ARGV[i + 6], json = ARGV[i + 7] }
end

local function is_system(kind) return string.sub(kind, 1, 8) == "webhook." end

-- Ids of active webhooks that take a type, in their order, up to a limit; and after which to go on, if there are more.
local function takers(kind, after, limit)
  local named = members(TAKERS, kind, limit, after)
  local all = is_system(kind) and {} or members(TAKERS, "*", limit, after)
  local ids, i, j = {}, 1, 1
  while #ids < limit and (named[i] or all[j]) do
    local a = named[i] and string.sub(named[i], #kind + 2)
    local b = all[j] and string.sub(all[j], 3)
    if a and (not b or a <= b) then
      ids[#ids + 1] = a
      i = i + 1
      if a == b then j = j + 1 end
    else
      ids[#ids + 1] = b
      j = j + 1
    end
  end
  return ids, #ids == limit and ids[limit] or nil
end
local function takes_type(w, kind)
  for _, wanted in ipairs(w.types) do
    if wanted == kind or (wanted == "*" and not is_system(kind)) then return true end
  end
  return false
end

-- As PostgreSQL's data @> filter, for filters without an empty object or list.
local comparisons
local function contains(data, filter)
  comparisons = comparisons + 1
  if comparisons > MAX_COMPARISONS then return false end
  if type(filter) ~= "table" then return data == filter end
  if type(data) ~= "table" then return false end
  if filter[1] ~= nil then
    for _, wanted in ipairs(filter) do
      local found = false
      for _, item in ipairs(data) do
        if contains(item, wanted) then found = true break end
      end
      if not found then return false end
    end
    return true
  end
  for key, wanted in pairs(filter) do
    if data[key] == nil or not contains(data[key], wanted) then return false end
  end
  return true
end
local filters = {}
local function passes(w, m)
  if not w.filter then return true end
  if m.data == nil then
    local json = m.json ~= "" and m.json or string.sub(m.content, string.find(m.content, "\n", 1, true) + 1)
    local read, body = pcall(cjson.decode, json)
    m.data = read and type(body) == "table" and body.data or false
  end
  if filters[w] == nil then
    local readable, filter = pcall(cjson.decode, w.filter)
    filters[w] = readable and filter or false
  end
  comparisons = 0
  return filters[w] and contains(m.data, filters[w])
end

-- The record of a pair is found by its id: it is the claim of the pair.
local SHARD = string.format("%02x", string.match(KEYS[1], ":(%d+)}"))
local function delivery_id(webhook_id, event)
  return "dlv_" .. SHARD .. string.sub(redis.sha1hex(webhook_id .. "\n" .. event), 1, 32)
end
-- Whether the delivery of a message that is not new may have been made, and pruned.
local function is_forgotten(w, m) return w.pruned_until ~= nil and m.made <= w.pruned_until end

local function make(webhook_id, w, m, id)
  -- Not before its message, whatever the clocks of two servers say: pruning tells by it what may be missing.
  local d = { event = m.event, webhook = webhook_id, state = "pending", attempts = 0, tries = 0, asks = 0,
    timestamp = 0, next_at = now, created_at = math.max(now, m.made),
    n = call("HINCRBY", NUMBERS, "delivery", 1) }
  if w.ordering == "strict" then
    d.position = m.position
    d.blocking = true
    call("ZADD", STRICT, 0, strict_member(d, id))
  end
  put(DELIVERIES, id, d)
  call("ZADD", OFWEBHOOK, 0, numbered_member(d, id))
  call("ZADD", OFEVENT, 0, m.event .. "|" .. id)
  call("HSETNX", CONTENTS, m.event, m.content)
  enqueue(webhook_id, id, { due = now })
  return d
end
`;

export const lua = { records: RECORDS, queue: QUEUE, deliveries: DELIVERIES, offers: OFFERS };
