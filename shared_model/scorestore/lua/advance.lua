-- Point a release at a newer epoch, never at an older one.
-- KEYS[1] pointer hash   ARGV[1] epoch   ARGV[2] ds   ARGV[3] token
-- Returns the epoch that was replaced ('' if none), or false when the pointer already stands at or past (ds, token).
local ds = redis.call('HGET', KEYS[1], 'ds')
local token = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if ds and (ARGV[2] < ds or (ARGV[2] == ds and tonumber(ARGV[3]) <= token)) then
  return false
end
local previous = redis.call('HGET', KEYS[1], 'epoch') or ''
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'ds', ARGV[2], 'token', ARGV[3], 'previous', previous)
return previous
