-- Confirms that a client is alive, so that its waiters keep their places and Redisson does not drop them.
-- Follows queue.lua, head.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] client    - uuid of the caller
-- ARGV[4] and on    - its hold ids that should have a place
--
-- Returns   {-2, n} n of these hold ids have a place; {-9, n} the same, and the head belongs to this client; -5 the
--           client has none
-- Publishes '0' to the head when the lock is free
-- Repeat    vouches a little longer; does nothing for a client whose waiters were dropped
local client, PASS = ARGV[3], 5000
if not arrival_of(client) then return -5 end

-- Begins with a write that needs no memory: after it, Redis does not refuse the others for want of memory.
keep()
call('ZADD', waiters, text(now + VOUCH), client)

-- One heartbeat in 5 s looks at the whole queue, for all clients. So does one that finds its own waiters short of time,
-- or the first waiter of ours without a score: Redisson has dropped it, as the head.
local count, next_pass = 0, arrival_of('pass') or 0
local due = next_pass <= now or next_pass > now + PASS
local oldest = call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1]
due = due or oldest and not score_of(oldest)
for i = 4, #ARGV do
  if arrival_of(ARGV[i]) then
    count = count + 1
    due = due or (score_of(ARGV[i]) or 0) < now + HEAD * 2 / 3
  end
end

if due then
  call('ZADD', waiters, text(now + PASS), 'pass')
  call('ZREMRANGEBYSCORE', waiters, '-inf', text(now))
  restore()

  -- Redisson drops waiters whose score has passed. A waiter of ours behind one of Redisson's has `fair_wait` after the one ahead
  -- of it; the others, `HEAD` and `NEXT`. With less than two thirds of that left, or with more than all of it, as when the
  -- server's time went back, it gets it again. The scores behind it move by as much. Waiters of dead clients go.
  local later, ahead, whole = 0, now, HEAD
  for _, id in ipairs(call('LRANGE', queue, '0', '-1')) do
    local score = (score_of(id) or now) + later
    local left, ours = score - math.max(now, ahead), arrival_of(id)
    if ours and vouched_until(id) <= now then
      later = later - take_out(id, score, ahead)
    else
      if ours and (left < whole * 2 / 3 or left > whole) then
        later = later + whole - left
        score = score + whole - left
      end
      whole = whole ~= fair_wait and ours and NEXT or fair_wait
      if later ~= 0 then call('ZADD', scores, 'XX', text(score), id) end
      ahead = score
    end
  end
  keep()
end

local first = call('EXISTS', lock) == 0 and head()
if first then wake(first) end
return { is_next(client) and -9 or -2, count }
