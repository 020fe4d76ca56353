-- The scores of messages by their ids, from an epoch and its index; see `message_ids.py` for the form of a block.
-- The names of both hashes are arguments, not KEYS: Redis takes each of KEYS of a script for one that it writes, and
-- a service's user may only read them.
-- ARGV[1], ARGV[2]: the index, the scores   ARGV[3], ARGV[4], ARGV[5]: bytes of a field, a mark, an entry
-- ARGV[6]: of each id the field of its block and its mark, in turn
-- Returns of each id the PublishedScore of its text, or nil.
local field_bytes, mark_bytes, entry_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function key_in(block, mark)
  local start = string.find(block, mark, 1, true)
  -- Found across entries, or in a key, it is another one's.
  while start and (start - 1) % entry_bytes ~= 0 do
    start = string.find(block, mark, start + 1, true)
  end
  return start and string.sub(block, start + mark_bytes, start + entry_bytes - 1)
end

local scores = {}
for start = 1, #ARGV[6], field_bytes + mark_bytes do
  local mark_start = start + field_bytes
  local block = redis.call('HGET', ARGV[1], string.sub(ARGV[6], start, mark_start - 1))
  local key = block and key_in(block, string.sub(ARGV[6], mark_start, mark_start + mark_bytes - 1))
  scores[#scores + 1] = key and redis.call('HGET', ARGV[2], key) or false
end
return scores
