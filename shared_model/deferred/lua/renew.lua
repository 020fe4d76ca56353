-- Renew the leases that a consumer still holds, without counting a delivery.
-- ARGV[3] consumer   ARGV[4..] entries
-- Returns the entries it holds. XACK does not check the holder, so a lost lease is noticed here.
local renewed = {}
for index = 4, #ARGV do
  if held(ARGV[index], ARGV[3]) then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[index], 'JUSTID')
    renewed[#renewed + 1] = ARGV[index]
  end
end
return {expired, renewed}
