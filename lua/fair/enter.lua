-- Part of the fair lock's scripts that give places in the queue.
--
-- KEYS[1] to KEYS[4] - as in queue.lua
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script that follows replies
-- Publishes nothing
-- Repeat    a waiter that has a place keeps it
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

-- Gives a place to each of these hold ids of one client that has none. When Redis refuses a command, it takes the new
-- places back and returns the error.
local function enqueue(ids)
  local new, waits = {}, false
  local done, refused = pcall(function()
    for i, id in ipairs(ids) do
      if arrival_of(id) then
        waits = true
      elseif call('HEXISTS', lock, id) == 0 then
        new[#new + 1] = id
        append(id, now_us + i)
      end
    end
    -- Nothing to write: no place is new, and the client needs no vouching or vouched recently.
    if #new == 0 and (not waits or vouched_until(ids[1]) > now + VOUCH / 2) then return end
    keep() -- before the vouch, because it needs no memory
    call('ZADD', waiters, text(now + VOUCH), client_of(ids[1]))
  end)
  if done then return end
  for _, id in ipairs(new) do take_out(id) end
  tidy()
  -- Redis 6.2 puts the script's name and line before the error.
  refused = string.gsub(refused, '^@user_script: ?%d+: ', '')
  return { err = (string.gsub(refused, '^%-', '')) }
end
