// Which webhooks get a message.
import { script } from "./script.ts";

/** The next position of a message: more than the last one, and than the time, so that a lost one does no harm. */
export const DRAW_POSITION = script(`
local micros = clock[1] * 1000000 + clock[2]
local position = math.max(tonumber(call("HGET", NUMBERS, "position") or 0) + 1, micros)
local text = string.format("%019.0f", position)
call("HSET", NUMBERS, "position", text)
return text`);

/** For each type whether a webhook takes it. Values: types. */
export const WANTED = script(`
local wanted = {}
for i, kind in ipairs(ARGV) do wanted[i] = #takers(kind, nil, 1) end
return wanted`);

/**
 * Makes the deliveries of one message to webhooks of this shard: [created, existing, forgotten, after which to go on].
 * Values: the message (its flag: n for a new one, b for one without its body), one webhook or "", the webhook after
 * which they begin, limit.
 */
export const DISPATCH = script(`
local m = message_at(1)
local only, after, limit = ARGV[MESSAGE_ARGS + 1], ARGV[MESSAGE_ARGS + 2], tonumber(ARGV[MESSAGE_ARGS + 3])
local ids, last
if only ~= "" then ids = { only } else ids, last = takers(m.type, after, limit) end
local created, existing, forgotten = {}, {}, {}
for _, webhook_id in ipairs(ids) do
  local w, id = webhook(webhook_id), delivery_id(webhook_id, m.event)
  local d = get(DELIVERIES, id)
  if d then
    existing[#existing + 1] = show(id, d)
  elseif is_active(w) and (only ~= "" or m.flag == "b" or passes(w, m)) then
    if m.flag == "b" or (m.flag ~= "n" and is_forgotten(w, m)) then
      forgotten[#forgotten + 1] = webhook_id
    else
      created[#created + 1] = show(id, make(webhook_id, w, m, id))
    end
  end
end
conclude()
return { created, existing, forgotten, last or false }`);

/** Deliveries of a message, and after which to go on. Values: event, the delivery after which they begin, limit. */
export const DELIVERIES_OF = script(`
local found = members(OFEVENT, ARGV[1], ARGV[3], ARGV[2])
local rows = {}
for i, member in ipairs(found) do
  local id = last_part(member)
  rows[i] = show(id, get(DELIVERIES, id))
end
return { rows, #found == tonumber(ARGV[3]) and last_part(found[#found]) }`);

/**
 * Offers messages in their order to the webhooks that take them: [deliveries made, messages done, webhook after which
 * the next one goes on]. Values: deliveries to make, webhooks to look at, the webhook after which the first one goes
 * on, messages (their flag: a for one that is offered again, b for one without its body, which nobody gets).
 */
export const OFFER = script(`
local limit, look, after = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local made, looked, done = 0, 0, 0
-- True: every webhook of this shard that takes it has it.
local function offer(m)
  if m.flag == "b" then return true end
  repeat
    if looked >= look then return false end
    local ids, last = takers(m.type, after, math.min(100, look - looked))
    for _, webhook_id in ipairs(ids) do
      local w, id = webhook(webhook_id), delivery_id(webhook_id, m.event)
      if w.deliver_from <= m.at and call("HEXISTS", DELIVERIES, id) == 0 and passes(w, m)
        and not (m.flag == "a" and is_forgotten(w, m)) then
        if made == limit then return false end
        make(webhook_id, w, m, id)
        made = made + 1
      end
      after = webhook_id
      looked = looked + 1
    end
  until not last
  after = ""
  return true
end
for i = 4, #ARGV, MESSAGE_ARGS do
  if not offer(message_at(i)) then break end
  done = done + 1
end
conclude()
return { made, done, after }`);

/** [created, existing, forgotten, without a body]; nothing: it is not active. Values: webhook, messages. */
export const REPLAY = script(`
local w = webhook(ARGV[1])
if not is_active(w) then return end
local report = { offer_one(ARGV[1], w, 2) }
conclude()
return report`);

/**
 * A webhook that has something to catch up on: [webhook, which time it looks back, the place it has come to,
 * deliver_from]. Value: its place among them in [0, 1), which is drawn.
 */
export const NEXT_CATCH_UP = script(`
local first, last = "(catchup|", "(catchup}"
local place = math.floor(ARGV[1] * call("ZLEXCOUNT", CHORES, first, last))
local member = call("ZRANGE", CHORES, first, last, "BYLEX", "LIMIT", place, 1)[1]
if not member then return end
local id = last_part(member)
local w = webhook(id)
return { id, w.looks or 0, w.catch_up or "", w.deliver_from }`);

/**
 * Makes what a webhook missed, and moves it to the next place: the deliveries made; nothing: another has done it.
 * Values: webhook, which time it looks back, the place that it has come to, the next place ("": it is done), messages.
 */
export const CATCH_UP = script(`
local id, w = ARGV[1], webhook(ARGV[1])
if not w or (w.looks or 0) ~= tonumber(ARGV[2]) or w.catch_up ~= ARGV[3] then return end
local created = is_active(w) and offer_one(id, w, 5) or 0
w.catch_up = given(ARGV[4])
if not w.catch_up then call("ZREM", CHORES, "catchup|" .. id) end
keep_webhook(id, w)
expect_due(id, now)
conclude()
return created`);

/** How many of these messages a webhook takes and has not. Values: webhook, messages. */
export const COUNT_MISSED = script(`
local w, missed = webhook(ARGV[1]), 0
for i = 2, #ARGV, MESSAGE_ARGS do
  local m = message_at(i)
  if w and takes_type(w, m.type) and passes(w, m) and not is_forgotten(w, m)
    and call("HEXISTS", DELIVERIES, delivery_id(ARGV[1], m.event)) == 0 then
    missed = missed + 1
  end
end
return missed`);

/**
 * The record of a message that a caller dispatches, in its home: [new, existing or mismatch, type, at, made, position,
 * content]. Values: event, content hash, type, at, position, content, whether it is a test.
 */
export const KEEP_MESSAGE = script(
  `
local event, m, found = ARGV[1], get(MESSAGES, ARGV[1]), "existing"
if not m then
  found = "new"
  m = { hash = ARGV[2], type = ARGV[3], at = tonumber(ARGV[4]), made = now, position = ARGV[5], content = ARGV[6] }
  put(MESSAGES, event, m)
  if ARGV[7] ~= "1" then call("ZADD", BYTIME, 0, padded(math.max(0, m.at)) .. "|" .. event) end
elseif m.hash ~= ARGV[2] then
  return { "mismatch" }
end
call("ZADD", BYUSE, now, event)
return { found, m.type, padded(m.at), m.made, m.position, found == "existing" and m.content }`,
  { binary: true },
);

/** Events that callers dispatched, as time|event. Values: from, to, the member after which they begin or "", limit. */
export const LIST_MESSAGES = script(`
local from = ARGV[3] ~= "" and "(" .. ARGV[3] or "[" .. padded(tonumber(ARGV[1]))
return call("ZRANGE", BYTIME, from, "(" .. padded(tonumber(ARGV[2])), "BYLEX", "LIMIT", 0, ARGV[4])`);

/** Messages by their events, to be offered: they stay for as long again. Values: events. */
export const READ_MESSAGES = script(
  `
local found = {}
for i, event in ipairs(ARGV) do
  local m = get(MESSAGES, event)
  if m then call("ZADD", BYUSE, now, event) end
  found[i] = m and { event, m.type, padded(m.at), m.made, m.position, m.content } or false
end
return found`,
  { binary: true },
);
