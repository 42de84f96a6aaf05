-- Gives a level back: writes the hold count, or ends the hold with its last level. Takes a waiter out of the queue.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list: the waiting hold ids in the order of arrival; shared with Redisson
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson drops it
-- KEYS[4] waiters   - zset of watchlock's waiters: hold id -> us since 1970 of its arrival; client -> ms since 1970 until
--                     which it vouches for its hold ids; 'pass' -> ms until which no heartbeat looks at the whole queue
-- ARGV[1] fair wait - ms between the scores of two neighbours in the queue
-- ARGV[2] channel   - each waiter listens to this channel, followed by ':' and its hold id
-- ARGV[3] hold id   - of a holder or a waiter
-- ARGV[4] count     - levels left; 0 ends the hold
-- last ARGV         - SPUBLISH where channels belong to slots; anything else means PUBLISH
--
-- Returns   -2 given back; {-7, n} ended, and the next waiter, which belongs to the same client, received the wake-up; -8
--           ended, but the wake-up was refused; -5 it did not have the lock, also when its key has another type
-- Publishes '0' to the head when the lock is free; when nobody hears that, also to Redisson's waiter behind it
-- Repeat    finds no hold and returns -5; may wake the head again; never changes the TTL
local call, lock, queue, scores, waiters = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fair_wait, channel, time = tonumber(ARGV[1]), ARGV[2], call('TIME')
local publish = ARGV[#ARGV] == 'SPUBLISH' and 'SPUBLISH' or 'PUBLISH'
-- In `waiters`, scores above ARRIVALS are arrivals (us), and scores below it are vouched times (ms).
local now_us, ARRIVALS = time[1] * 1e6 + time[2], '100000000000000'
-- Redisson drops a head of ours after HEAD ms, and ours behind it hardly later: heartbeats of live clients put that off.
local now, HEAD, NEXT, VOUCH, DAY = math.floor(now_us / 1000), math.min(20000, fair_wait), 1, 15000, 86400000

-- Constants in calls are strings, because Redis converts numbers slowly.
local function text(number) return string.format('%.0f', number) end
local function client_of(id) return string.match(id, '^(.*):') or id end
local function score_of(id) return tonumber(call('ZSCORE', scores, id)) end
local function arrival_of(id) return tonumber(call('ZSCORE', waiters, id)) end
local function wake(id) return redis.pcall(publish, channel .. ':' .. id, '0') end
local function take_out(id) return call('LREM', queue, '1', id), call('ZREM', scores, id), call('ZREM', waiters, id) end

-- Returns until when (ms) the client of a hold id vouches for it.
local function vouched_until(id)
  local last = arrival_of(client_of(id)) or 0
  if last <= now + VOUCH or last >= tonumber(ARRIVALS) then return last end
  -- The server's time went back. Without memory the client is waited for a little longer.
  redis.pcall('ZADD', waiters, 'XX', text(now + VOUCH), client_of(id))
  return now + VOUCH
end

-- Sets the TTLs so that no key outlives its waiters. Two of the keys also list Redisson's, which may wait for another day.
-- Once no waiter of ours is left, the keys are as Redisson has them: an empty queue has no keys, any other no TTL.
local function keep()
  if call('ZCOUNT', waiters, ARRIVALS, '+inf') == 0 then
    call('DEL', waiters, call('EXISTS', queue) == 0 and scores or waiters)
    return call('PERSIST', queue), call('PERSIST', scores)
  end
  local left = math.max(0, (tonumber(call('ZREVRANGE', scores, '0', '0', 'WITHSCORES')[2]) or now) - now)
  call('PEXPIRE', queue, text(left + DAY))
  call('PEXPIRE', scores, text(left + DAY))
  call('PEXPIRE', waiters, text(left + VOUCH))
end

-- Looks at the whole queue: puts back those of live clients that Redisson dropped, and takes out `leaver`, those of dead
-- clients and, when the lock is `free`, heads of Redisson whose score has passed. Each of ours has HEAD, NEXT while only
-- ours are ahead, or `fair_wait` after the one ahead; with less than two thirds of that left, or with more than all, as
-- when the server's time went back, it gets it again. Returns the head, and until when (ms) it is waited for.
local function tend(leaver, free)
  -- A head of ours leaves those behind it as they are when the next one is ours and has time enough.
  local second = leaver and not free and call('LINDEX', queue, '0') == leaver and call('LINDEX', queue, '1')
  local its_ms = second and arrival_of(second) and (score_of(second) or now) - now or 0
  if its_ms >= HEAD * 2 / 3 and its_ms <= HEAD + NEXT then
    take_out(leaver)
    keep()
    return second
  end
  call('ZREMRANGEBYSCORE', waiters, '-inf', text(now)) -- before other writes, because it needs no memory
  local ids, listed, back = call('LRANGE', queue, '0', '-1'), {}, 1
  for _, id in ipairs(ids) do listed[id] = true end
  for _, id in ipairs(call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf')) do
    if not listed[id] then
      -- Redisson drops only heads, so this one came before all that are listed.
      call(unpack(ids[back] and { 'LINSERT', queue, 'BEFORE', ids[back], id } or { 'RPUSH', queue, id }))
      table.insert(ids, back, id)
      back = back + 1
    end
  end
  local first, last, later, ahead, whole = false, 0, 0, now, HEAD
  for _, id in ipairs(ids) do
    local was, ours, from = score_of(id), arrival_of(id), math.max(now, ahead)
    local score = was and was + later or from
    -- A waiter of ours lives while its client vouches for it, one of Redisson until its score.
    local lives, left = ours and vouched_until(id) or score, score - from
    if id == leaver or lives <= now and (ours or free and not first) then
      take_out(id)
      later = later - math.max(0, math.min(fair_wait, left))
    else
      if ours and (left < whole * 2 / 3 or left > whole) then score, later = from + whole, later + whole - left end
      if score ~= was and (ours or was) then call('ZADD', scores, text(score), id) end
      if not first then first, last = id, lives end
      ahead, whole = score, whole ~= fair_wait and ours and NEXT or fair_wait
    end
  end
  keep()
  return first, last
end

-- Returns whose turn it is on a free lock, and until when (ms) that waiter is waited for.
local function head()
  local id = call('LINDEX', queue, '0')
  if not id and call('EXISTS', scores, waiters) == 0 then return false end
  -- When the first arrival of ours is listed, Redisson has dropped nobody of ours.
  local oldest = call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1]
  local last = id and (id == oldest and vouched_until(id) or not arrival_of(id) and score_of(id)) or 0
  if last > now and (not oldest or id == oldest or call('LPOS', queue, oldest)) then return id, last end
  return tend(nil, true)
end

local id, count = ARGV[3], ARGV[4]
if count ~= '0' then
  local held = redis.pcall('HEXISTS', lock, id)
  if type(held) == 'table' then return string.find(held.err, 'WRONGTYPE') and -5 or held end
  if held == 0 then return -5 end
  -- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
  redis.pcall('HSET', lock, id, count)
  return -2
end

local ended = redis.pcall('HDEL', lock, id)
local free, first = call('EXISTS', lock) == 0, nil
-- A holder has no place any more, unless Redis had no memory when it left the queue.
if arrival_of(id) or ended ~= 1 and call('EXISTS', queue, scores, waiters) > 0 then
  first = tend(id, free)
elseif free then
  first = head()
end
if type(ended) == 'table' then return string.find(ended.err, 'WRONGTYPE') and -5 or ended end

local heard = free and first and wake(first) or 0
if heard == 0 and free and first and arrival_of(first) then
  -- Nobody listens for this head, so it may be dead, as may others of ours behind it. The first waiter of Redisson would
  -- sleep on; awake, it drops them when their scores have passed.
  for _, behind in ipairs(call('LRANGE', queue, '1', '-1')) do
    if not arrival_of(behind) then
      wake(behind)
      break
    end
  end
end
if ended == 0 then return -5 end
if type(heard) == 'table' then return -8 end
return heard > 0 and client_of(first) == client_of(id) and { -7, heard } or -2
