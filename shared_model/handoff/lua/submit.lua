-- Accept work once.
-- KEYS[1] stream   KEYS[2] item hash
-- ARGV[1] request id   ARGV[2] work   ARGV[3] bound on unfinished work   ARGV[4] seconds an item is kept
-- Returns {1, "accepted"}; {0, state} when this id was accepted before; {-1, ""} when the stream is full.
local state = redis.call('HGET', KEYS[2], 'state')
if state then
  return {0, state}
end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return {-1, ''}
end
redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'work', ARGV[2])
redis.call('HSET', KEYS[2], 'state', 'accepted')
redis.call('EXPIRE', KEYS[2], ARGV[4])
return {1, 'accepted'}
