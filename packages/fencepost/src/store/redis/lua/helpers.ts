// What scripts share. A helper is what stands between two empty lines.

const RECORDS = `
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

-- The time of a lane is never later than that at which something of its webhook may be claimed. It may be earlier:
-- who looks there then puts it right. So a script only says when there may be something, and does so at its end.
local soonest = {}

local function expect_due(webhook_id, at) soonest[webhook_id] = math.min(soonest[webhook_id] or at, at) end

-- By how much a script changes what is counted, which it does at its end.
local sums = {}

local function sum(what, by) sums[what] = (sums[what] or 0) + by end

-- What a script that changes anything does last.
local function conclude()
  for webhook_id, at in pairs(soonest) do
    if is_active(webhook(webhook_id)) then call("ZADD", LANES, "LT", at, webhook_id) end
  end
  for what, by in pairs(sums) do
    if by ~= 0 then call("HINCRBY", NUMBERS, what, by) end
  end
end

-- Counts a delivery as it stands, or no more: before and after it is changed.
local function tally(d, by)
  sum(d.state, by)
  if d.state == "in_doubt" and not d.next_at then sum("stuck", by) end
end

local function unqueue(webhook_id, id, q)
  call("ZREM", q.fence and HELD or WAITING, queue_member(webhook_id, q.due, id))
end

local function enqueue(webhook_id, id, q)
  call("ZADD", q.fence and HELD or WAITING, 0, queue_member(webhook_id, q.due, id))
  put(QUEUE, id, q)
  expect_due(webhook_id, q.due)
end
`;

/** What may be claimed from a webhook now. */
const TURNS = `
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

local function origin_of(w) return string.match(w.url, "^[^/]+//[^/]+") end
`;

/** What becomes of a delivery, and how it is shown. */
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

-- Where few are under way at once, another may be now.
local function expect_another(webhook_id)
  local w = webhook(webhook_id)
  if w.in_flight or w.ordering == "strict" then expect_due(webhook_id, now) end
end

-- Moves a delivery, and its row in the queue if it has one, into a state, and what lists it along. After a delay, if
-- one is given, it is sent again, or asked about.
local function move(id, d, q, state, delay)
  tally(d, -1)
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
  tally(d, 1)
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
  expect_another(d.webhook)
end

-- It blocks nothing any more. Before it is moved.
local function unblock(id, d)
  if d.blocking then
    call("ZREM", STRICT, strict_member(d, id))
    d.blocking = nil
    expect_due(d.webhook, now)
  end
end

-- Gives back what was claimed and not attempted.
local function give_back(id, q, lead)
  local d = get(DELIVERIES, id)
  if not d then return end
  unqueue(d.webhook, id, q)
  if d.state == (q.asking and "in_doubt" or "pending") then
    q.fence = nil
    q.due = math.max(now, d.next_at or 0, (d.timestamp - lead) * 1000)
    enqueue(d.webhook, id, q)
  else
    call("HDEL", QUEUE, id) -- What has ended was offered by mistake: it would be claimed for ever
  end
  expect_another(d.webhook)
end

-- Makes what ended pending again, as if it had never been attempted but for its ids and bytes.
local function send_again(id, d)
  if webhook(d.webhook).deleted_at then return end
  if d.position and not d.blocking then
    d.blocking = true
    call("ZADD", STRICT, 0, strict_member(d, id))
  end
  d.tries = 0
  d.asks = 0
  move(id, d, get(QUEUE, id), "pending", 0)
  put(DELIVERIES, id, d)
end

-- What a worker must know to send or to ask, once a webhook.
local targets = {}

local has_target = {}

local function add_target(webhook_id, w)
  if has_target[webhook_id] then return end
  has_target[webhook_id] = true
  local secrets = {}
  for _, s in ipairs(w.secrets) do
    if not s.expires or s.expires > now then secrets[#secrets + 1] = s.secret end
  end
  targets[#targets + 1] = { webhook_id, w.url, w.headers, w.on_unknown, w.retry_on, w.retry_schedule or false,
    string.format("%.17g", w.jitter), unpack(secrets) }
end
`;

const WEBHOOKS = `
local function disable(webhook_id, w, reason)
  if w.active then sum("disabled", 1) end
  for _, kind in ipairs(w.types) do call("ZREM", TAKERS, kind .. "|" .. webhook_id) end
  w.active = nil
  w.disabled_reason = reason
  w.disabled_at = now
  call("ZREM", LANES, webhook_id)
end

local NUMERIC = { jitter = true, rate = true, in_flight = true, disable_after = true }

-- Settings are names and texts, from one argument on.
local function apply(w, from)
  for i = from, #ARGV, 2 do
    local name, value = ARGV[i], given(ARGV[i + 1])
    if name == "types" then value = cjson.decode(value) elseif NUMERIC[name] then value = tonumber(value or "") end
    w[name] = value
  end
end

local function exact(number) return number and string.format("%.17g", number) or false end

local function describe(id, w)
  local secrets = {}
  for _, s in ipairs(w.secrets) do
    if not s.expires or s.expires > now then secrets[#secrets + 1] = { s.secret, s.expires or false } end
  end
  return { id, w.url, w.types, w.filter or false, secrets, w.headers, w.description, w.active and 1 or 0,
    w.disabled_reason or false, w.disabled_at or false, w.on_unknown, w.retry_on, w.retry_schedule or false,
    exact(w.jitter), w.ordering, exact(w.rate), exact(w.in_flight), exact(w.disable_after),
    w.failing_since or false, w.deliver_from, w.pruned_until or false, w.created_at }
end

local function present(id)
  local w = webhook(id)
  return w and not w.deleted_at and w or nil
end

local function listen(id, w)
  for _, kind in ipairs(w.types) do call("ZADD", TAKERS, 0, kind .. "|" .. id) end
end

-- It looks back over what was offered before it was there, where there is an outbox. Who is still at an earlier time
-- that it did has not seen what was made since.
local function look_back(id, w, has_outbox)
  if has_outbox ~= "1" then return end
  w.looks = (w.looks or 0) + 1
  w.catch_up = ""
  call("ZADD", CHORES, 0, "catchup|" .. id)
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
  tally(d, 1)
  put(DELIVERIES, id, d)
  call("ZADD", OFWEBHOOK, 0, numbered_member(d, id))
  call("ZADD", OFEVENT, 0, m.event .. "|" .. id)
  call("HSETNX", CONTENTS, m.event, m.content)
  enqueue(webhook_id, id, { due = now })
  return d
end

-- Offers messages, from one argument on, to one webhook.
local function offer_one(webhook_id, w, from)
  local created, existing, forgotten, bodiless = 0, 0, {}, {}
  for i = from, #ARGV, MESSAGE_ARGS do
    local m = message_at(i)
    if takes_type(w, m.type) and (m.flag == "b" or passes(w, m)) then
      local id = delivery_id(webhook_id, m.event)
      if call("HEXISTS", DELIVERIES, id) == 1 then
        existing = existing + 1
      elseif is_forgotten(w, m) then
        forgotten[#forgotten + 1] = m.event
      elseif m.flag == "b" then
        bodiless[#bodiless + 1] = m.event
      else
        make(webhook_id, w, m, id)
        created = created + 1
      end
    end
  end
  return created, existing, forgotten, bodiless
end
`;

export const HELPERS: readonly string[] = [RECORDS, QUEUE, TURNS, DELIVERIES, WEBHOOKS, OFFERS].flatMap(
  (part) => part.trim().split("\n\n"),
);
