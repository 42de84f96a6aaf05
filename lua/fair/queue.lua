-- Part of the fair lock's scripts: who waits, and what is known of them.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list of the hold ids that wait, in the order of arrival; Redisson's, too
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson gives it up
-- KEYS[4] waiters   - zset, for watchlock's waiters: hold id -> us since 1970 of its arrival;
--                     client -> ms since 1970 up to which it vouches for its hold ids
-- ARGV[1] fair wait - ms: how much later than the one ahead of it a waiter is given up
-- ARGV[2] channel   - a waiter listens to this, ':' and its hold id
--
-- Returns   nothing: the script behind it does
-- Publishes nothing
-- Repeat    changes nothing
local call, lock, queue, scores, waiters = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fair_wait, channel, time = tonumber(ARGV[1]), ARGV[2], call('TIME')
local now_us = time[1] * 1e6 + time[2]
local now = math.floor(now_us / 1000)
-- In `waiters` arrivals are above this and vouches below.
local ARRIVALS = '100000000000000'

-- Constants in calls are texts, since Redis is slow to turn a number into one.
local function text(number) return string.format('%.0f', number) end
local function client_of(id) return string.match(id, '^(.*):') or id end
local function score_of(id) return tonumber(call('ZSCORE', scores, id)) end
local function arrival_of(id) return tonumber(call('ZSCORE', waiters, id)) end
local function vouched_until(id) return arrival_of(client_of(id)) or 0 end

-- Who holds the lock; false when the key is no lock.
local function holder()
  if call('HLEN', lock) ~= 1 then return false end
  local field = call('HGETALL', lock)
  return field[1] ~= 'mode' and string.match(field[2], '^%d+$') and field[1]
end
-- Moves the scores of all from this place in the queue on; the first of them, if there is one.
local function shift(place, ms)
  local ids, by = call('LRANGE', queue, place, '-1'), text(ms)
  for _, id in ipairs(ms ~= 0 and ids or {}) do call('ZADD', scores, 'XX', 'INCR', by, id) end
  return ids[1]
end
