-- Prepended to every script of this folder: how an item ends, and when it expires.
-- KEYS[1] stream   ARGV[1] group   ARGV[2] seconds an ended item is kept
-- Every script returns {number of items that it found expired, its own reply}.
local expired = 0
-- Sorted set of the entries that no consumer holds, by deadline: see keys.deferred_order.
local order = string.gsub(KEYS[1], 'stream$', 'order')

-- Milliseconds by the clock of this server; clocks of other hosts are never used.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function has_ended(state)
  return state == 'published' or state == 'failed' or state == 'expired'
end

-- The member of the order for an entry: padded, so that members of one deadline are in the order of their age.
local function member_of(entry)
  local time, number = string.match(entry, '(%d+)-(%d+)')
  return time .. '-' .. string.rep('0', 20 - #number) .. number
end

local function entry_of(member)
  local time, number = string.match(member, '(%d+)-0*(%d+)')
  return time .. '-' .. number
end

-- Make an entry free to claim. `due`: its deadline, if it has one.
local function enqueue(entry, due)
  redis.call('ZADD', order, 'NX', due or '+inf', member_of(entry))
end

local function take_off(entry)
  redis.call('XACK', KEYS[1], ARGV[1], entry)
  redis.call('XDEL', KEYS[1], entry)
  redis.call('ZREM', order, member_of(entry))
end

-- Set an item's last fields and take its entry off the stream in one step.
local function finish(item, entry, ...)
  redis.call('HSET', item, ...)
  redis.call('EXPIRE', item, ARGV[2])
  take_off(entry)
end

-- The state of an item, false if it does not exist. An item past its deadline without a result expires here, once.
local function state_of(item)
  local fields = redis.call('HMGET', item, 'state', 'due', 'entry')
  local state, due, entry = fields[1], fields[2], fields[3]
  if due and (state == 'accepted' or state == 'claimed') and now() >= tonumber(due) then
    finish(item, entry, 'state', 'expired')
    expired = expired + 1
    return 'expired'
  end
  return state
end

-- Names and values in turn, by name.
local function named(flat)
  local fields = {}
  for index = 1, #flat, 2 do
    fields[flat[index]] = flat[index + 1]
  end
  return fields
end

-- The fields of an entry by name, false if it is gone.
local function fields_of(stream, entry)
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  return found and named(found[2])
end

-- Add an entry. `guards`: anything with the fields `content`, `ticket` and `model`, which earlier versions did not store;
-- more fields and their values may follow. Entries carry them because an item may expire before its entry.
local function add(stream, id, work, guards, ...)
  return redis.call(
    'XADD', stream, '*', 'id', id, 'work', work,
    'content', guards.content or '', 'ticket', guards.ticket or '', 'model', guards.model or '', ...
  )
end

-- Set an item's fields `content` and `ticket`, as far as it has them.
local function guard(item, guards)
  for _, name in ipairs({'content', 'ticket'}) do
    if guards[name] and guards[name] ~= '' then
      redis.call('HSET', item, name, guards[name])
    end
  end
end

-- The XPENDING row of an entry that this consumer holds, else nil.
local function held(entry, consumer)
  local rows = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, consumer)
  return rows[1]
end

