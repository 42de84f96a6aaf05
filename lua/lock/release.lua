-- Gives a level back: writes the hold count, or ends the hold with its last level.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- ARGV[1] hold id   - field
-- ARGV[2] count     - levels left; 0 ends the hold
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   -2 given back, and levels are left; {-7, n} ended, and n clients received the wake-up, or -7 when none
--           did; -8 ended, but the wake-up was refused; -5 the hold does not exist, also when the
--           key has another type
-- Publishes '0' (one waiter may try) when it ended the hold
-- Repeat    finds no hold, returns -5 and publishes nothing; never changes the TTL
local lock, hold_id, count, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local held = redis.pcall(count == '0' and 'HDEL' or 'HEXISTS', lock, hold_id)
if type(held) == 'table' then
  return string.find(held.err, 'WRONGTYPE') and -5 or held
end
if held == 0 then return -5 end
if count ~= '0' then
  -- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
  redis.pcall('HSET', lock, hold_id, count)
  return -2
end

local heard = redis.pcall(ARGV[4] or 'PUBLISH', channel, '0')
if type(heard) == 'table' then return -8 end
return heard > 0 and { -7, heard } or -7
