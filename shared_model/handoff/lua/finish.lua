-- Write a result and acknowledge the work, in one step: there is no moment with one and without the other.
-- KEYS[1] stream   KEYS[2] item hash
-- ARGV[1] group   ARGV[2] entry id   ARGV[3] state: published or failed   ARGV[4] result or failure
-- ARGV[5] who computed it   ARGV[6] seconds a result is kept
-- Returns 1 when this result was kept, 0 when an earlier one stands.
local kept = 0
local state = redis.call('HGET', KEYS[2], 'state')
if state ~= 'published' and state ~= 'failed' then
  redis.call('HSET', KEYS[2], 'state', ARGV[3], ARGV[3] == 'failed' and 'failure' or 'result', ARGV[4], 'computed_by', ARGV[5])
  redis.call('EXPIRE', KEYS[2], ARGV[6])
  kept = 1
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return kept
