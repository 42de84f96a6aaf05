-- Gives a level back: writes the hold count, or ends the hold with its last level. One that waits leaves the queue.
-- Follows queue.lua, keys.lua, places.lua, turn.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua and turn.lua
-- ARGV[3] hold id   - field, or one that waits
-- ARGV[4] count     - levels left, 0 ends the hold
--
-- Returns   0 it did not have the lock; -1 ended, but the wake-up was refused; else given back: 1, and one
--           more when the next in the queue is of this client and heard it
-- Publishes '0' to the head of the queue when the lock is free
-- Repeat    finds nothing to end, answers 0 and may wake the head again; never touches the TTL
local id, count = ARGV[3], ARGV[4]
local function leave()
  local place = call('LPOS', queue, id)
  local sooner = take_out(id, score_of(id))
  if place then shift(place, -sooner) end
  tidy()
end
if count ~= '0' then
  if call('HEXISTS', lock, id) == 0 then return 0 end
  -- The count is for readers; the hold stands without it when memory is short.
  redis.pcall('HSET', lock, id, count)
  return 1
end

local ended = redis.pcall('HDEL', lock, id)
-- A holder gave its place up when it got the lock, unless memory was short then.
if arrival_of(id) or ended ~= 1 and call('EXISTS', queue, scores, waiters) > 0 then leave() end
if type(ended) == 'table' then return ended end
local first = call('EXISTS', lock) == 0 and head()
local heard = first and wake(first) or 0
if ended == 0 then return 0 end
if type(heard) == 'table' then return -1 end
if first and client_of(first) == client_of(id) then return 1 + heard end
return 1
