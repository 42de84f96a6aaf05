-- Gives a level back: ends the hold with its last one; the others are known to the client alone.
--
-- KEYS[1] lock      - string: hold id
-- ARGV[1] hold id
-- ARGV[2] count     - levels left, 0 ends the hold
-- ARGV[3] channel   - where waiters listen
-- ARGV[4] publish   - the command that tells them; PUBLISH unless there is one
--
-- Returns   0 the hold is not there; -1 ended, but the wake-up was refused; else given back: 1, and one
--           more for every client that heard it
-- Publishes '0' (one waiter may try) when the hold ended
-- Repeat    finds nothing to end, answers 0 and publishes nothing; never touches the TTL
local lock, hold_id, count, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('GET', lock) ~= hold_id then return 0 end
if count ~= '0' then return 1 end

redis.call('DEL', lock)
local heard = redis.pcall(ARGV[4] or 'PUBLISH', channel, '0')
if type(heard) == 'table' then return -1 end
return 1 + heard
