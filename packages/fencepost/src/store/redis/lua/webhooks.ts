// The life of a webhook.
import { script } from "./script.ts";

/** Values: webhook, whether there is an outbox, ordering, secrets as JSON, settings. */
export const ADD_WEBHOOK = script(`
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
return describe(id, w)`);

/** Value: webhook. */
export const FIND_WEBHOOK = script(`
local w = present(ARGV[1])
return w and describe(ARGV[1], w)`);

/** Values: the id after which they begin, limit. */
export const LIST_WEBHOOKS = script(`
local found = {}
for i, id in ipairs(call("ZRANGE", NAMES, "(" .. ARGV[1], "+", "BYLEX", "LIMIT", 0, ARGV[2])) do
  found[i] = describe(id, webhook(id))
end
return found`);

/** Values: webhook, settings. */
export const UPDATE_WEBHOOK = script(`
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if w.active then
  for _, kind in ipairs(w.types) do call("ZREM", TAKERS, kind .. "|" .. id) end
end
apply(w, 2)
if w.active then listen(id, w) end
-- What was claimed at a lower rate keeps none waiting longer than this rate can.
if w.rate and w.free_at then w.free_at = math.min(w.free_at, now + math.max(1000, 1000 / w.rate)) end
keep_webhook(id, w)
expect_due(id, now)
conclude()
return describe(id, w)`);

/** Values: webhook, secret, overlap, how many secrets may sign. */
export const ROTATE_SECRET = script(`
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
return describe(id, w)`);

/** Values: webhook, whether what it missed is delivered, whether there is an outbox. */
export const ACTIVATE_WEBHOOK = script(`
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if not w.active then
  sum("disabled", -1)
  w.active = true
  w.disabled_reason = nil
  w.disabled_at = nil
  w.failing_since = nil
  if ARGV[2] ~= "1" then w.deliver_from = now end
  call("ZREM", CHORES, "untold|" .. id)
  look_back(id, w, ARGV[3])
  listen(id, w)
  keep_webhook(id, w)
  expect_due(id, now)
  conclude()
end
return describe(id, w)`);

/** Values: webhook, reason. */
export const DEACTIVATE_WEBHOOK = script(`
local id, w = ARGV[1], present(ARGV[1])
if not w then return end
if w.active then
  disable(id, w, ARGV[2])
  keep_webhook(id, w)
  conclude()
end
return describe(id, w)`);

/** Its record stays, without what could be used against its owner. Values: webhook, reason. */
export const DELETE_WEBHOOK = script(`
local id, w = ARGV[1], present(ARGV[1])
if not w then return 0 end
disable(id, w, ARGV[2])
sum("disabled", -1) -- those that are there are counted
w.deleted_at = now
w.secrets = {}
w.headers = "{}"
w.catch_up = nil
call("ZREM", NAMES, id)
call("ZREM", CHORES, "catchup|" .. id, "untold|" .. id)
call("ZADD", CHORES, 0, "ending|" .. id, 0, "leaving|" .. id)
keep_webhook(id, w)
conclude()
return 1`);
