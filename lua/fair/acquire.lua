-- Starts a hold: takes the lock when it is free and it is the turn of the caller's client.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list: the waiting hold ids in the order of arrival; shared with Redisson
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson drops it
-- KEYS[4] waiters   - zset of watchlock's waiters: hold id -> us since 1970 of its arrival; client -> ms since 1970 until
--                     which it vouches for its hold ids; 'pass' -> ms until which no heartbeat looks at the whole queue
-- ARGV[1] fair wait - ms between the scores of two neighbours in the queue
-- ARGV[2] channel   - each waiter listens to this channel, followed by ':' and its hold id
-- ARGV[3] hold id   - fresh for every waiter
-- ARGV[4] lease     - ms, 1 to 2^53
-- ARGV[5] waits     - 1: takes a place in the queue when it cannot have the lock; 0: takes none and overtakes nobody
-- last ARGV         - SPUBLISH where channels belong to slots; anything else means PUBLISH
--
-- Returns   -2 acquired; -9 acquired, and the next waiter belongs to the same client; -3 the key is not a plain or fair
--           lock; else busy: try again after so many ms (-1: unknown)
-- Publishes '0' to the head when the lock is free and it is the turn of another waiter
-- Repeat    finds its own field or its own place and keeps it; the TTL never shrinks
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

local id, lease_ms, waits, client = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', client_of(ARGV[3])
-- Gives `id` a place, or vouches for it. When Redis refuses a command, takes the place back and returns the error.
local function enqueue()
  local has = arrival_of(id)
  if has and vouched_until(id) > now + VOUCH / 2 then return end
  local done, refused = pcall(function()
    if not has and not call('LPOS', queue, id) then
      local last = call('ZREVRANGE', scores, '0', '0', 'WITHSCORES')[2]
      local ours = call('ZCARD', scores) == call('ZCOUNT', waiters, ARRIVALS, '+inf')
      call('RPUSH', queue, id)
      call('ZADD', scores, text(last and math.max(now, last) + (ours and NEXT or fair_wait) or now + HEAD), id)
    end
    if not has then call('ZADD', waiters, text(now_us), id) end
    keep() -- before the vouch, because it needs no memory
    call('ZADD', waiters, text(now + VOUCH), client)
  end)
  if done then return end
  if not has then take_out(id) end
  keep()
  -- Redis 6.2 puts the script's name and line before the error.
  return { err = (string.gsub(string.gsub(refused, '^@user_script: ?%d+: ', ''), '^%-', '')) }
end
if not (lease_ms and lease_ms >= 1 and lease_ms <= 2 ^ 53) then return redis.error_reply('ERR lease out of range') end
local ttl_ms, first, last = call('PTTL', lock), nil, nil
local field = ttl_ms ~= -2 and (call('HLEN', lock) == 1 and call('HGETALL', lock) or { 'mode' }) or {}
local by = field[1]
if by == 'mode' or by and not string.match(field[2], '^%d+$') then return -3 end
if by ~= id then
  -- One that has a place is alive, so it is vouched for before tend() takes out the dead.
  local refused = waits and (by or arrival_of(id)) and enqueue()
  if by or refused then return refused or ttl_ms end
  first = call('LINDEX', queue, '0') or nil
  -- When the head is the first arrival of ours, Redisson has dropped nobody ahead of it.
  local oldest = call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1]
  if first ~= oldest or first and not (waits and client_of(first) == client) then first, last = tend(nil, true) end
  refused = waits and first and first ~= id and enqueue()
  if refused then return refused end
  -- A client tries for its first waiter, by any of its places. A single try passes only places of its own client.
  local may = not first or client_of(first) == client
  for _, other in ipairs(first and not waits and call('LRANGE', queue, '0', '-1') or {}) do
    may = may and client_of(other) == client
  end
  if not may then return redis.pcall(publish, channel .. ':' .. first, '0') and last - now end
  -- A client uses its places in the order of its waiters: this one takes the first, and each up to its own the next one.
  if first and waits and first ~= id then
    local mover, score, arrival = id, text(score_of(id) or now), text(arrival_of(id) or now_us)
    for at, other in ipairs(call('LRANGE', queue, '0', text(call('LPOS', queue, id)))) do
      if client_of(other) == client then
        call('ZADD', scores, other == id and score or text(score_of(other) or now), mover)
        call('ZADD', waiters, other == id and arrival or text(arrival_of(other) or now_us), mover)
        call('LSET', queue, text(at - 1), mover)
        mover = other
      end
    end
  end
  if first and waits then first = tend(id) end
  call('HSET', lock, id, '1')
end
-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and text(ttl_ms) or ARGV[4])
if type(expires) == 'table' and by ~= id then call('HDEL', lock, id) end -- no field without a TTL
if type(expires) == 'table' then return expires end
if by == id then first = redis.pcall('LINDEX', queue, '0') end
return type(first) == 'string' and client_of(first) == client and -9 or -2
