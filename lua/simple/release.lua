-- Gives a level back. Only the last one ends the hold: Redis does not store the hold count.
--
-- KEYS[1] lock      - string: hold id
-- ARGV[1] hold id
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
local holder = redis.pcall('GET', lock)
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE') then return holder end
if holder ~= hold_id then return -5 end
if count ~= '0' then return -2 end

redis.call('DEL', lock)
local heard = redis.pcall(ARGV[4] or 'PUBLISH', channel, '0')
if type(heard) == 'table' then return -8 end
return heard > 0 and { -7, heard } or -7
