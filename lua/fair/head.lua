-- Part of the fair lock's scripts that look for the head of the queue, or repair the queue.
--
-- KEYS[1] to KEYS[4] - as in queue.lua
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script that follows replies
-- Publishes nothing
-- Repeat    the head stays the same
-- Puts waiters back into the queue, in the order of arrival and before everybody who arrived later. Redisson only drops
-- heads, so every waiter of Redisson that is still listed came later. The first gets `HEAD`, those behind it `NEXT` while all
-- ahead are ours, and the others `fair_wait` after the one ahead.
local function put_back(missing, ids, listed)
  local order, dropped, back = {}, {}, {}
  for _, id in ipairs(missing) do
    back[id] = true
    if not listed[id] then dropped[#dropped + 1] = id end
  end
  local nth, arrival = 1, dropped[1] and arrival_of(dropped[1])
  for _, other in ipairs(ids) do
    local came = arrival and (arrival_of(other) or now_us)
    while arrival and arrival < came do
      call('LINSERT', queue, 'BEFORE', other, dropped[nth])
      order[#order + 1], nth = dropped[nth], nth + 1
      arrival = dropped[nth] and arrival_of(dropped[nth])
    end
    order[#order + 1] = other
  end
  for i = nth, #dropped do
    call('RPUSH', queue, dropped[i])
    order[#order + 1] = dropped[i]
  end
  local later, ahead, left = 0, now, HEAD
  for _, id in ipairs(order) do
    local score = score_of(id)
    if back[id] then
      score, later = math.max(now, ahead) + left, later + left
      call('ZADD', scores, text(score), id)
    elseif score and later > 0 then
      score = score + later
      call('ZADD', scores, text(score), id)
    end
    ahead = score or now
    left = left ~= fair_wait and (back[id] or arrival_of(id)) and NEXT or fair_wait
  end
  keep()
end

-- Repairs what Redisson's scripts did to waiters of live clients: puts them back into the queue and gives them a score.
-- Forgets dropped waiters of dead clients, and returns whether there were any.
local function restore()
  local forgot, missing = false, {}
  local ids, listed = call('LRANGE', queue, '0', '-1'), {}
  for _, id in ipairs(ids) do listed[id] = true end
  local unscored = call('ZCARD', scores) < #ids
  for _, id in ipairs(call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf')) do
    if not listed[id] or unscored and not score_of(id) then
      if vouched_until(id) > now then
        missing[#missing + 1] = id
      elseif not listed[id] then
        forgot = call('ZREM', waiters, id) > 0
      end
    end
  end
  if #missing > 0 then put_back(missing, ids, listed) end
  return forgot
end

-- Returns whose turn it is on a free lock, and until when (ms) that waiter is waited for. Drops dead heads.
-- A caller that already knows until when its own hold id `mine` is vouched for passes that time as `alive`.
local function head(mine, alive)
  local id = call('LINDEX', queue, '0')
  if not id and call('EXISTS', scores, waiters) == 0 then return false end
  -- When the head is also the first arrival of ours, Redisson has dropped nobody ahead of it.
  if id and id == call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1] then
    local last = id == mine and alive or vouched_until(id)
    if last > now then return id, last end
  end
  local sooner, _, dropped = 0, pcall(restore)
  while true do
    id = call('LINDEX', queue, '0')
    local score = id and score_of(id)
    score = score and score - sooner
    -- A waiter of ours lives while its client vouches for it, one of Redisson until its score.
    local last = id and (arrival_of(id) and vouched_until(id) or score or 0)
    if not id or last > now then
      shift('0', -sooner)
      if dropped or not id then tidy() end
      return id, last
    end
    call('ZREM', waiters, client_of(id))
    sooner, dropped = sooner + take_out(id, score), true
  end
end
