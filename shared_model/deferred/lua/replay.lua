-- Accept dead letters again, as if they had never been delivered and without their deadlines.
-- KEYS[2] stream of dead letters   KEYS[3] audit stream   KEYS[4..] item hashes
-- ARGV[3] seconds an unfinished item is kept   ARGV[4..7] audit record, its signer and signature, records to keep
-- ARGV[8..] dead letters, one for each item
-- Returns how many were accepted. A dead letter that another process replayed meanwhile is skipped. One whose id was
-- submitted again after its failure had expired is dropped.
local replayed = 0
for index = 4, #KEYS do
  local fields = fields_of(KEYS[2], ARGV[index + 4])
  if fields then
    local state = redis.call('HGET', KEYS[index], 'state')
    if not state or state == 'failed' then
      local entry = add(KEYS[1], fields.id, fields.work, fields, 'ordered', 1)
      enqueue(entry)
      redis.call('DEL', KEYS[index])
      redis.call('HSET', KEYS[index], 'state', 'accepted', 'entry', entry)
      guard(KEYS[index], fields)
      redis.call('EXPIRE', KEYS[index], ARGV[3])
      replayed = replayed + 1
    end
    redis.call('XDEL', KEYS[2], ARGV[index + 4])
  end
end
if replayed > 0 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'record', ARGV[4], 'signer', ARGV[5], 'signature', ARGV[6])
end
return {expired, replayed}
