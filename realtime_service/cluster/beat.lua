-- Publishes a replica's heartbeat and returns those of all: one command with one reply is much faster to read.
-- KEYS[1]: own heartbeat   KEYS[2]: set of replica ids   KEYS[3]: the cluster token
-- ARGV[1]: own id   ARGV[2]: own state   ARGV[3]: its expiry in milliseconds
-- ARGV[4]: a cluster token if none is stored; empty: replicas have a key instead
-- ARGV[5]: prefix of the keys of heartbeats
-- Returns {the cluster token, protobuf ReplicaStates in no order}. A replica whose heartbeat has
-- expired is removed from the set.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[1])
local token = ''
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[3], ARGV[4], 'NX')
  token = redis.call('GET', KEYS[3])
end
local ids = redis.call('SMEMBERS', KEYS[2])
local parts = {}
for _, id in ipairs(ids) do
  local state = redis.call('GET', ARGV[5] .. id)
  if state then
    -- Field 1 of ReplicaStates: its tag, then the length as a varint.
    local left, length = #state, ''
    while left >= 128 do
      length = length .. string.char(128 + left % 128)
      left = math.floor(left / 128)
    end
    parts[#parts + 1] = '\10' .. length .. string.char(left) .. state
  else
    redis.call('SREM', KEYS[2], id)
  end
end
return {token, table.concat(parts)}
