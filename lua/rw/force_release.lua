-- Ends whoever holds a read/write lock in one mode.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- ARGV[1] mode      - read or write: a lock in the other mode is left alone
-- ARGV[2] client    - uuid of the caller, to tell its own holds from strangers'
-- ARGV[3] channel   - where waiters listen
-- ARGV[4] prefix    - of the readers' timeout keys, which are only known by the fields; they end with their holds
-- ARGV[5] publish   - the command that tells waiters; PUBLISH unless there is one
--
-- Returns   {code, number}: code 1 ended, 2 ended but the wake-up was refused, 0 free or in the other mode,
--           -3 the key is no read/write lock; number: of the caller's own hold that ended, else 0
-- Publishes '1' (all who can enter may try) when a hold ended, and '00' as a release does
-- Repeat    finds nothing to end, answers {0, 0} and publishes nothing
local lock, wanted, client, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local fields = redis.call('HGETALL', lock)
if #fields == 0 then return { 0, 0 } end
local mode = redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then return { -3, 0 } end
if mode ~= wanted then return { 0, 0 } end

redis.call('DEL', lock)
local woken = redis.pcall(ARGV[5] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[5] or 'PUBLISH', channel, '00')
local number = 0
-- While the slot migrates they may be elsewhere.
for i = 1, #fields, 2 do
  for level = 1, math.min(tonumber(fields[i + 1]) or 0, 1000) do
    redis.pcall('DEL', ARGV[4] .. fields[i] .. ':rwlock_timeout:' .. level)
  end
  if string.sub(fields[i], 1, #client + 1) == client .. ':' then
    number = tonumber(string.match(fields[i], '^%d+', #client + 2)) or number
  end
end
return { type(woken) == 'table' and 2 or 1, number }
