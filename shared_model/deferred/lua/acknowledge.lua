-- Acknowledge work whose result, or other end, is stored.
-- KEYS[2..] item hashes   ARGV[3..] entries, one for each item
-- Returns for each 1 if this call published it, else 0.
local answers = {}
for index = 2, #KEYS do
  local item, entry = KEYS[index], ARGV[index + 1]
  local state = redis.call('HGET', item, 'state')
  answers[index - 1] = 0
  if state == 'scored' then
    finish(item, entry, 'state', 'published')
    answers[index - 1] = 1
  elseif has_ended(state) then
    take_off(entry)
  end
end
return {expired, answers}
