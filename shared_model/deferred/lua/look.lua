-- How far items are.
-- KEYS[2..] item hashes
-- Answers the state of each, "" where there is none.
local states = {}
for index = 2, #KEYS do
  states[index - 1] = state_of(KEYS[index]) or ''
end
return {expired, states}
