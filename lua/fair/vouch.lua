-- Says that a client is alive, and with it its waiters: they keep their places, and are not given up.
-- Follows queue.lua, keys.lua, places.lua, turn.lua, enter.lua, grant.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua and turn.lua
-- ARGV[3] client    - uuid of the caller
--
-- Returns   {count, number}: how many hold ids of the client wait; 1 when the head is one of them, else 0
-- Publishes '0' to the head when the lock is free
-- Repeat    vouches a little longer; for a client whose waiters were dropped it does nothing
local client = ARGV[3]
if not arrival_of(client) then return { 0, 0 } end
-- First what needs no memory: then the rest is not refused when there is none.
keep()
call('ZADD', waiters, text(now + VOUCH), client)
call('ZREMRANGEBYSCORE', waiters, '-inf', text(now))
restore()
-- Redisson drops whoever's score is over. Who has less than two thirds of its time left, behind the one ahead of it,
-- is given all of it, and those behind it as much more.
local later, ahead = 0, now
for _, id in ipairs(call('LRANGE', queue, '0', '-1')) do
  local score = (score_of(id) or now) + later
  local left = score - math.max(now, ahead)
  if client_of(id) == client and left < fair_wait * 2 / 3 then
    later = later + fair_wait - left
    score = score + fair_wait - left
  end
  if later > 0 then call('ZADD', scores, 'XX', text(score), id) end
  ahead = score
end
keep()
local first = call('EXISTS', lock) == 0 and head()
if first then wake(first) end
local count = 0
for _, id in ipairs(call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf')) do
  if client_of(id) == client then count = count + 1 end
end
return { count, is_next(client) }
