-- Confirms that a client is alive, so that its waiters keep their places and Redisson does not drop them.
-- Follows queue.lua, head.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] client    - uuid of the caller
-- ARGV[4] and on    - its hold ids that should have a place
--
-- Returns   {count, next}: how many of these hold ids have one; next is 1 when the head is one of them, else 0
-- Publishes '0' to the head when the lock is free
-- Repeat    vouches a little longer; does nothing for a client whose waiters were dropped
local client, PASS = ARGV[3], 5000
if not arrival_of(client) then return { 0, 0 } end

-- Begins with a write that needs no memory: after it, Redis does not refuse the others for want of memory.
keep()
call('ZADD', waiters, text(now + VOUCH), client)

-- One heartbeat in 5 s looks at the whole queue, for all clients. So does one that finds its own waiters short of time,
-- or the first waiter of ours without a score: Redisson has dropped it, as the head.
local count, next_pass = 0, arrival_of('pass') or 0
local due = next_pass <= now or next_pass > now + PASS
local oldest = call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1]
due = due or oldest and not score_of(oldest)
local first = call('LINDEX', queue, '0')
for i = 4, #ARGV do
  local id = ARGV[i]
  if arrival_of(id) then
    count = count + 1
    due = due or (score_of(id) or 0) < now + (id == first and HEAD or fair_wait) * 2 / 3
  end
end

if due then
  call('ZADD', waiters, text(now + PASS), 'pass')
  call('ZREMRANGEBYSCORE', waiters, '-inf', text(now))
  restore()

  -- Redisson drops waiters whose score has passed. A waiter of ours with less than two thirds of the fair wait left after
  -- the one ahead of it, or with more than all of it, as when the server's time went back, gets it again; a head, its own
  -- time. The scores behind it move by as much. Waiters of dead clients go.
  local later, ahead, at_head = 0, now, true
  for _, id in ipairs(call('LRANGE', queue, '0', '-1')) do
    local score = (score_of(id) or now) + later
    local left, ours = score - math.max(now, ahead), arrival_of(id)
    if ours and vouched_until(id) <= now then
      later = later - take_out(id, score)
    else
      local whole = at_head and HEAD or fair_wait
      if ours and (left < whole * 2 / 3 or left > whole) then
        later = later + whole - left
        score = score + whole - left
      end
      at_head = false
      if later ~= 0 then call('ZADD', scores, 'XX', text(score), id) end
      ahead = score
    end
  end
  keep()
end

first = call('EXISTS', lock) == 0 and head()
if first then wake(first) end
return { count, is_next(client) }
