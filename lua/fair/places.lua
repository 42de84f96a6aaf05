-- Part of the fair lock's scripts: a place that is vouched for is kept, whatever Redisson's scripts do.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script behind it does
-- Publishes nothing
-- Repeat    who has its place keeps it

-- Puts those back that were dropped though they are vouched for, gives a score to who lacks one, and forgets others.
local function restore()
  -- Into the list, ahead of all that came later. Redisson drops heads, so all of its waiters did.
  local function insert(id, arrival)
    for place, other in ipairs(call('LRANGE', queue, '0', '-1')) do
      if (arrival_of(other) or now_us) > arrival then
        call('LINSERT', queue, 'BEFORE', other, id)
        return place - 1
      end
    end
    return call('RPUSH', queue, id) - 1
  end
  local forgot = false
  local ids, listed = call('LRANGE', queue, '0', '-1'), {}
  for _, id in ipairs(ids) do listed[id] = true end
  local unscored = call('ZCARD', scores) < #ids
  for _, id in ipairs(call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf')) do
    if not listed[id] or unscored and not score_of(id) then
      if vouched_until(id) > now then
        local place = listed[id] and call('LPOS', queue, id) or insert(id, arrival_of(id))
        local ahead = place > 0 and score_of(call('LINDEX', queue, place - 1)) or now
        call('ZADD', scores, text(math.max(now, ahead)), id)
        shift(place, fair_wait)
        keep()
      elseif not listed[id] then forgot = call('ZREM', waiters, id) > 0 end
    end
  end
  return forgot
end
