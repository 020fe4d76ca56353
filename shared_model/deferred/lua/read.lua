-- One item.
-- KEYS[2] item hash
-- Returns its fields and values, alternating; empty if the item does not exist.
state_of(KEYS[2])
return {expired, redis.call('HGETALL', KEYS[2])}
