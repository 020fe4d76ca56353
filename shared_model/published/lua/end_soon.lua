-- Gives a key that would stay for ever an end. Not EXPIRE … NX, which Redis 6 does not know.
-- KEYS[1] the key  ARGV[1] seconds
-- Returns 1 if it got an end, 0 if it has one or is gone.
if redis.call('TTL', KEYS[1]) ~= -1 then
  return 0
end
return redis.call('EXPIRE', KEYS[1], ARGV[1])
