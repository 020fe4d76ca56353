-- All that is known of one item.
-- KEYS[2] item hash
-- Answers its fields and their values, in turn; nothing where there is none.
state_of(KEYS[2])
return {expired, redis.call('HGETALL', KEYS[2])}
