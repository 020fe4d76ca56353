-- Point a release at an earlier epoch, or at no epoch, and raise the rollback watermark.
-- KEYS[1] pointer hash {epoch, ds, token, previous (names, newest first), barrier_ds, barrier_token}
-- ARGV[1] epoch to leave  ARGV[2] epoch to return to, ARGV[3] its ds, ARGV[4] its token: all '' for no epoch
-- ARGV[5] epochs that stay kept  ARGV[6] ds, ARGV[7] token of the watermark: no retry publishes an epoch up to it
-- Returns 1 if the pointer was moved, 0 if it is not at ARGV[1].
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
