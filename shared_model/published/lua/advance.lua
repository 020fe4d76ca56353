-- Point a release at an epoch, forward only in (ds, token) unless insisted, and rename its staged keys.
-- KEYS[1] pointer hash {epoch, ds, token, previous (names, newest first), barrier_ds, barrier_token}
-- KEYS[2..5] staged keys of the epoch   KEYS[6..9] their final names
-- ARGV[1] epoch  ARGV[2] ds  ARGV[3] token  ARGV[4] '1' if an operator insists on this epoch, else '0'
-- ARGV[5] epochs kept for a rollback  ARGV[6] 'look': return the outcome of 'move' without moving
-- Returns {outcome, epochs that are no longer kept ...}; outcome is
--   'moved'     the pointer was moved to this epoch
--   'standing'  this epoch was live already
--   'older'     a later epoch is live
--   'barred'    an operator rolled back from this epoch or a later one
local ds, token = ARGV[2], tonumber(ARGV[3])
local held = redis.call('HMGET', KEYS[1], 'ds', 'token', 'epoch', 'previous', 'barrier_ds', 'barrier_token')
for i = 1, 6 do
  held[i] = held[i] or ''
end

local function reached(other_ds, other_token)
  return other_ds > ds or (other_ds == ds and tonumber(other_token) >= token)
end

local current = held[3] ~= '' and held[3] == ARGV[1]
local back = held[1] ~= '' and reached(held[1], held[2])
if not current and ARGV[4] ~= '1' then
  if held[5] ~= '' and reached(held[5], held[6]) then
    return {'barred'}
  elseif back then
    return {'older'}
  end
end
if ARGV[6] == 'look' then
  return {current and 'standing' or 'moved'}
end

for i = 2, 5 do
  redis.call('UNLINK', KEYS[i + 4])
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('RENAME', KEYS[i], KEYS[i + 4])
  end
end
if current then
  return {'standing'}
end

local kept, dropped = {}, {}
for name in string.gmatch(held[3] .. ' ' .. held[4], '%S+') do
  if name ~= ARGV[1] then
    table.insert(#kept < tonumber(ARGV[5]) and kept or dropped, name)
  end
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'ds', ds, 'token', ARGV[3], 'previous', table.concat(kept, ' '))
-- A retry must not publish the epoch that the operator left.
if back and not (held[5] > held[1] or (held[5] == held[1] and tonumber(held[6]) >= tonumber(held[2]))) then
  redis.call('HSET', KEYS[1], 'barrier_ds', held[1], 'barrier_token', held[2])
end
return {'moved', unpack(dropped)}
