-- Accept dead letters again, as if they had never been delivered and without their deadlines.
-- KEYS[2] stream of dead letters   KEYS[3] audit stream   KEYS[4..] item hashes
-- ARGV[3] seconds an unfinished item is kept   ARGV[4..7] audit record, its signer and signature, records to keep
-- ARGV[8..] dead letters, one for each item
-- Returns how many were accepted. A dead letter that another process replayed meanwhile is skipped. One whose id was
-- submitted again after its failure had expired is dropped.
local replayed = 0
for index = 4, #KEYS do
  local letter = redis.call('XRANGE', KEYS[2], ARGV[index + 4], ARGV[index + 4])[1]
  if letter then
    local fields, state = {}, redis.call('HGET', KEYS[index], 'state')
    for position = 1, #letter[2], 2 do
      fields[letter[2][position]] = letter[2][position + 1]
    end
    if not state or state == 'failed' then
      local entry = redis.call('XADD', KEYS[1], '*', 'id', fields.id, 'work', fields.work)
      redis.call('DEL', KEYS[index])
      redis.call('HSET', KEYS[index], 'state', 'accepted', 'entry', entry)
      redis.call('EXPIRE', KEYS[index], ARGV[3])
      replayed = replayed + 1
    end
    redis.call('XDEL', KEYS[2], letter[1])
  end
end
if replayed > 0 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'record', ARGV[4], 'signer', ARGV[5], 'signature', ARGV[6])
end
return {expired, replayed}
