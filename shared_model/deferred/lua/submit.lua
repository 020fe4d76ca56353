-- Accept work, each item once.
-- KEYS[2..] item hashes
-- ARGV[3] bound on unfinished work   ARGV[4] seconds an unfinished item is kept
-- ARGV[5..] for each item: request id, work, milliseconds within which it must have a result (0: no deadline)
-- Returns for each {1, "accepted"}; {0, state} if its id was accepted before; {-1, ""} if the stream is full.
local answers = {}
local waiting = redis.call('XLEN', KEYS[1])
for index = 2, #KEYS do
  local item, first = KEYS[index], 3 * index - 1
  local state = state_of(item)
  if state then
    answers[index - 1] = {0, state}
  elseif waiting >= tonumber(ARGV[3]) then
    answers[index - 1] = {-1, ''}
  else
    local within = tonumber(ARGV[first + 2])
    local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[first], 'work', ARGV[first + 1])
    redis.call('HSET', item, 'state', 'accepted', 'entry', entry)
    if within > 0 then
      redis.call('HSET', item, 'due', string.format('%.0f', now() + within))
    end
    redis.call('EXPIRE', item, ARGV[4])
    waiting = waiting + 1
    answers[index - 1] = {1, 'accepted'}
  end
end
return {expired, answers}
