-- Return work that a consumer holds and has not done: as if it had not been delivered, and free for all at once.
-- KEYS[2..] item hashes   ARGV[3] consumer   ARGV[4] milliseconds that no lease is longer than
-- ARGV[5..] of each item: entry, 1 where its claim counted as a delivery, else 0
-- Answers how many were returned. An entry always has a holder in Redis; an entry that was given back has one without a
-- name: its former consumer can neither renew its lease nor give it back once more.
local returned = 0
for index = 2, #KEYS do
  local entry, counted = ARGV[2 * index + 1], ARGV[2 * index + 2]
  local row = held(entry, ARGV[3])
  if row then
    local deliveries = row[4] - tonumber(counted)
    redis.call('XCLAIM', KEYS[1], ARGV[1], '', 0, entry, 'IDLE', ARGV[4], 'RETRYCOUNT', deliveries, 'JUSTID')
    if redis.call('HGET', KEYS[index], 'state') == 'claimed' then
      redis.call('HSET', KEYS[index], 'state', 'accepted')
    end
    returned = returned + 1
  end
end
return {expired, returned}
