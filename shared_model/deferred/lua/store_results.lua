-- Store results by request id. A stored result is final.
-- KEYS[2..] item hashes   ARGV[3] service level that computed them   ARGV[4..] for each item: entry, result
-- Returns for each 1 if this result was stored, 0 if the item has a result or an end already, or is past its deadline.
local answers = {}
for index = 2, #KEYS do
  local item, entry, result = KEYS[index], ARGV[2 * index], ARGV[2 * index + 1]
  local state, kept = state_of(item), 0
  -- Work may outlive its item hash. If neither exists, Redis has lost both and the result is not stored.
  local outlived = not state and fields_of(KEYS[1], entry)
  if state == 'accepted' or state == 'claimed' or outlived then
    redis.call('HSET', item, 'state', 'scored', 'result', result, 'computed_by', ARGV[3])
    if outlived then
      guard(item, outlived)
    end
    redis.call('EXPIRE', item, ARGV[2])
    kept = 1
  end
  answers[index - 1] = kept
end
return {expired, answers}
