-- Claim work for a consumer: entries with an expired lease, else free ones by deadline, then age. Entries that need no
-- work are removed.
-- KEYS[2] stream of dead letters
-- ARGV[3] consumer   ARGV[4] most items   ARGV[5] most of them that were delivered before   ARGV[6] lease, milliseconds
-- ARGV[7] entry after which to look for expired leases, or ""   ARGV[8] entries to look at   ARGV[9] prefix of the item
-- hashes' keys (their ids are known only here; they share the stream's hash tag)
-- ARGV[10] the delivery that goes to the dead letters   ARGV[11] its failure text
-- ARGV[12] '1' if this counts as a delivery: its consumer's death is then held against the work
-- ARGV[13] models that the consumer serves, each between commas, or "" for all; the default one is always among them
-- Returns {entry to continue after, "" at the end; items: {entry, request id, work}; number of dead letters made}.
local items, dead = {}, 0
local most, most_again = tonumber(ARGV[4]), tonumber(ARGV[5])

-- Whether an entry still needs work: it has neither a result nor another end.
local function needs_work(entry, item)
  local state = state_of(item)
  if state == 'scored' then
    finish(item, entry, 'state', 'published')
  elseif has_ended(state) then
    take_off(entry)
  end
  return state ~= 'scored' and not has_ended(state), state
end

-- Add the entry to the claimed items if it still needs work. Returns whether it does.
local function claim(entry, fields)
  local item = ARGV[9] .. fields.id
  local needed, state = needs_work(entry, item)
  if needed then
    -- An expired item hash is not created again: it would never expire.
    if state then
      redis.call('HSET', item, 'state', 'claimed')
    end
    items[#items + 1] = {entry, fields.id, fields.work}
  end
  return needed
end

local function serves(fields)
  local model = fields.model or ''
  return model == '' or ARGV[13] == '' or string.find(ARGV[13], ',' .. model .. ',', 1, true)
end

local function dead_letter(entry, fields, deliveries)
  local item = ARGV[9] .. fields.id
  if needs_work(entry, item) then
    add(KEYS[2], fields.id, fields.work, fields, 'deliveries', deliveries)
    finish(item, entry, 'state', 'failed', 'failure', ARGV[11])
    dead = dead + 1
  end
end

local function pending()
  local start = ARGV[7] == '' and '-' or '(' .. ARGV[7]
  return redis.pcall('XPENDING', KEYS[1], ARGV[1], start, '+', ARGV[8])
end

-- A Redis that was flushed or lost its data has no group: the first consumer creates it.
local rows = pending()
if rows.err then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
  rows = pending()
end

local after, again = '', 0
if #rows == tonumber(ARGV[8]) then
  after = rows[#rows][1]
end
for _, row in ipairs(rows) do
  local entry, deliveries = row[1], row[4]
  -- A returned entry has no holder, and its place in the order.
  local free = row[2] == '' and redis.call('ZSCORE', order, member_of(entry))
  if row[3] >= tonumber(ARGV[6]) and not free then
    local fields = fields_of(KEYS[1], entry)
    if not fields then
      -- The stream was trimmed from outside.
      redis.call('XACK', KEYS[1], ARGV[1], entry)
    elseif deliveries + 1 >= tonumber(ARGV[10]) then
      dead_letter(entry, fields, deliveries)
    elseif serves(fields) then
      local counted = deliveries + tonumber(ARGV[12])
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry, 'RETRYCOUNT', counted, 'JUSTID')
      if claim(entry, fields) and deliveries > 0 then
        again = again + 1
      end
    end
    if #items >= most or again >= most_again then
      after = entry
      break
    end
  end
end

-- Entries of former versions that one claim puts into the order.
local LOOKED_AT = 100

-- Former versions read new entries in their order, and do not put theirs into this one: it is done here for them.
local function order_new_entries()
  local group
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local found = named(info)
    if found.name == ARGV[1] then
      group = found
    end
  end
  local new = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+', 'COUNT', LOOKED_AT)
  for _, found in ipairs(new) do
    local fields = named(found[2])
    if not fields.ordered then
      enqueue(found[1], redis.call('HGET', ARGV[9] .. fields.id, 'due'))
    end
  end
  if #new > 0 then
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], new[#new][1])
  end
end

-- Entries to claim by the number of deliveries that they have then, and their members of the order.
local taken, members = {}, {}

-- Note a free entry to be claimed, unless another consumer is to take it, or it must run apart from those noted before:
-- redelivered work may have killed its consumer, so it is not mixed with new work. Returns whether it keeps its place.
local function take(member)
  local entry = entry_of(member)
  local fields = fields_of(KEYS[1], entry)
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)[1]
  if not fields or (row and row[2] ~= '') then
    -- The stream was trimmed from outside, or a former version holds the entry.
    redis.call('ZREM', order, member)
    return false
  end
  local deliveries = row and row[4] or 0
  local apart = deliveries > 0
  if apart and (#items > again or again >= most_again) or not apart and again > 0 or not serves(fields) then
    return true
  end
  if claim(entry, fields) then
    local counted = deliveries + tonumber(ARGV[12])
    taken[counted] = taken[counted] or {}
    table.insert(taken[counted], entry)
    members[#members + 1] = member
    again = apart and again + 1 or again
    return true
  end
  return false
end

local function take_free_entries()
  local place, page = 0
  repeat
    page = redis.call('ZRANGE', order, place, place + most - 1)
    for _, member in ipairs(page) do
      if #items < most and take(member) then
        place = place + 1
      end
    end
  until #items >= most or #page < most or place - #members >= tonumber(ARGV[8])
  for counted, entries in pairs(taken) do
    local options = {'RETRYCOUNT', counted, 'FORCE', 'JUSTID'}
    for _, option in ipairs(options) do
      entries[#entries + 1] = option
    end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, unpack(entries))
  end
  if #members > 0 then
    redis.call('ZREM', order, unpack(members))
  end
end

if again == 0 and #items < most then
  order_new_entries()
  take_free_entries()
end
return {expired, {after, items, dead}}
