-- A replica tells of itself, and hears of all: one command, and all heartbeats in one reply, are read much faster.
-- KEYS[1]: its heartbeat   KEYS[2]: set of replica ids   KEYS[3]: the word   KEYS[4]: the policy
-- ARGV[1]: its id   ARGV[2]: its state   ARGV[3]: milliseconds until that expires   ARGV[4]: the word, if there is none
-- ARGV[5]: what the key of a replica's heartbeat begins with
-- Returns {the word, the policy or nil, protobuf ReplicaStates in no order}; a replica whose heartbeat has expired is
-- taken off the list.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], ARGV[4], 'NX')
local ids = redis.call('SMEMBERS', KEYS[2])
local parts = {}
for _, id in ipairs(ids) do
  local state = redis.call('GET', ARGV[5] .. id)
  if state then
    -- Field 1, then the length, seven bits a byte, the lowest first.
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
return {redis.call('GET', KEYS[3]), redis.call('GET', KEYS[4]), table.concat(parts)}
