// The life of a webhook.
import { script } from "../shards.ts";
import { lua } from "./prelude.ts";

const WEBHOOKS =
  lua.records +
  lua.queue +
  lua.deliveries +
  `
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
-- It looks back over what was offered before it was there, where there is an outbox.
local function look_back(id, w, has_outbox)
  if has_outbox ~= "1" then return end
  w.catch_up = ""
  call("ZADD", CHORES, 0, "catchup|" .. id)
end
`;

/** Values: webhook, whether there is an outbox, ordering, secrets as JSON, settings. */
export const ADD_WEBHOOK = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], webhook(ARGV[1])
if not w then
  w = { ordering = ARGV[3], secrets = {}, active = true, deliver_from = now, created_at = now }
  for i, secret in ipairs(cjson.decode(ARGV[4])) do w.secrets[i] = { secret = secret } end
  apply(w, 5)
  look_back(id, w, ARGV[2])
  listen(id, w)
  call("ZADD", NAMES, 0, id)
  keep_webhook(id, w)
end
return describe(id, w)`,
);

/** Value: webhook. */
export const FIND_WEBHOOK = script(
  WEBHOOKS +
    `
local w = present(ARGV[1])
return w and describe(ARGV[1], w)`,
);

/** Values: the id after which they begin, limit. */
export const LIST_WEBHOOKS = script(
  WEBHOOKS +
    `
local found = {}
for i, id in ipairs(call("ZRANGE", NAMES, "(" .. ARGV[1], "+", "BYLEX", "LIMIT", 0, ARGV[2])) do
  found[i] = describe(id, webhook(id))
end
return found`,
);

/** Values: webhook, settings. */
export const UPDATE_WEBHOOK = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if w.active then
  for _, kind in ipairs(w.types) do call("ZREM", TAKERS, kind .. "|" .. id) end
end
apply(w, 2)
if w.active then listen(id, w) end
keep_webhook(id, w)
touched[id] = true
set_lanes()
return describe(id, w)`,
);

/** Values: webhook, secret, overlap, how many secrets may sign. */
export const ROTATE_SECRET = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
-- A call that is repeated, because its reply was lost, rotates once.
if w.secrets[1] and w.secrets[1].secret == ARGV[2] then return describe(id, w) end
local till, secrets = now + ARGV[3], { { secret = ARGV[2] } }
for _, s in ipairs(w.secrets) do
  local expires = math.min(s.expires or till, till)
  if expires > now then secrets[#secrets + 1] = { secret = s.secret, expires = expires } end
end
if #secrets > tonumber(ARGV[4]) then return "too many" end
w.secrets = secrets
keep_webhook(id, w)
return describe(id, w)`,
);

/** Values: webhook, whether what it missed is delivered, whether there is an outbox. */
export const ACTIVATE_WEBHOOK = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if not w.active then
  w.active = true
  w.disabled_reason = nil
  w.disabled_at = nil
  w.failing_since = nil
  if ARGV[2] ~= "1" then w.deliver_from = now end
  call("ZREM", CHORES, "untold|" .. id)
  look_back(id, w, ARGV[3])
  listen(id, w)
  keep_webhook(id, w)
  touched[id] = true
  set_lanes()
end
return describe(id, w)`,
);

/** Values: webhook, reason. */
export const DEACTIVATE_WEBHOOK = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if w.active then
  disable(id, w, ARGV[2])
  keep_webhook(id, w)
  set_lanes()
end
return describe(id, w)`,
);

/** Its record stays, without what could be used against its owner. Values: webhook, reason. */
export const DELETE_WEBHOOK = script(
  WEBHOOKS +
    `
local id, w = ARGV[1], present(ARGV[1])
if not w then return 0 end
disable(id, w, ARGV[2])
w.deleted_at = now
w.secrets = {}
w.headers = "{}"
w.catch_up = nil
call("ZREM", NAMES, id)
call("ZREM", CHORES, "catchup|" .. id, "untold|" .. id)
call("ZADD", CHORES, 0, "ending|" .. id, 0, "leaving|" .. id)
keep_webhook(id, w)
set_lanes()
return 1`,
);
