-- Note which accepted requests are now claimed. One that another consumer finished meanwhile stays finished.
-- KEYS item hashes
-- Returns how many changed.
local changed = 0
for _, item in ipairs(KEYS) do
  if redis.call('HGET', item, 'state') == 'accepted' then
    redis.call('HSET', item, 'state', 'claimed')
    changed = changed + 1
  end
end
return changed
