-- Gives a level back: writes the hold count, or ends the hold with its last level. Takes a waiter out of the queue.
-- Follows queue.lua, head.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] hold id   - of a holder or a waiter
-- ARGV[4] count     - levels left; 0 ends the hold
--
-- Returns   -2 given back; {-7, n} ended, and the next waiter, which belongs to the same client, received the wake-up; -8
--           ended, but the wake-up was refused; -5 it did not have the lock
-- Publishes '0' to the head when the lock is free; when nobody hears that, also to Redisson's waiter behind it
-- Repeat    finds no hold and returns -5; may wake the head again; never changes the TTL
local id, count = ARGV[3], ARGV[4]
if count ~= '0' then
  if call('HEXISTS', lock, id) == 0 then return -5 end
  -- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
  redis.pcall('HSET', lock, id, count)
  return -2
end

local ended = redis.pcall('HDEL', lock, id)
-- A holder has no place any more, unless Redis had no memory when it left the queue.
if arrival_of(id) or ended ~= 1 and call('EXISTS', queue, scores, waiters) > 0 then
  local place = call('LPOS', queue, id)
  local ahead = place and place > 0 and call('LINDEX', queue, text(place - 1))
  local sooner = take_out(id, score_of(id), ahead and score_of(ahead))
  if place then shift(text(place), -sooner) end
  tidy()
end
if type(ended) == 'table' then return ended end

local first = call('EXISTS', lock) == 0 and head()
local heard = first and wake(first) or 0
if heard == 0 and first and arrival_of(first) then
  -- Nobody listens for this head, so it may be dead, as may others of ours behind it. The first waiter of Redisson would sleep
  -- on; awake, it drops them when their scores have passed.
  for _, behind in ipairs(call('LRANGE', queue, '1', '-1')) do
    if not arrival_of(behind) then
      wake(behind)
      break
    end
  end
end
if ended == 0 then return -5 end
if type(heard) == 'table' then return -8 end
if heard > 0 and client_of(first) == client_of(id) then return { -7, heard } end
return -2
