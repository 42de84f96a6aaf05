-- Starts a hold: takes the lock when it is free and it is the turn of the caller's client.
-- Follows queue.lua, keys.lua, places.lua, turn.lua, enter.lua, grant.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua and turn.lua
-- ARGV[3] hold id   - fresh for every waiter
-- ARGV[4] lease     - ms, 1 to 2^53
-- ARGV[5] waits     - 1: it gets a place in the queue, 0: it gets none and overtakes nobody
--
-- Returns   {code, number}: -2 acquired, and 1 when the next in the queue is of this client, else 0;
--           -3 the key is no lock; 1 queued or 0 busy, and the ms after which to look again (-1: unknown)
-- Publishes '0' to the head when the lock is free and it is somebody else's turn
-- Repeat    finds its own field, or its place, and keeps it; the TTL may grow, never shrink
local id, lease_ms, waits = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
if not (lease_ms and lease_ms >= 1 and lease_ms <= 2 ^ 53) then return redis.error_reply('ERR lease out of range') end
local ttl_ms = call('PTTL', lock)
local by = ttl_ms ~= -2 and holder()
if ttl_ms ~= -2 and not by then return { -3, 0 } end
local next_id
if by ~= id then
  -- Who may get the lock now needs no place. Who has one is alive: it is vouched for before anybody is dropped.
  local alive = not by and vouched_until(id)
  local refused = waits and (by or alive < now + VOUCH / 2 and arrival_of(id)) and enqueue({ id })
  if refused or by then return refused or { waits and 1 or 0, ttl_ms } end
  local first, last = head(id, alive)
  refused = first and first ~= id and waits and enqueue({ id })
  if refused then return refused end
  if first and not may_go_first(id, first, waits) then
    wake(first)
    return { waits and 1 or 0, last - now }
  end
  if first and waits then next_id = leave_as(id, first) else next_id = first end
  call('HSET', lock, id, '1')
end
-- Written also when it changes nothing: replicas can only acknowledge a write. A refused one takes a new field back.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and text(ttl_ms) or ARGV[4])
if type(expires) == 'table' then
  if by ~= id then call('HDEL', lock, id) end
  return expires
end
return { -2, is_next(client_of(id), next_id) }
