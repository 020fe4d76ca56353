-- Give work up for a reason of its own, and acknowledge it.
-- KEYS[2] item hash   KEYS[3] stream of dead letters, where it is to become one
-- ARGV[3] who found out   ARGV[4] entry   ARGV[5] the reason   and for a dead letter: ARGV[6] request id   ARGV[7] work
-- ARGV[8] how often it was tried
-- Answers 1 when the failure was kept, 0 when an earlier end or result stands or the item's time is over.
local state = state_of(KEYS[2])
if state == 'scored' or has_ended(state) then
  return {expired, 0}
end
if KEYS[3] then
  redis.call('XADD', KEYS[3], '*', 'id', ARGV[6], 'work', ARGV[7], 'deliveries', ARGV[8])
end
finish(KEYS[2], ARGV[4], 'state', 'failed', 'failure', ARGV[5], 'computed_by', ARGV[3])
return {expired, 1}
