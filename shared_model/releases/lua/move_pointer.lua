-- Move the release pointer, forward only. A value that is not a hash, or has no valid version, counts as no pointer.
-- KEYS[1]: hash {version, active, previous, canary, weight, signer, signature}   KEYS[2]: the audit stream
-- KEYS[3]: the set of models, unless it is the default model's pointer
-- ARGV: version, active, previous, canary, weight, signer, signature, both empty if it is unsigned; then an audit record
--       with its signer and signature, and the number of records to keep; then the model
-- Returns 0 if it was moved, else the version that Redis holds, which is the same or later.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then
  redis.call('DEL', KEYS[1])
end
local held = tonumber(redis.call('HGET', KEYS[1], 'version') or '0') or 0
if not (held >= 0 and held < 2^53 and held % 1 == 0) then
  held = 0
end
if held >= tonumber(ARGV[1]) then
  return held
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'active', ARGV[2], 'previous', ARGV[3], 'canary', ARGV[4], 'weight', ARGV[5])
if ARGV[6] == '' then
  redis.call('HDEL', KEYS[1], 'signer', 'signature')
else
  redis.call('HSET', KEYS[1], 'signer', ARGV[6], 'signature', ARGV[7])
end
if KEYS[3] then
  redis.call('SADD', KEYS[3], ARGV[12])
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[11], '*', 'record', ARGV[8], 'signer', ARGV[9], 'signature', ARGV[10])
return 0
