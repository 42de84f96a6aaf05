-- Gives a level back: writes the hold count, or ends the hold with its last level.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- ARGV[1] hold id   - field
-- ARGV[2] count     - levels left; 0 ends the hold
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   0 the hold does not exist; -1 ended, but the wake-up was refused; else given back: 1, plus the number of
--           clients that received the wake-up
-- Publishes '0' (one waiter may try) when it ended the hold
-- Repeat    finds no hold, returns 0 and publishes nothing; never changes the TTL
local lock, hold_id, count, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if count ~= '0' then
  if redis.call('HEXISTS', lock, hold_id) == 0 then return 0 end
  -- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
  redis.pcall('HSET', lock, hold_id, count)
  return 1
end

if redis.call('HDEL', lock, hold_id) == 0 then return 0 end
local heard = redis.pcall(ARGV[4] or 'PUBLISH', channel, '0')
if type(heard) == 'table' then return -1 end
return 1 + heard
