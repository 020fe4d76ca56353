-- How much work waits that no consumer is at. Nothing is changed.
-- ARGV[3] lease, milliseconds
-- Returns {entries that no lease covers; the earliest deadline among those that are free to claim, in milliseconds, ""
-- where none has one; when the oldest entry was accepted, in milliseconds, "" without any; milliseconds now}
local PAGE = 500

local held, start = 0, '-'
repeat
  -- Without a group, nothing was ever claimed.
  local rows = redis.pcall('XPENDING', KEYS[1], ARGV[1], start, '+', PAGE)
  for _, row in ipairs(rows.err and {} or rows) do
    if row[2] ~= '' and row[3] < tonumber(ARGV[3]) then
      held = held + 1
    end
    start = '(' .. row[1]
  end
until #rows < PAGE
local due = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')[2]
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
-- An entry is named after the millisecond in which it was added.
local accepted = oldest and string.match(oldest[1], '^%d+') or ''
return {expired, {redis.call('XLEN', KEYS[1]) - held, due and due ~= 'inf' and due or '', accepted, now()}}
