-- Point a release at a newer epoch, never at an older one.
-- KEYS[1] pointer hash   ARGV[1] epoch   ARGV[2] ds   ARGV[3] token
-- Returns 1 when the pointer was moved, 0 when it stood at this (ds, token) already, -1 when it stands past it.
local ds = redis.call('HGET', KEYS[1], 'ds')
local token = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if ds == ARGV[2] and token == tonumber(ARGV[3]) then
  return 0
end
if ds and (ARGV[2] < ds or (ARGV[2] == ds and tonumber(ARGV[3]) < token)) then
  return -1
end
local previous = redis.call('HGET', KEYS[1], 'epoch') or ''
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'ds', ARGV[2], 'token', ARGV[3], 'previous', previous)
return 1
