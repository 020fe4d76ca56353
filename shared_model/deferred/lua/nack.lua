-- Return work that a consumer holds and has not done: as if it had not been delivered, and free to claim at once.
-- KEYS[2..] item hashes   ARGV[3] consumer   ARGV[4] milliseconds longer than any lease
-- ARGV[5..] for each item: entry, 1 if its claim counted as a delivery, else 0
-- Returns how many were returned. Redis requires a holder for each pending entry: a returned entry gets a nameless one,
-- so its former consumer can neither renew its lease nor return it again.
local returned = 0
for index = 2, #KEYS do
  local entry, counted = ARGV[2 * index + 1], ARGV[2 * index + 2]
  local row = held(entry, ARGV[3])
  if row then
    local deliveries = row[4] - tonumber(counted)
    redis.call('XCLAIM', KEYS[1], ARGV[1], '', 0, entry, 'IDLE', ARGV[4], 'RETRYCOUNT', deliveries, 'JUSTID')
    local item = redis.call('HMGET', KEYS[index], 'state', 'due')
    if item[1] == 'claimed' then
      redis.call('HSET', KEYS[index], 'state', 'accepted')
    end
    enqueue(entry, item[2])
    returned = returned + 1
  end
end
return {expired, returned}
