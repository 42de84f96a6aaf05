-- Part of the fair lock's scripts: how long the keys live, and what nobody needs any more.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script behind it does
-- Publishes nothing
-- Repeat    changes nothing
local VOUCH, DAY = 15000, 86400000

-- No key outlives those who wait. Redisson's waiters are in two of them, so these stay a day longer.
local function keep()
  local last = tonumber(call('ZREVRANGE', scores, '0', '0', 'WITHSCORES')[2]) or now
  local left = math.max(0, last - now)
  call('PEXPIRE', queue, text(left + DAY))
  call('PEXPIRE', scores, text(left + DAY))
  call('PEXPIRE', waiters, text(left + VOUCH))
end
-- When none of ours waits any more: Redisson's queue has no TTL, and an empty one no keys.
local function tidy()
  if call('ZCOUNT', waiters, ARRIVALS, '+inf') > 0 then return end
  call('DEL', waiters)
  if call('EXISTS', queue) == 0 then
    call('DEL', scores)
  else
    call('PERSIST', queue)
    call('PERSIST', scores)
  end
end
-- Takes one out. By how much those behind it are given up sooner.
local function take_out(id, score)
  call('LREM', queue, '1', id)
  call('ZREM', scores, id)
  call('ZREM', waiters, id)
  return math.max(0, math.min(fair_wait, (score or now) - now))
end
