-- End work with a failure of its own, and acknowledge it.
-- KEYS[2] item hash   KEYS[3] stream of dead letters, if it becomes one
-- ARGV[3] reporting service level   ARGV[4] entry   ARGV[5] reason; for a dead letter: ARGV[6] request id   ARGV[7] work
-- ARGV[8] number of attempts
-- Returns 1 if the failure was stored, 0 if the item has a result or an end already, or is past its deadline.
local state = state_of(KEYS[2])
if state == 'scored' or has_ended(state) then
  return {expired, 0}
end
if KEYS[3] then
  add(KEYS[3], ARGV[6], ARGV[7], fields_of(KEYS[1], ARGV[4]) or {}, 'deliveries', ARGV[8])
end
finish(KEYS[2], ARGV[4], 'state', 'failed', 'failure', ARGV[5], 'computed_by', ARGV[3])
return {expired, 1}
