-- The states of items.
-- KEYS[2..] item hashes
-- Returns the state of each, "" for an item that does not exist.
local states = {}
for index = 2, #KEYS do
  states[index - 1] = state_of(KEYS[index]) or ''
end
return {expired, states}
