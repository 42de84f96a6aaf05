-- Part of every script of the fair lock: the queue, how long its keys live, and whose turn it is.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list: the waiting hold ids in the order of arrival; shared with Redisson
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson drops it
-- KEYS[4] waiters   - zset of watchlock's waiters: hold id -> us since 1970 of its arrival;
--                     client -> ms since 1970 until which it vouches for its hold ids;
--                     'pass' -> ms since 1970 until which no heartbeat looks at the whole queue
-- ARGV[1] fair wait - ms between the scores of two neighbours in the queue
-- ARGV[2] channel   - each waiter listens to this channel, followed by ':' and its hold id
-- last ARGV         - SPUBLISH where channels belong to slots; anything else means PUBLISH
--
-- Returns   nothing: the script that follows replies
-- Publishes '0' to the waiter at the head, in wake()
-- Repeat    the head stays the same; it may be woken again
local call, lock, queue, scores, waiters = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fair_wait, channel, time = tonumber(ARGV[1]), ARGV[2], call('TIME')
local publish = ARGV[#ARGV] == 'SPUBLISH' and 'SPUBLISH' or 'PUBLISH'
local now_us = time[1] * 1e6 + time[2]
local now = math.floor(now_us / 1000)
local VOUCH, DAY = 15000, 86400000
-- A head of ours has only this long until Redisson drops it, and those of ours behind it hardly more: heartbeats raise them,
-- and dead ones are in nobody's way for long.
local HEAD, NEXT = math.min(20000, fair_wait), 1
-- In `waiters`, scores above this are arrivals (us), and scores below it are vouched times (ms).
local ARRIVALS = '100000000000000'

-- Constants in calls are strings, because Redis converts numbers slowly.
local function text(number) return string.format('%.0f', number) end
local function client_of(id) return string.match(id, '^(.*):') or id end
local function score_of(id) return tonumber(call('ZSCORE', scores, id)) end
local function arrival_of(id) return tonumber(call('ZSCORE', waiters, id)) end
local function wake(id) return redis.pcall(publish, channel .. ':' .. id, '0') end

-- Returns until when (ms) the client of a hold id vouches for it.
local function vouched_until(id)
  local client = client_of(id)
  local last = arrival_of(client) or 0
  if last <= now + VOUCH or last >= tonumber(ARRIVALS) then return last end
  -- The server's time went back. Without memory the client is waited for a little longer.
  redis.pcall('ZADD', waiters, 'XX', text(now + VOUCH), client)
  return now + VOUCH
end

-- Returns the hold id that has the lock, or false when the key is not a plain or fair lock.
local function holder()
  if call('HLEN', lock) ~= 1 then return false end
  local field = call('HGETALL', lock)
  return field[1] ~= 'mode' and string.match(field[2], '^%d+$') and field[1]
end

-- Adds `ms` to the scores from index `place` of the queue on, or what gives a head of ours its time. Returns the hold id at
-- that index, if any.
local function shift(place, ms)
  local ids = call('LRANGE', queue, place, '-1')
  local score = place == '0' and ids[1] and arrival_of(ids[1]) and score_of(ids[1])
  if score then ms = now + HEAD - score end
  for _, id in ipairs(ms ~= 0 and ids or {}) do call('ZADD', scores, 'XX', 'INCR', text(ms), id) end
  return ids[1]
end

-- Sets the TTLs so that no key outlives its waiters. Two of the keys also list Redisson's waiters, which may wait
-- longer, so these two stay for another day.
local function keep()
  local last = tonumber(call('ZREVRANGE', scores, '0', '0', 'WITHSCORES')[2]) or now
  local left = math.max(0, last - now)
  call('PEXPIRE', queue, text(left + DAY))
  call('PEXPIRE', scores, text(left + DAY))
  call('PEXPIRE', waiters, text(left + VOUCH))
end

-- Restores the keys as Redisson has them once no waiter of ours is left: an empty queue has no keys, any other no TTL.
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

-- Removes a waiter with this score, behind one with the score `ahead`. Returns by how many ms the scores behind it have to
-- fall.
local function take_out(id, score, ahead)
  call('LREM', queue, '1', id)
  call('ZREM', scores, id)
  call('ZREM', waiters, id)
  return math.max(0, math.min(fair_wait, (score or now) - math.max(now, ahead or now)))
end

-- Returns whether the head is a waiter of this client. A caller that knows the head passes it as `id`, or false
-- when the queue is empty. Otherwise it is looked up, and an error there does not fail the script.
local function is_next(client, id)
  if id == nil then id = redis.pcall('LINDEX', queue, '0') end
  return type(id) == 'string' and client_of(id) == client
end
