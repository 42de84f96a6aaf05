-- Confirms that a client is alive, so that its waiters keep their places and Redisson does not drop them.
-- Follows queue.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] client    - uuid of the caller
--
-- Returns   {count, next}: how many hold ids of the client wait; next is 1 when the head is one of them, else 0
-- Publishes '0' to the head when the lock is free
-- Repeat    vouches a little longer; does nothing for a client whose waiters were dropped
local client = ARGV[3]
if not arrival_of(client) then return { 0, 0 } end

-- Begins with a write that needs no memory: after it, Redis does not refuse the others for want of memory.
keep()
call('ZADD', waiters, text(now + VOUCH), client)
call('ZREMRANGEBYSCORE', waiters, '-inf', text(now))
restore()

-- Redisson drops waiters whose score has passed. A waiter of this client with less than two thirds of the fair wait
-- left after the one ahead of it gets all of it again, and the scores behind it move by as much.
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
