-- Asks for how long a read/write lock is held in one mode.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- ARGV[1] mode      - read or write
--
-- Returns   the PTTL of the lock in ms (-1: no TTL); -2 it is not held in that mode, also when the key has another type
-- Publishes nothing
-- Repeat    changes nothing
local lock, wanted = KEYS[1], ARGV[1]
local mode = redis.pcall('HGET', lock, 'mode')
if type(mode) == 'table' then
  return string.find(mode.err, 'WRONGTYPE') and -2 or mode
end
-- A writer of Redisson that also reads has a second field besides the mode.
local reads_too = wanted == 'read' and mode == 'write' and redis.call('HLEN', lock) > 2
return (mode == wanted or reads_too) and redis.call('PTTL', lock) or -2
