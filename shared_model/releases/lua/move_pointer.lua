-- Move the release pointer, forward only. A value that is not a hash, or has no valid version, counts as no pointer.
-- KEYS[1]: hash {version, active, previous, canary, weight}
-- ARGV: version, active, previous, canary, weight
-- Returns 0 if it was moved, else the version that Redis holds, which is the same or later.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then
  redis.call('DEL', KEYS[1])
end
local held = tonumber(redis.call('HGET', KEYS[1], 'version') or '0') or 0
if not (held >= 0 and held < 2^53 and held % 1 == 0) then
  held = 0
end
if held >= tonumber(ARGV[1]) then
  return held
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'active', ARGV[2], 'previous', ARGV[3], 'canary', ARGV[4], 'weight', ARGV[5])
return 0
