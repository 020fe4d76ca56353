-- Replaces the routing policy if it is still the one that was read; the bytes include its version.
-- KEYS[1]: protobuf RoutingPolicy; a key of another type counts as empty
-- KEYS[2]: the audit stream
-- ARGV[1]: the policy that was read, or empty   ARGV[2]: the next version
-- ARGV[3..6]: an audit record, its signer and signature, and the number of records to keep
-- Returns 1 if it was replaced, else 0.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'string' then
  redis.call('DEL', KEYS[1])
end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', 'record', ARGV[3], 'signer', ARGV[4], 'signature', ARGV[5])
return 1
