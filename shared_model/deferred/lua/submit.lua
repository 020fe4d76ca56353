-- Accept work, each item once.
-- KEYS[2..] item hashes
-- ARGV[3] bound on unfinished work   ARGV[4] seconds an unfinished item is kept
-- ARGV[5..] for each item: request id, work, milliseconds within which it must have a result (0: no deadline), hash of its
-- content, ticket that its readers must show ("": none), model ("": the default one)
-- Returns for each {1, "accepted", ticket}; {0, state, ticket} if the same was accepted before, with the ticket of then;
-- {-1, "", ""} if the stream is full; {-2, "", ""} if its id was accepted before with other content.
local answers = {}
local waiting = redis.call('XLEN', KEYS[1])
for index = 2, #KEYS do
  local item, first = KEYS[index], 6 * index - 7
  local state = state_of(item)
  if state then
    local kept = redis.call('HMGET', item, 'content', 'ticket')
    if kept[1] and kept[1] ~= ARGV[first + 3] then
      answers[index - 1] = {-2, '', ''}
    else
      answers[index - 1] = {0, state, kept[2] or ''}
    end
  elseif waiting >= tonumber(ARGV[3]) then
    answers[index - 1] = {-1, '', ''}
  else
    local within = tonumber(ARGV[first + 2])
    local guards = {content = ARGV[first + 3], ticket = ARGV[first + 4], model = ARGV[first + 5]}
    local entry = add(KEYS[1], ARGV[first], ARGV[first + 1], guards, 'ordered', 1)
    local due = within > 0 and string.format('%.0f', now() + within)
    enqueue(entry, due)
    redis.call('HSET', item, 'state', 'accepted', 'entry', entry)
    guard(item, guards)
    if due then
      redis.call('HSET', item, 'due', due)
    end
    redis.call('EXPIRE', item, ARGV[4])
    waiting = waiting + 1
    answers[index - 1] = {1, 'accepted', guards.ticket}
  end
end
return {expired, answers}
