-- Part of the fair lock's scripts: the place that is given up for the lock.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script behind it does
-- Publishes nothing
-- Repeat    who left the queue has the lock

-- Whether the head is of this client. `id` is the head, or false when there is none; without it Redis is asked, and an
-- error there is no failure of the script.
local function is_next(client, id)
  if id == nil then id = redis.pcall('LINDEX', queue, '0') end
  return type(id) == 'string' and client_of(id) == client and 1 or 0
end
-- Whether one overtakes nobody, though `first` waits. A client has one waiter at a time try, and it is its first; one
-- that has no place goes only past places of its own client, which are being given up.
local function may_go_first(id, first, waits)
  if waits then return client_of(first) == client_of(id) end
  for _, other in ipairs(call('LRANGE', queue, '0', '-1')) do
    if client_of(other) ~= client_of(id) then return false end
  end
  return true
end
-- The head, `id`, leaves the queue with the lock; returns the next head, or false. The places of a client are used in
-- the order of its waiters, so when the head is another of them, the two change places first.
local function leave_as(id, first)
  if first ~= id then
    local place, score, arrival = call('LPOS', queue, id), score_of(id), arrival_of(id)
    call('ZADD', scores, text(score_of(first) or now), id, text(score), first)
    call('ZADD', waiters, text(arrival_of(first) or now_us), id, text(arrival), first)
    call('LSET', queue, place, first)
    call('LSET', queue, '0', id)
  end
  local next_id = shift('0', -take_out(id, score_of(id))) or false
  tidy()
  return next_id
end
