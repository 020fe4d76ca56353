-- Return work that a consumer holds and has not done: as if it had not been delivered, and free for all at once.
-- KEYS[2..] item hashes   ARGV[3] consumer   ARGV[4] milliseconds that no lease is longer than
-- ARGV[5..] entries, one for each item
-- Answers how many were returned.
local returned = 0
for index = 2, #KEYS do
  local entry = ARGV[index + 3]
  local row = held(entry, ARGV[3])
  if row then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry, 'IDLE', ARGV[4], 'RETRYCOUNT', row[4] - 1, 'JUSTID')
    if redis.call('HGET', KEYS[index], 'state') == 'claimed' then
      redis.call('HSET', KEYS[index], 'state', 'accepted')
    end
    returned = returned + 1
  end
end
return {expired, returned}
