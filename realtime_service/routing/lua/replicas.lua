-- All heartbeats in one reply, which is read much faster than one of each.
-- KEYS[1]: set of replica ids   ARGV[1]: what the key of a replica's heartbeat begins with
-- Returns protobuf ReplicaStates, in no order; a replica whose heartbeat has expired is taken off the list.
local ids = redis.call('SMEMBERS', KEYS[1])
local parts = {}
for _, id in ipairs(ids) do
  local state = redis.call('GET', ARGV[1] .. id)
  if state then
    -- Field 1, then the length, seven bits a byte, the lowest first.
    local left, length = #state, ''
    while left >= 128 do
      length = length .. string.char(128 + left % 128)
      left = math.floor(left / 128)
    end
    parts[#parts + 1] = '\10' .. length .. string.char(left) .. state
  else
    redis.call('SREM', KEYS[1], id)
  end
end
return table.concat(parts)
