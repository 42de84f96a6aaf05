-- Ends the holds of whoever has a read/write lock in one mode.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- ARGV[1] mode      - read or write; a lock in the other mode stays as it is
-- ARGV[2] client    - uuid of the caller, by which it recognises its own holds
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] prefix    - of the readers' timeout keys; the fields of the hash are the rest of their names
-- ARGV[5] publish   - command that wakes the waiters; PUBLISH when missing
--
-- Returns   {-2, n} ended; {-8, n} ended, but the wake-up was refused; n: number of the newest ended hold of the caller,
--           else 0: an older one is lost already. -5 free or in the other mode; -3 the key is not a read/write lock
-- Publishes '1' (every waiter that can enter may try) when it ended a hold, then '00' as release.lua does
-- Repeat    finds no hold, returns -5 and publishes nothing
local lock, wanted, client, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local fields = redis.call('HGETALL', lock)
if #fields == 0 then return -5 end
local mode = redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then return -3 end
if mode ~= wanted then return -5 end

redis.call('DEL', lock)
local woken = redis.pcall(ARGV[5] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[5] or 'PUBLISH', channel, '00')

local number = 0
for i = 1, #fields, 2 do
  for level = 1, math.min(tonumber(fields[i + 1]) or 0, 1000) do
    -- May fail while the slot migrates; the key then ends with its TTL.
    redis.pcall('DEL', ARGV[4] .. fields[i] .. ':rwlock_timeout:' .. level)
  end
  if string.sub(fields[i], 1, #client + 1) == client .. ':' then
    number = math.max(number, tonumber(string.match(fields[i], '^%d+', #client + 2)) or 0)
  end
end
return { type(woken) == 'table' and -8 or -2, number }
