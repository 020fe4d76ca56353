-- Store results by key: from now on nothing is computed again, and nothing takes them back.
-- KEYS[2..] item hashes   ARGV[3] who computed them   ARGV[4..] of each item: entry, result
-- Answers for each 1 when this result was kept, 0 when an earlier end or result stands or the item's time is over.
local answers = {}
for index = 2, #KEYS do
  local item, entry, result = KEYS[index], ARGV[2 * index], ARGV[2 * index + 1]
  local state, kept = state_of(item), 0
  -- Work may outlive its item; without either of them Redis has lost both.
  local outlived = not state and #redis.call('XRANGE', KEYS[1], entry, entry) > 0
  if state == 'accepted' or state == 'claimed' or outlived then
    redis.call('HSET', item, 'state', 'scored', 'result', result, 'computed_by', ARGV[3])
    redis.call('EXPIRE', item, ARGV[2])
    kept = 1
  end
  answers[index - 1] = kept
end
return {expired, answers}
