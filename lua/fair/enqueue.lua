-- Gives waiters of one client their places in the queue, behind the places that the client has. Takes no lock.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] queue     - list: the waiting hold ids in the order of arrival; shared with Redisson
-- KEYS[3] scores    - zset: waiting hold id -> ms since 1970 at which Redisson drops it
-- KEYS[4] waiters   - zset of watchlock's waiters: hold id -> us since 1970 of its arrival; client -> ms since 1970 until
--                     which it vouches for its hold ids; 'pass' -> ms until which no heartbeat looks at the whole queue
-- ARGV[1] fair wait - ms between the scores of two neighbours in the queue
-- ARGV[2]           - not used
-- ARGV[3] ahead     - hold id of the client's last waiter that has a place; '' when none has
-- ARGV[4] and on    - hold ids, in the order of their waiters, which use the client's places in that order
--
-- Returns   {-2, n} each of these n waiters has a place or the lock; {-9, n} the same, and the head belongs to this
--           client; {-15, n} the same, and so many clients vouch that their heartbeats are enough to wake the head; -5
--           gave no place, because the waiter ahead has lost its own; -3 the key is not a plain or fair lock
-- Publishes nothing
-- Repeat    a waiter that has a place keeps it; the holder gets none
local call, lock, queue, scores, waiters = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fair_wait, time = tonumber(ARGV[1]), call('TIME')
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

-- Gives a place at the end of the queue: `HEAD`, `NEXT` or `fair_wait` after the one ahead.
local function append(id, arrival)
  if not call('LPOS', queue, id) then
    local last = call('LINDEX', queue, '-1')
    local ahead = last and math.max(now, score_of(last) or now) or now
    local ours = last and call('ZCARD', scores) == call('ZCOUNT', waiters, ARRIVALS, '+inf')
    call('RPUSH', queue, id)
    call('ZADD', scores, text(ahead + (not last and HEAD or ours and NEXT or fair_wait)), id)
  end
  call('ZADD', waiters, text(arrival), id)
end

-- Gives the places that these waiters have to them in their order.
local function rearrange(ids)
  local at, movers, places = {}, {}, {}
  for index, id in ipairs(call('LRANGE', queue, '0', '-1')) do at[id] = index - 1 end
  for _, id in ipairs(ids) do
    if at[id] then
      movers[#movers + 1] = id
      places[#places + 1] = { at = at[id], score = score_of(id) or now, arrival = arrival_of(id) or now_us }
    end
  end
  table.sort(places, function(one, other) return one.at < other.at end)
  for index, place in ipairs(places) do
    call('LSET', queue, text(place.at), movers[index])
    call('ZADD', scores, text(place.score), movers[index])
    call('ZADD', waiters, text(place.arrival), movers[index])
  end
end

-- Whether so many clients vouch that their heartbeats wake the head every moment. 'pass' is among them, and so are those
-- whose waiters have left.
local function many_wait()
  local clients, places = call('ZCOUNT', waiters, text(now), '(' .. ARRIVALS), call('ZCOUNT', waiters, ARRIVALS, '+inf')
  return clients - 1 > 32 and places > 32
end

local ahead, ids, new, waits, mixed = ARGV[3], { unpack(ARGV, 4) }, {}, false, false
local client = client_of(ids[1])
local field = call('HLEN', lock) == 1 and call('HGETALL', lock) or call('EXISTS', lock) == 1 and { 'mode' } or {}
if field[1] == 'mode' or field[1] and not string.match(field[2], '^%d+$') then return -3 end
if ahead ~= '' and not arrival_of(ahead) and field[1] ~= ahead then return -5 end

local done, refused = pcall(function()
  for i, id in ipairs(ids) do
    if arrival_of(id) then
      waits, mixed = true, mixed or #new > 0
    elseif field[1] ~= id then
      new[#new + 1] = id
      append(id, now_us + i)
    end
  end
  -- Nothing to write: no place is new, and the client needs no vouching or vouched recently.
  if #new == 0 and (not waits or vouched_until(ids[1]) > now + VOUCH / 2) then return end
  keep() -- before the vouch, because it needs no memory
  call('ZADD', waiters, text(now + VOUCH), client)
  -- A waiter whose hold id is new, because a grant came to nothing, stays ahead of the client's younger ones.
  if mixed then rearrange(ids) end
end)
if not done then
  -- Takes the new places back.
  for _, id in ipairs(new) do take_out(id) end
  keep()
  -- Redis 6.2 puts the script's name and line before the error.
  return { err = (string.gsub(string.gsub(refused, '^@user_script: ?%d+: ', ''), '^%-', '')) }
end
local first = redis.pcall('LINDEX', queue, '0')
if type(first) == 'string' and client_of(first) == client then return { -9, #ids } end
return { many_wait() and -15 or -2, #ids }
