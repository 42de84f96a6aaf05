-- Starts a hold: takes the lock when it is free and it is the turn of the caller's client.
-- Follows queue.lua, head.lua, enter.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] hold id   - fresh for every waiter
-- ARGV[4] lease     - ms, 1 to 2^53
-- ARGV[5] waits     - 1: takes a place in the queue when it cannot have the lock; 0: takes none and overtakes nobody
--
-- Returns   -2 acquired; -9 acquired, and the next waiter belongs to the same client; -3 the key is not a plain or fair
--           lock; else busy: try again after so many ms (-1: unknown)
-- Publishes '0' to the head when the lock is free and it is the turn of another waiter
-- Repeat    finds its own field or its own place and keeps it; the TTL never shrinks
local id, lease_ms, waits = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'

-- Returns whether `id` may have the lock while `first` is the head. A client tries for its first waiter only, so any
-- place of the client will do. A caller without a place passes only places of its own client, which are being given up.
local function may_go_first(first)
  if waits then return client_of(first) == client_of(id) end
  for _, other in ipairs(call('LRANGE', queue, '0', '-1')) do
    if client_of(other) ~= client_of(id) then return false end
  end
  return true
end

-- Takes `id` out of the queue, by the place of the head, and returns the next head or false. A client uses its places
-- in the order of its waiters, so when another of them is the head, the two swap places first.
local function leave_as(first)
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

if not (lease_ms and lease_ms >= 1 and lease_ms <= 2 ^ 53) then
  return redis.error_reply('ERR lease out of range')
end
local ttl_ms = call('PTTL', lock)
local by = ttl_ms ~= -2 and holder()
if ttl_ms ~= -2 and not by then return -3 end

local next_id
if by ~= id then
  -- A waiter that may get the lock now needs no place. One that has a place is alive, so it is vouched for before
  -- head() drops the dead.
  local alive = not by and vouched_until(id)
  local refused = waits and (by or alive < now + VOUCH / 2 and arrival_of(id)) and enqueue({ id })
  if refused then return refused end
  if by then return ttl_ms end

  local first, last = head(id, alive)
  refused = first and first ~= id and waits and enqueue({ id })
  if refused then return refused end
  if first and not may_go_first(first) then
    wake(first)
    return last - now
  end
  if first and waits then next_id = leave_as(first) else next_id = first end
  call('HSET', lock, id, '1')
end

-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and text(ttl_ms) or ARGV[4])
if type(expires) == 'table' then
  if by ~= id then call('HDEL', lock, id) end -- no field without a TTL
  return expires
end
return is_next(client_of(id), next_id) and -9 or -2
