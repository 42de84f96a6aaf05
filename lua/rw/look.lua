-- Checks whether a read/write lock is held in one mode.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- ARGV[1] mode      - read or write
--
-- Returns   1 it is; 0 it is not, also when the key has another type
-- Publishes nothing
-- Repeat    changes nothing
local lock, wanted = KEYS[1], ARGV[1]
local mode = redis.pcall('HGET', lock, 'mode')
if type(mode) == 'table' then
  return string.find(mode.err, 'WRONGTYPE') and 0 or mode
end
if mode == wanted then return 1 end
-- A writer of Redisson that also reads has a second field besides the mode.
return wanted == 'read' and mode == 'write' and redis.call('HLEN', lock) > 2 and 1 or 0
