-- Confirms that a client is alive, so that its waiters keep their places and Redisson does not drop them.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list: the waiting hold ids in the order of arrival; shared with Redisson
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson drops it
-- KEYS[4] waiters   - zset of watchlock's waiters: hold id -> us since 1970 of its arrival; client -> ms since 1970 until
--                     which it vouches for its hold ids; 'pass' -> ms until which no heartbeat looks at the whole queue
-- ARGV[1] fair wait - ms between the scores of two neighbours in the queue
-- ARGV[2] channel   - each waiter listens to this channel, followed by ':' and its hold id
-- ARGV[3] client    - uuid of the caller
-- ARGV[4] and on    - its hold ids that should have a place
-- last ARGV         - SPUBLISH where channels belong to slots; anything else means PUBLISH
--
-- Returns   {-2, n} n of these hold ids have a place; {-9, n} the same, and the head belongs to this client; {-15, n} the
--           same, and so many clients vouch that their heartbeats are enough to wake the head; -5 the client has none
-- Publishes '0' to the head when the lock is free
-- Repeat    vouches a little longer; does nothing for a client whose waiters were dropped
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

-- Whether so many clients vouch that their heartbeats wake the head every moment. 'pass' is among them, and so are those
-- whose waiters have left.
local function many_wait()
  local clients, places = call('ZCOUNT', waiters, text(now), '(' .. ARRIVALS), call('ZCOUNT', waiters, ARRIVALS, '+inf')
  return clients - 1 > 32 and places > 32
end

local client, PASS = ARGV[3], 5000
if not arrival_of(client) then return -5 end

-- Begins with a write that needs no memory: after it, Redis does not refuse the others for want of memory.
call('ZREM', waiters, '')
call('ZADD', waiters, 'XX', text(now + VOUCH), client)

-- One heartbeat in 5 s looks at the whole queue for all clients, and prolongs its keys. So does one that finds its own
-- waiters short of time, or the first waiter of ours without a score: Redisson has dropped it, as the head.
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

local free, first = call('EXISTS', lock) == 0, nil
if due then
  call('ZADD', waiters, text(now + PASS), 'pass')
  first = tend(nil, free)
elseif free then
  first = head()
else
  first = redis.pcall('LINDEX', queue, '0')
end
local woke = free and first and wake(first)
if type(first) == 'string' and client_of(first) == client then return { -9, count } end
return { type(woke) ~= 'table' and many_wait() and -15 or -2, count }
