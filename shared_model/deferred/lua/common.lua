-- What stands before every script of this folder: how an item ends, and when its time is over.
-- KEYS[1] stream   ARGV[1] group   ARGV[2] seconds an ended item is kept
-- Every script returns {items that expired while it looked, its own answer}.
local expired = 0

-- Milliseconds by the clock of this server: no host's clock decides anything.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function has_ended(state)
  return state == 'published' or state == 'failed' or state == 'expired'
end

local function take_off(entry)
  redis.call('XACK', KEYS[1], ARGV[1], entry)
  redis.call('XDEL', KEYS[1], entry)
end

-- Set an item's last fields and take its entry off the stream, in one step: there is no moment with one alone.
local function finish(item, entry, ...)
  redis.call('HSET', item, ...)
  redis.call('EXPIRE', item, ARGV[2])
  take_off(entry)
end

-- The state of an item, false where there is none. One whose time is over without a result expires here and now: once,
-- whoever looks first.
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

-- The row of XPENDING of an entry that a consumer holds, nil where it does not.
local function held(entry, consumer)
  local rows = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, consumer)
  return rows[1]
end

