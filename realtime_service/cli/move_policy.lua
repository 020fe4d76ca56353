-- Replace the routing policy, if it still is the one that was read: its bytes hold its version.
-- KEYS[1]: protobuf RoutingPolicy; what is no string counts as none
-- ARGV[1] what was read, empty for none   ARGV[2] the next version
-- Returns 1 if it was replaced, else 0.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'string' then
  redis.call('DEL', KEYS[1])
end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
