-- Part of the fair lock's scripts: coming into the queue.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
--
-- Returns   nothing: the script behind it does
-- Publishes nothing
-- Repeat    who is in the queue keeps its place
local function append(id, arrival)
  if not call('LPOS', queue, id) then
    local last = call('LINDEX', queue, '-1')
    local after = last and score_of(last) or now + call('PTTL', lock)
    call('RPUSH', queue, id)
    call('ZADD', scores, text(math.max(now, after) + fair_wait), id)
  end
  call('ZADD', waiters, text(arrival), id)
end
-- Gives hold ids of one client a place each, unless they have one. What is refused is returned, and leaves nothing.
local function enqueue(ids)
  local new, waits = {}, false
  local done, refused = pcall(function()
    for i, id in ipairs(ids) do
      if arrival_of(id) then waits = true
      elseif call('HEXISTS', lock, id) == 0 then
        new[#new + 1] = id
        append(id, now_us + i)
      end
    end
    -- Nothing is new, and nobody is to be vouched for, or was lately. Else keep() comes first: it needs no memory.
    if #new == 0 and (not waits or vouched_until(ids[1]) > now + VOUCH / 2) then return end
    keep()
    call('ZADD', waiters, text(now + VOUCH), client_of(ids[1]))
  end)
  if done then return end
  for _, id in ipairs(new) do take_out(id) end
  tidy()
  -- Redis 6.2 says first where it was raised.
  refused = string.gsub(refused, '^@user_script: ?%d+: ', '')
  return { err = (string.gsub(refused, '^%-', '')) }
end
