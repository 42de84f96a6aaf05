-- Ends the hold of whoever has a simple lock, taken by this or another library.
--
-- KEYS[1] lock      - string: hold id
-- ARGV[1] client    - uuid of the caller, by which it recognises its own holds
-- ARGV[2] channel   - waiters listen to it
-- ARGV[3] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   {-2, n} ended; {-8, n} ended, but the wake-up was refused; n: number of the ended hold when it was the
--           caller's own, else 0. -5 free; -3 the key is not a string
-- Publishes '0' (one waiter may try) when it ended a hold
-- Repeat    finds no hold, returns -5 and publishes nothing
local lock, client, channel = KEYS[1], ARGV[1], ARGV[2]
local holder = redis.pcall('GET', lock)
if not holder then return -5 end
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE') and -3 or holder
end

redis.call('DEL', lock)
local woken = redis.pcall(ARGV[3] or 'PUBLISH', channel, '0')
local number = 0
if string.sub(holder, 1, #client + 1) == client .. ':' then
  number = tonumber(string.sub(holder, #client + 2)) or 0
end
return { type(woken) == 'table' and -8 or -2, number }
