-- Point a release at an epoch before, or at none, and bar what it went back from.
-- KEYS[1] pointer hash {epoch, ds, token, previous (names, newest first), barrier_ds, barrier_token}
-- ARGV[1] the epoch gone back from  ARGV[2] the epoch gone back to, ARGV[3] its ds, ARGV[4] its token: '' where none is
-- ARGV[5] epochs that stay kept  ARGV[6] ds, ARGV[7] token: no epoch up to here is published again by itself
-- Returns 1 when the pointer was moved, 0 when it does not stand at ARGV[1].
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'ds', ARGV[3], 'token', ARGV[4], 'previous', ARGV[5])
local barrier = redis.call('HMGET', KEYS[1], 'barrier_ds', 'barrier_token')
local ds, token = barrier[1] or '', tonumber(barrier[2] or '')
if ds < ARGV[6] or (ds == ARGV[6] and token < tonumber(ARGV[7])) then
  redis.call('HSET', KEYS[1], 'barrier_ds', ARGV[6], 'barrier_token', ARGV[7])
end
return 1
