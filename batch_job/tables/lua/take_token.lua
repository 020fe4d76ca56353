-- Take a token for one more attempt at a partition: larger than every token taken or committed before.
-- KEYS[1] token   ARGV[1] floor: the token committed in the table, which outlives Redis; -1 if none
-- Returns the token.
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
local token = math.max(current, tonumber(ARGV[1])) + 1
redis.call('SET', KEYS[1], string.format('%d', token))
return token
